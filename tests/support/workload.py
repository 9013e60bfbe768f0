"""Producers that record the outcome of every send, and the checks of what a log must still hold afterwards.

An outcome is acknowledged, refused (certainly not stored) or unknown (a lost answer: stored or not). The checks:
every acknowledged message is there at the offset that was answered, nothing is there that nobody sent, an unknown one is there
at most as often as it was tried, offsets are dense, and one producer's messages keep their order in a queue.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.record.codec import Record, body_is_intact
from remoting.record.properties import encode_properties

UNIQUE_KEY = "UNIQ_KEY"  # each producer's messages have one of their own
_UNKNOWN_CODES = (codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT, codes.SLAVE_NOT_AVAILABLE)


@dataclass
class History:
    """What producers learned. Keys are bodies, which are unique."""

    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # body -> (queue id, queue offset)
    unknown: set[bytes] = field(default_factory=set)
    refused: int = 0
    longest_gap_s: float = 0.0  # the longest time without a successful send

    @property
    def sent(self) -> set[bytes]:
        return set(self.acknowledged) | self.unknown


class Producer(threading.Thread):
    """Sends one message after the other to the present master of `broker-a` until stopped, or until `most` were acknowledged;
    never sends a body twice."""

    def __init__(
        self,
        controllers: list[str],
        topic: str,
        name: str,
        queue_id: int,
        body_bytes: int = 200,
        most: float = math.inf,
    ) -> None:
        super().__init__(name=f"producer {name}", daemon=True)
        self.history = History()
        self._admin = AdminClient(controllers, timeout_ms=1000)
        self._topic = topic
        self._name = name
        self._queue_id = queue_id
        self._padding = b"." * body_bytes
        self._stopping = threading.Event()
        self._connection: SocketConnection | None = None
        self._count = 0
        self._most = most
        self._last_success = time.monotonic()

    def stop(self) -> History:
        """Stop and return what happened."""
        self._stopping.set()
        self.join(30)
        assert not self.is_alive(), f"{self.name} hangs"
        return self.history

    def wait_for(self, count: int, timeout_s: float = 30) -> None:
        """Wait until that many more sends were acknowledged."""
        goal = len(self.history.acknowledged) + count
        deadline = time.monotonic() + timeout_s
        while len(self.history.acknowledged) < goal:
            assert time.monotonic() < deadline, f"{self.name}: fewer than {count} sends succeeded in {timeout_s} s"
            time.sleep(0.005)

    def run(self) -> None:
        while not self._stopping.is_set() and len(self.history.acknowledged) < self._most:
            try:
                if self._connection is None:
                    address = self._admin.masters().get("broker-a")
                    if address is None:
                        self._stopping.wait(0.01)
                        continue
                    self._connection = SocketConnection(address, timeout_ms=1000)
            except LogboomError:
                self._stopping.wait(0.01)
                continue
            self._send_one(self._connection)
        if self._connection is not None:
            self._connection.close()

    def _send_one(self, connection: SocketConnection) -> None:
        body = f"{self._name}:{self._count}:".encode() + self._padding
        self._count += 1
        ext = {
            "a": "test",
            "b": self._topic,
            "c": "TBW102",
            "d": "4",
            "e": str(self._queue_id),
            "f": "0",
            "g": "1700000000000",
            "h": "0",
            "i": encode_properties({UNIQUE_KEY: f"{self._name}{self._count:020d}"}).decode(),
            "j": "0",
            "k": "false",
            "m": "false",
        }
        try:
            answer = connection.call(
                codes.SEND_MESSAGE_V2, ext, body, timeout_ms=6000, accept=(codes.SUCCESS, *_UNKNOWN_CODES)
            )
        except RequestError as error:
            if "is unknown" in error.message:  # the role changed while the message waited
                self.history.unknown.add(body)
            else:
                self.history.refused += 1
            self._reconnect()
            return
        except (ConnectionLost, RequestTimeout):
            self.history.unknown.add(body)
            self._reconnect()
            return
        if answer.code != codes.SUCCESS:
            self.history.unknown.add(body)
            return
        now = time.monotonic()
        self.history.longest_gap_s = max(self.history.longest_gap_s, now - self._last_success)
        self._last_success = now
        self.history.acknowledged[body] = int(answer.ext["queueId"]), int(answer.ext["queueOffset"])

    def _reconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._stopping.wait(0.005)


def read_queue(admin: AdminClient, topic: str, queue_id: int) -> list[Record]:
    """Every message of a queue of `broker-a`, from its first to its last offset."""
    records: list[Record] = []
    offset = 0
    while True:
        pulled = admin.pull(topic, "broker-a", queue_id, offset)
        if not pulled.records and pulled.next_offset >= pulled.max_offset:
            return records
        records += pulled.records
        offset = pulled.next_offset


def check_queue(records: list[Record], histories: list[History]) -> None:
    """Hold what a queue has against what its producers learned; raises AssertionError with the first differences."""
    assert [record.queue_offset for record in records] == list(range(len(records))), "queue offsets are not dense"
    assert all(map(body_is_intact, records)), "a body is damaged"
    by_offset = {record.queue_offset: record.body for record in records}
    counts = Counter(record.body for record in records)
    sent = set().union(*(history.sent for history in histories))
    for history in histories:
        lost = [body for body, (_, offset) in history.acknowledged.items() if by_offset.get(offset) != body]
        assert not lost, f"{len(lost)} acknowledged messages are not where the answer said, first {lost[:3]!r}"
    invented = [body for body in counts if body not in sent]
    assert not invented, f"{len(invented)} messages were never sent, first {invented[:3]!r}"
    doubled = [body for body, count in counts.items() if count > 1]
    assert not doubled, f"{len(doubled)} messages are there twice although each was sent once, first {doubled[:3]!r}"
    for name in {body.split(b":")[0] for body in counts}:
        order = [int(record.body.split(b":")[1]) for record in records if record.body.split(b":")[0] == name]
        assert order == sorted(order), f"the messages of {name!r} changed their order"


def call_until(call: Callable[[], object], timeout_s: float = 10) -> object:
    """Repeat a call while the cluster has no master; the last error when it stays so."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except LogboomError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
