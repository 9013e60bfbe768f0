"""A cluster under load, as one scenario sees it: who is what, faults with their windows, healing, and the aftermath."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from controllerd.raft.log_file import RaftLogFile
from controllerd.settings import RaftSettings
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.disk import LocalDisk
from remoting.message import Record, decode_records
from tests.chaos.checks import GRPC_CLIENT, POPPING, PULLING, Aftermath, ControllerLog, LogCopy, Recovery
from tests.chaos.clients import POP_GROUP, PULL_GROUP, QUEUES, TOPIC, Client, PopConsumer, Producer, PullConsumer
from tests.chaos.daemons import ChaosCluster
from tests.chaos.history import SET_LOST, Delivery, FaultWindow, History, Kind, Operation, Outcome, body_of, name_in
from tests.chaos.injection import Injection
from tests.chaos.observer import Observer
from tests.chaos.plan import Faults, Roles
from tests.chaos.recovery import limit_of, recovery_of
from tests.support.cluster import ROOT, eventually
from tests.support.workload import call_until

GRPC_TOPIC: Final = "Letters"
GRPC_GROUP: Final = "letters"

REJOIN_LIMIT_S: Final = 60
CONSUMED_LIMIT_S: Final = 60
_PRODUCERS: Final = 3
_WARM_UP: Final = 30  # acknowledged sends of each producer


class GrpcProgram:
    """The official client in a process of its own; what it says becomes part of the history."""

    def __init__(self, history: History, endpoints: Sequence[str], errors: Path) -> None:
        self._history = history
        self._endpoints = ";".join(endpoints)
        self._errors = errors
        self._ready = threading.Event()
        self._ended = threading.Event()
        self._paused = threading.Event()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.chaos.grpc_client", self._endpoints, GRPC_TOPIC, GRPC_GROUP]
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        threading.Thread(target=self._listen, name="grpc", daemon=True).start()
        assert self._ready.wait(30), f"the gRPC client does not start: {self._errors.read_text()[-2000:]}"

    def drain(self) -> None:
        """No further sends."""
        self._tell("drain")

    def pause(self) -> None:
        """Returns when nothing is under way any more."""
        self._paused.clear()
        self._tell("pause")
        assert self._paused.wait(30), "the gRPC client does not pause"

    def go_on(self) -> None:
        self._tell("go on")

    def _tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._ended.wait(40), "the gRPC client hangs"
        self.kill()  # what is left of it are the library's own threads

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, start_s, end_s, outcome, message, detail, queue_id, offset = json.loads(line)
            if kind == "ready":
                self._ready.set()
            elif kind == "end":
                self._ended.set()
            elif kind == "paused":
                self._paused.set()
            elif kind == "receive":
                body = body_of(message) if outcome == "ok" else message.encode()
                self._history.deliveries.append(Delivery(GRPC_CLIENT, start_s, end_s, body, -1, -1))
            else:
                operation = Operation(
                    GRPC_CLIENT, Kind(kind), start_s, end_s, Outcome(outcome), message=message, detail=detail
                )
                self._history.operations.append(operation._replace(queue_id=queue_id, value=offset))
        self._ended.set()


class Stage:
    """One scenario's cluster, clients and records. `start`, any number of faults, `finish`."""

    def __init__(
        self, cluster: ChaosCluster, rng: random.Random, fault_s: float, heal_s: float, say: Callable[[str], None]
    ) -> None:
        self.cluster = cluster
        self.network = cluster.network
        self.rng = rng
        self.fault_s = fault_s
        self.heal_s = heal_s
        self.say = say
        self.history = History()
        self.recoveries: list[Recovery] = []
        self.rejoined_s: list[float | None] = []
        self.stop_codes: dict[str, int] = {}
        self.began_s = 0.0
        route = lambda: self.observer.route  # noqa: E731
        self.observer = Observer(self.history, cluster.controller_addresses, cluster.broker_addresses)
        addresses = cluster.broker_addresses
        self.producers = [Producer(f"p{n}", self.history, addresses, route) for n in range(_PRODUCERS)]
        self.consumers: list[Client] = [
            PullConsumer(PULLING, self.history, addresses, route),
            PopConsumer(POPPING, self.history, addresses, route),
        ]
        self.observer.listeners += [client.seat.hear for client in self.clients]
        self.grpc = GrpcProgram(self.history, cluster.grpc_addresses, cluster.data / "logs" / "grpc-client.log")
        self._started: list[Callable[[], None]] = []

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.consumers]

    # ---- the load

    def start(self) -> None:
        """Cluster, topics, clients; returns when every producer has had some success."""
        self._started.append(self.cluster.close)
        self.cluster.start()
        admin = self.cluster.admin
        for topic in (TOPIC, GRPC_TOPIC):
            call_until(lambda topic=topic: admin.create_topic(topic, queues=QUEUES))
            eventually(f"the route of {topic}", lambda topic=topic: bool(admin.queue_offsets(topic)))
        for group in (PULL_GROUP, POP_GROUP, GRPC_GROUP):
            call_until(lambda group=group: admin.create_group(group))
        self.began_s = time.monotonic()
        self.observer.start()
        self._started.append(self.observer.stop)
        for client in self.clients:
            client.start()
        self._started.append(self._stop_clients)
        self.grpc.start()
        self._started.append(self.grpc.kill)
        eventually("the first sends of every producer", lambda: min(self._sent_ok().values()) >= _WARM_UP, 30)

    def _sent_ok(self) -> dict[str, int]:
        counts = dict.fromkeys((*(each.name for each in self.producers), GRPC_CLIENT), 0)
        for each in self.history.sends():
            if each.outcome is Outcome.OK and each.client in counts:
                counts[each.client] += 1
        return counts

    def _stop_clients(self) -> None:
        for client in self.clients:
            client.stop()

    def close(self) -> None:
        """End everything, in the opposite order."""
        self.network.heal()
        while self._started:
            self._started.pop()()

    def pause(self) -> None:
        """No client does anything; returns when what was begun has ended."""
        for client in (*self.clients, self.grpc):
            client.pause()

    def go_on(self) -> None:
        for client in (*self.clients, self.grpc):
            client.go_on()

    # ---- faults

    def roles(self) -> Roles:
        """Who is what now; waits for a master and a leader."""
        electable = tuple(name for name in self.cluster.broker_names if name not in self.cluster.learner_names)
        controllers = tuple(self.cluster.controller_names)
        return Roles(controllers, electable, self.cluster.master_name(), self.cluster.leader_name())

    @contextmanager
    def window(self, name: str, faults: Faults | None = None, **details: object) -> Iterator[FaultWindow]:
        """The time in which a fault is in force; ends when the block ends, before anything is healed."""
        told = {**(faults.describe() if faults else {}), **details}
        window = FaultWindow(name, time.monotonic(), details=told)
        self.history.faults.append(window)
        self.say(f"{window.start_s - self.began_s:7.2f} s  {name}: {json.dumps(told)}")
        try:
            yield window
        finally:
            window.end_s = time.monotonic()

    def inject(self, name: str, faults: Faults, *, recovers: bool = True, hold_s: float | None = None) -> FaultWindow:
        """One fault from its beginning to its heal, looked at from both ends; then wait until the group is whole again."""
        roles = self.roles()
        details = {"master": roles.master, "leader": roles.leader}
        with self.window(name, faults, **details) as window:
            injection = Injection(self.cluster, faults, window)
            injection.inject()
            self.hold(self.fault_s if hold_s is None else hold_s)
            injection.verify()
            if recovers and (lost := self._lost_set(faults)):
                # Two died so close together that the first one's successor was the second: nobody else may lead.
                window.details[SET_LOST] = lost
                recovers = False
        self.measure(window, faults if recovers else None, roles)
        injection.heal()
        self.settle()
        return window

    def _lost_set(self, faults: Faults) -> list[str]:
        """The members of the sync-state set when all of them are killed or frozen; nothing otherwise."""
        down = {*faults.kills, *faults.freezes}
        newest = max(self.history.views, key=lambda each: each.set_epoch)
        return sorted(newest.members) if set(newest.members) <= down else []

    def measure(self, window: FaultWindow, faults: Faults | None, roles: Roles) -> None:
        """Remember how long sends stood still; there is a limit when the kind of fault has one (`faults` is given)."""
        limit_s, why = limit_of(faults, roles) if faults is not None else (None, "recovery is not promised")
        self.recoveries.append(recovery_of(self.history, window, limit_s, why))

    def hold(self, seconds: float) -> None:
        """Let time pass under load; a client that broke ends the wait with its error."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))
            for client in self.clients:
                if client.failure is not None:
                    raise client.failure

    def settle(self) -> None:
        """The time after a heal: wait for the whole set, then let the rest of the pause pass."""
        healed_s = time.monotonic()
        try:
            self.cluster.wait_in_sync(self.cluster.replica_count, REJOIN_LIMIT_S)
        except AssertionError as error:
            self.say(f"          not whole again: {error}")
            self.rejoined_s.append(None)
        else:
            self.rejoined_s.append(time.monotonic() - healed_s)
        self.hold(max(0.0, self.heal_s - (time.monotonic() - healed_s)))

    def mark(self, what: str) -> None:
        self.history.marks.append((time.monotonic(), what))

    # ---- the end

    def finish(self) -> Aftermath:
        """Stop the producers, let the consumers catch up, read everything back, stop the daemons and look at their disks."""
        for producer in self.producers:
            producer.stop()
        self.grpc.drain()
        for producer in self.producers:
            producer.finish()
        self._wait_until_consumed()
        for client in self.consumers:
            client.stop()
        for client in self.consumers:
            client.finish()
        self._started.remove(self._stop_clients)
        self.grpc.stop()
        self._started.remove(self.grpc.kill)
        self._wait_until_replicated()
        records = {queue_id: self._read_queue(TOPIC, queue_id) for queue_id in range(QUEUES)}
        over_grpc = {queue_id: self._read_queue(GRPC_TOPIC, queue_id) for queue_id in range(QUEUES)}
        states = {
            name: self.cluster.admin.broker_state(address)
            for name, address in zip(self.cluster.broker_names, self.cluster.broker_addresses, strict=True)
        }
        self._started.remove(self.observer.stop)
        self.observer.stop()
        exits = self.cluster.exits_by_themselves()
        self._stop_daemons()
        logs = {
            name: LogCopy(
                *log_bytes(self.cluster.data_directories[name] / "commitlog", state["minOffset"], state["endOffset"]),
                [(each["epoch"], each["startOffset"]) for each in state["epochs"]],
            )
            for name, state in states.items()
        }
        return Aftermath(
            records, over_grpc, logs, self._controller_logs(), exits, self.stop_codes, self.rejoined_s, self.recoveries
        )

    def _wait_until_consumed(self) -> None:
        """Until every acknowledged message came to all consumers, or time is up (then a check says which are missing)."""
        wanted = {True: set[str](), False: set[str]()}
        for each in self.history.sends():
            if each.outcome is Outcome.OK:
                wanted[each.client == GRPC_CLIENT].add(each.message)
        missing = {PULLING: set(wanted[False]), POPPING: set(wanted[False]), GRPC_CLIENT: set(wanted[True])}
        seen = 0
        deadline_s = time.monotonic() + CONSUMED_LIMIT_S
        while any(missing.values()) and time.monotonic() < deadline_s:
            upto = len(self.history.deliveries)
            for delivery in self.history.deliveries[seen:upto]:
                missing[delivery.client].discard(name_in(delivery.body))
            seen = upto
            time.sleep(0.02)

    def _wait_until_replicated(self) -> None:
        def equal() -> bool:
            ends = {self.cluster.admin.broker_state(address)["endOffset"] for address in self.cluster.broker_addresses}
            return len(ends) == 1

        eventually("all logs have the same end", equal, REJOIN_LIMIT_S)

    def _read_queue(self, topic: str, queue_id: int) -> list[Record]:
        """Every message of a queue, read from the master."""
        address = self.cluster.broker_addresses[self.cluster.master()]
        records: list[Record] = []
        ext = {
            **{"consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": str(queue_id), "maxMsgNums": "32"},
            **{"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
            **{"subscription": "*", "subVersion": "0", "expressionType": "TAG"},
        }
        accept = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)
        with SocketConnection(address) as connection:
            offset = 0
            while True:
                answer = connection.call(codes.PULL_MESSAGE, {**ext, "queueOffset": str(offset)}, accept=accept)
                if answer.code == codes.SUCCESS:
                    records += decode_records(answer.body)
                offset = int(answer.ext["nextBeginOffset"])
                if answer.code != codes.SUCCESS and offset >= int(answer.ext["maxOffset"]):
                    return records

    def _stop_daemons(self) -> None:
        """As an operator does: all brokers, then all controllers."""
        with ThreadPoolExecutor(8) as pool:
            for group in (self.cluster.brokers, self.cluster.controllers):
                codes_of = pool.map(lambda each: each.terminate(20), group)
                self.stop_codes |= {each.name: code for each, code in zip(group, codes_of, strict=True)}

    def _controller_logs(self) -> dict[str, ControllerLog]:
        logs = {}
        names = self.cluster.controller_names
        for name in names:
            disk = LocalDisk(self.cluster.data_directories[name])
            try:
                file = RaftLogFile(disk, RaftSettings().group, name, names)
                log = file.open().log
                entries = log.slice(log.first_index, log.committed + 1, 1 << 40)
                logs[name] = ControllerLog(log.first_index, [(each.term, bytes(each.data)) for each in entries])
                file.close()
            finally:
                disk.close()
        return logs


def log_bytes(directory: Path, start: int, end: int) -> tuple[int, bytes]:
    """(first offset, bytes) of a commitlog, whose files are named by the offset that they begin with."""
    content = bytearray()
    first = -1
    for file in sorted(directory.iterdir()):
        if not file.name.isdecimal() or int(file.name) >= end:
            continue
        if first < 0:
            first = int(file.name)
        assert int(file.name) == first + len(content), f"{file} does not follow the file before it"
        content += file.read_bytes()
    begin = max(start, first)
    return begin, bytes(content[begin - first : end - first])
