"""Timers that are sent by the load program, and when they came: what the benchmarks of timers on real processes share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tasks.spark.cluster import Cluster as Asked
from tasks.spark.cluster import find_ranges
from tasks.spark.options import Options
from tasks.spark.reader import read_ranges
from tests.bench.harness import run_load

QUEUES: Final = 8
_LONG_S: Final = 3600.0
_PROBE_SHARE: Final = 50  # one of so many messages is sent first, to learn how long the others take
_LEAST_PROBED: Final = 2000
_SLACK: Final = 1.5
_LOOK_S: Final = 0.02

Late = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Load:
    """How messages are sent: the program, where to, and by how many connections with how many requests in flight each."""

    program: Path
    address: str
    connections: int = 4
    in_flight: int = 64
    body_bytes: int = 1024
    may_fail: bool = False

    def send(self, topic: str, messages: int, due_ms: int = 0, spread_ms: int = 1) -> tuple[float, int]:
        """Send so many and wait for all answers; returns their rate a second, and how many were acknowledged, which is all unless
        some may fail."""
        sample, acknowledged = run_load(
            self.program,
            self.address,
            topic,
            queues=QUEUES,
            connections=self.connections,
            in_flight=self.in_flight,
            seconds=_LONG_S,
            body_bytes=self.body_bytes,
            requests=messages,
            due_ms=due_ms,
            spread_ms=spread_ms,
            may_fail=self.may_fail,
        )
        if acknowledged != messages and not self.may_fail:
            raise RuntimeError(f"{acknowledged} of {messages} sends were acknowledged")
        return sample.rate, acknowledged

    def seconds_for_timers(self, topic: str, messages: int) -> float:
        """How long it takes to send so many timers, and some more: a few are sent to this topic, due in a moment."""
        probed = max(_LEAST_PROBED, messages // _PROBE_SHARE)
        rate, acknowledged = self.send(topic, probed, wall_ms() + 1000, 1000)
        wait_visible(self.address, topic, acknowledged)
        return _SLACK * messages / rate


def wall_ms() -> int:
    """By the clock that timers are due by."""
    return time.time_ns() // 1_000_000


def wait_until(at_ms: int) -> None:
    """Wait for a time of that clock; raises RuntimeError when it has passed."""
    left_ms = at_ms - wall_ms()
    if left_ms < 0:
        raise RuntimeError(
            f"sending took {-left_ms} ms longer than there was until the timers were due: give more time"
        )
    time.sleep(left_ms / 1000)


def visible(address: str, topic: str) -> int:
    """How many messages of the topic a consumer can read."""
    with SocketConnection(address) as connection:
        return _visible(connection, topic)


def wait_visible(address: str, topic: str, messages: int, patience_s: float = 600) -> float:
    """Wait until so many messages can be read; the monotonic time of that, in seconds. Raises RuntimeError for more of them."""
    deadline_s = time.monotonic() + patience_s
    with SocketConnection(address) as connection:
        while (found := _visible(connection, topic)) < messages:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"{found} of {messages} messages of {topic} can be read after {patience_s:.0f} s")
            time.sleep(_LOOK_S)
    if found > messages:
        raise RuntimeError(f"{found} messages of {topic} can be read, and {messages} were sent")
    return time.monotonic()


def _visible(connection: SocketConnection, topic: str) -> int:
    return sum(_end(connection, topic, queue_id) for queue_id in range(QUEUES))


def queue_end(address: str, topic: str, queue_id: int) -> int:
    """How many messages a queue has had, as far as they can be read."""
    with SocketConnection(address) as connection:
        return _end(connection, topic, queue_id)


def _end(connection: SocketConnection, topic: str, queue_id: int) -> int:
    where = {"topic": topic, "queueId": str(queue_id)}
    return int(connection.call(codes.GET_MAX_OFFSET, where, timeout_ms=60_000).ext["offset"])


@dataclass(frozen=True)
class Delivered:
    """What a topic's log says: when each timer was due and stored (ms)."""

    due_ms: Late
    stored_ms: Late

    @property
    def late_ms(self) -> Late:
        return self.stored_ms - self.due_ms

    def due_in(self, begin_ms: int, end_ms: int) -> Late:
        """How late those were that were due in [begin, end)."""
        return self.late_ms[(self.due_ms >= begin_ms) & (self.due_ms < end_ms)]


def delivered(controllers: list[str], topic: str, messages: int) -> Delivered:
    """Read the topic whole. Raises RuntimeError unless each timer was delivered once, and none early."""
    options = Options.parse({"controllers": ",".join(controllers), "subscribe": topic})
    columns = ("store_ts", "timer_due_ms", "timer_place")
    with Asked(options.controllers) as asked:
        batches = list(read_ranges(asked, find_ranges(asked, options), columns))
    table = pa.Table.from_batches(batches)
    stored_ms = table["store_ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy()
    due_ms, places = table["timer_due_ms"].to_numpy(), table["timer_place"].to_numpy()
    if not len(np.unique(places)) == len(places) == messages:
        raise RuntimeError(
            f"{messages} timers were sent, {len(places)} were delivered, {len(np.unique(places))} are different"
        )
    if (stored_ms < due_ms).any():
        raise RuntimeError(f"{(stored_ms < due_ms).sum()} timers were early")
    return Delivered(due_ms, stored_ms)


def percentile(late_ms: Any, part: float) -> float:
    """Of these, which may be none."""
    return float(np.percentile(late_ms, 100 * part)) if len(late_ms) else 0.0
