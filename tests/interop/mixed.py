"""One broker group of both kinds under our controllers: brokers of ours and of the original that follow one another."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerd.replication.epochs.epoch_list import EpochEntry, decode_epochs
from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.record.properties import encode_properties
from tests.interop import apache
from tests.support.cluster import Process, eventually, free_ports, make_secret
from tests.support.documents import document

CLUSTER: Final = "DefaultCluster"
GROUP: Final = "broker-a"
TOPIC: Final = "Mixed"
SEGMENT_BYTES: Final = 1 << 20  # small files: every run goes through several fillers
_BODY_BYTES: Final = 700
# A slave of 5.3.3 whose last message was not confirmed waits 90 s for its dispatch, which does not end, before it cuts its log.
_CUT_S: Final = 150
_BODY: Final = re.compile(rb"Mixed:[0-9]{8}:(?=\.)")
_ORIGINAL: Final = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "maxMessageSize": 64 << 10,
    "allAckInSyncStateSet": "true",
    "brokerHeartbeatInterval": 500,
    "controllerHeartBeatTimeoutMills": 3000,
    "syncBrokerMetadataPeriod": 500,
    "checkSyncStateSetPeriod": 500,
    "syncControllerMetadataPeriod": 1000,
    "haSendHeartbeatInterval": 500,
    "haMaxTimeSlaveNotCatchup": 3000,
}


@dataclass
class Member:
    """One broker of either kind. `store` holds its commitlog and its epoch file."""

    process: Process
    address: str
    ha_address: str
    store: Path
    is_ours: bool
    broker_id: int = 0


@dataclass(frozen=True)
class Compared:
    """What was held against each other byte for byte."""

    bytes: int
    files: int
    epochs: int


class MixedGroup:
    """A controller of ours, and brokers of both kinds; everything started is killed at `close`."""

    def __init__(self, root: Path, session: apache.Session) -> None:
        (port,) = free_ports(1)
        self.controller_address = f"127.0.0.1:{port}"
        self.members: list[Member] = []
        self._processes: list[Process] = []
        self._sent = 0
        self._root = root
        self._session = session
        self._secret = make_secret(root)
        arguments = ["-m", "controllerd", "--id", "n0", "--peers", f"n0={self.controller_address}"]
        self._controller = Process("n0", [*arguments, "--data", str(root / "n0")], root / "n0.log")
        self._controller.start()
        self.admin = AdminClient([self.controller_address], timeout_ms=3000)
        eventually("the controller leads", lambda: document(self.admin.cluster_view())["controllers"][0].get("leader"))

    def close(self) -> None:
        for process in self._processes:
            process.close()
        self._controller.close()

    def __enter__(self) -> MixedGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_ours(self, settings: Sequence[str] = (), *, registers: bool = True) -> Member:
        """Start a broker of ours that takes the original's for peers; unless it `registers`, no controller hears of it."""
        number = len(self.members)
        ports = (*apache.broker_ports(), apache.broker_ports()[0])
        address, ha_address, grpc_address = (f"127.0.0.1:{port}" for port in ports)
        data = self._root / f"b{number}"
        chosen = (
            f"store.segment_size_bytes={SEGMENT_BYTES}",
            f"store.max_record_bytes={256 << 10}",
            "replication.plain_peers=127.0.0.1",
            *settings,
        )
        process = Process(
            f"b{number}",
            [
                *("-m", "brokerd", "--name", GROUP, "--listen", address, "--ha-listen", ha_address),
                *("--grpc-listen", grpc_address, "--controllers", self.controller_address, "--data", str(data)),
                *("--replication-secret", str(self._secret)),
                *(word for each in chosen for word in ("--set", each)),
            ],
            self._root / f"b{number}.log",
        )
        self._processes.append(process)
        process.start()
        member = Member(process, address, ha_address, data, is_ours=True)
        return self._add(member) if registers else member

    def add_original(self, **properties: object) -> Member:
        """Start a broker of the original in controller mode."""
        broker = self._session.broker(
            GROUP, self.controller_address, controllers=self.controller_address, properties=_ORIGINAL | properties
        )
        return self._add(Member(broker.process, broker.address, broker.ha_address, broker.store, is_ours=False))

    def add_classic_original(self, **properties: object) -> Member:
        """Start a broker of the original that knows name servers, but no controllers."""
        known = ("mappedFileSizeCommitLog", "maxMessageSize", "haSendHeartbeatInterval")
        chosen = {name: _ORIGINAL[name] for name in known} | properties
        broker_id = int(str(chosen.pop("brokerId", 0)))
        broker = self._session.broker(GROUP, self.controller_address, broker_id=broker_id, properties=chosen)
        return Member(broker.process, broker.address, broker.ha_address, broker.store, is_ours=False)

    def _add(self, member: Member) -> Member:
        self.members.append(member)

        def known() -> int:
            ids = {each["address"]: each["brokerId"] for each in (self.view() or {}).get("replicas", [])}
            return int(ids.get(member.address, 0))

        member.broker_id = eventually(f"{member.process.name} is registered", known, 60)
        return member

    # What the controllers say

    def view(self) -> dict[str, Any] | None:
        groups: list[dict[str, Any]] = document(self.admin.cluster_view())["groups"]
        return groups[0] if groups else None

    def wait_in_sync(self, *members: Member, timeout_s: float = _CUT_S) -> None:
        """Wait until exactly these are in the sync-state set and one of them is a living master."""
        ids = {member.broker_id for member in members}

        def reached() -> bool:
            view = self.view()
            if view is None or not view.get("masterBrokerId"):
                return False
            alive = {each["brokerId"] for each in view["replicas"] if each["alive"]}
            return set(view["syncStateSet"]) == ids and view["masterBrokerId"] in alive

        try:
            eventually(f"a sync-state set of {sorted(ids)}", reached, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; the controllers say {self.view()}\n{self._last_words()}") from error

    @property
    def master(self) -> Member | None:
        master_id = (self.view() or {}).get("masterBrokerId")
        return next((each for each in self.members if master_id and each.broker_id == master_id), None)

    @property
    def master_epoch(self) -> int:
        return int((self.view() or {})["masterEpoch"])

    def elect(self, member: Member) -> None:
        """A planned change of master."""
        self.admin.elect_master(CLUSTER, GROUP, member.broker_id)
        self.wait_for_master(member)

    def wait_for_master(self, member: Member) -> None:
        eventually(f"{member.process.name} is the master", lambda: self.master is member, 60)

    # Load

    def send(self, count: int, *, timeout_s: float = 60) -> list[bytes]:
        """Send so many messages to whoever is master, each until one was acknowledged; the acknowledged bodies."""
        acknowledged: list[bytes] = []
        deadline = time.monotonic() + timeout_s
        last = "nobody is master"
        while len(acknowledged) < count and time.monotonic() < deadline:
            try:
                master = self.master
                if master is not None and master.is_ours:
                    self.admin.create_topic(TOPIC, queues=4)
                if master is not None:
                    self.send_to(master.address, count, acknowledged)
            except LogboomError as error:  # a change of role is answered in many ways, and every body is sent once
                last = str(error)
                time.sleep(0.05)
        got = len(acknowledged)
        assert got == count, f"{got} of {count} sends in {timeout_s} s: {last}\n{self._last_words()}"
        return acknowledged

    def send_to(self, address: str, count: int, acknowledged: list[bytes]) -> None:
        """Send to one broker until there are so many acknowledged bodies."""
        with SocketConnection(address, timeout_ms=2000) as connection:
            while len(acknowledged) < count:
                acknowledged.append(self._send_one(connection))

    def _send_one(self, connection: SocketConnection) -> bytes:
        self._sent += 1
        body = b"%s:%08d:" % (TOPIC.encode(), self._sent)
        ext = {
            "a": "test",
            "b": TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(self._sent % 4),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": encode_properties({"UNIQ_KEY": f"{self._sent:032d}"}).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        connection.call(codes.SEND_MESSAGE_V2, ext, body + b"." * (_BODY_BYTES - len(body)), timeout_ms=8000)
        return body

    @contextlib.contextmanager
    def load(self) -> Iterator[list[bytes]]:
        """Send all the time, whatever happens to the master; the list grows by what was acknowledged."""
        acknowledged: list[bytes] = []
        stopping = threading.Event()
        failures: list[Exception] = []

        def run() -> None:
            try:
                while not stopping.is_set():
                    acknowledged.extend(self.send(20))
            except (AssertionError, OSError, ValueError) as error:  # raised again where the test can see it
                failures.append(error)

        thread = threading.Thread(target=run, name="load", daemon=True)
        thread.start()
        try:
            yield acknowledged
        finally:
            stopping.set()
            thread.join(90)
        if failures:
            raise failures[0]
        assert not thread.is_alive(), "the load hangs"

    def wait_for_more(self, acknowledged: list[bytes], count: int) -> None:
        """Wait until the load has had so many more acknowledged."""
        goal = len(acknowledged) + count
        eventually(f"{count} more messages acknowledged", lambda: len(acknowledged) >= goal, 60)

    # Looking

    def wait_until_equal_length(self) -> int:
        """Wait until all logs have the same end, and say it."""

        def ends() -> int:
            found = {self.log_end(member) for member in self.members}
            return found.pop() if len(found) == 1 else 0

        # An original that lost the lead while it looked at transactions joins that thread for up to 90 s before it follows.
        return eventually("logs of one length", ends, 150)

    def log_end(self, member: Member) -> int:
        with SocketConnection(member.address, timeout_ms=2000) as connection:
            answer = connection.call(codes.GET_BROKER_EPOCH_CACHE, {})
        return int(json.loads(bytes(answer.body))["maxOffset"])

    def compare(self, least_bytes: int) -> Compared:
        """Hold every log and every epoch list against the first one's, up to the shortest."""
        shortest = min(self.log_end(member) for member in self.members)
        assert shortest >= least_bytes, f"{shortest} bytes are too few to compare"
        logs = [read_log(member.store, shortest) for member in self.members]
        for member, log in zip(self.members, logs, strict=True):
            assert len(log) == shortest, f"{member.process.name} has {len(log)} of {shortest} bytes on disk"
            if log != logs[0]:
                at = next(index for index, pair in enumerate(zip(log, logs[0], strict=True)) if pair[0] != pair[1])
                raise AssertionError(f"{member.process.name} differs from {self.members[0].process.name} at {at}")
        lists = [epochs_of(member.store, shortest) for member in self.members]
        assert all(each == lists[0] for each in lists), f"the epoch lists differ: {lists}"
        return Compared(shortest * (len(logs) - 1), -(-shortest // SEGMENT_BYTES), len(lists[0]))

    def check_bodies(self, acknowledged: Sequence[bytes]) -> None:
        """Every acknowledged message is in every log, and nothing is there twice."""
        for member in self.members:
            found = find_bodies(read_log(member.store, self.log_end(member)))
            missing = set(acknowledged).difference(found)
            assert not missing, (
                f"{member.process.name} lacks {len(missing)} acknowledged messages: {sorted(missing)[:3]}"
            )
            assert len(found) == len(set(found)), f"{member.process.name} has messages twice"

    def _last_words(self) -> str:
        return "\n".join(f"--- {each.process.name}\n{each.process.log_text()[-1500:]}" for each in self.members)


def read_log(store: Path, end: int) -> bytes:
    """A log up to an offset; its files are named by theirs. What was never there (the first files, perhaps) is left out."""
    content = bytearray()
    for file in sorted((store / "commitlog").iterdir()):
        start = int(file.name)
        content += file.read_bytes()[: max(0, end - start)]
    return bytes(content)


def find_bodies(log: bytes) -> list[bytes]:
    """The bodies of messages in a log, in order, without what fills them up."""
    return _BODY.findall(log)


def epochs_of(store: Path, length: int) -> list[EpochEntry]:
    """The epochs that wrote the first bytes of a log."""
    path = store / "epochFileCheckpoint"
    return [entry for entry in decode_epochs(path.read_bytes(), str(path)) if entry.start_offset < length]
