"""How late timers are at a steady rate, in the log and at a consumer, as percentiles and as a picture.

    python -m tests.bench.timers_lateness [--per-second N] [--seconds S] [--flush background|fdatasync] [--svg FILE]

Real processes: a controller, one broker, and the load program, which sends all timers before the first is due. They are due one
after the other, evenly. A consumer pulls one after another from each queue and waits for what is not there yet; it notes when a
message has come. What was delivered is read back: each timer once, and none early.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.record.codec import decode_records
from remoting.timer_names import DUE_MS
from tests.bench.distribution import svg
from tests.bench.harness import Row, load_program
from tests.bench.sends import BACKGROUND, TOPIC, broker
from tests.bench.timed import QUEUES, Load, delivered, percentile, wait_until, wait_visible, wall_ms
from tests.support.cluster import eventually

PER_SECOND: Final = 1000
SECONDS: Final = 40.0
GOALS_MS: Final = {0.5: 20, 0.99: 100}
FLUSH: Final = {"background": BACKGROUND, "fdatasync": ()}

_PROBE: Final = "Probe"
_ROOM_S: Final = 5.0
_HOLD_MS: Final = 5000


class Consumer:
    """Pulls from every queue of the topic, and keeps how late each message came."""

    def __init__(self, address: str, messages: int) -> None:
        self.late_ms: list[int] = []
        self._address = address
        self._messages = messages
        self._all_came = threading.Event()
        self._threads = [threading.Thread(target=self._pull, args=(queue_id,)) for queue_id in range(QUEUES)]

    def __enter__(self) -> Consumer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._all_came.set()
        for thread in self._threads:
            thread.join()

    def wait(self, timeout_s: float) -> None:
        """Until all messages came; raises RuntimeError after that time."""
        if not self._all_came.wait(timeout_s):
            raise RuntimeError(f"{len(self.late_ms)} of {self._messages} messages came to the consumer")

    def _pull(self, queue_id: int) -> None:
        offset = 0
        with SocketConnection(self._address) as connection:
            while not self._all_came.is_set():
                offset = self._pull_once(connection, queue_id, offset)

    def _pull_once(self, connection: SocketConnection, queue_id: int, offset: int) -> int:
        fields = {
            **{"consumerGroup": "readers", "topic": TOPIC, "queueId": str(queue_id), "queueOffset": str(offset)},
            **{"maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(_HOLD_MS)},
            **{"subscription": "*", "subVersion": "0", "expressionType": "TAG"},
        }
        accepted = (codes.SUCCESS, codes.PULL_NOT_FOUND)
        answer = connection.call(codes.PULL_MESSAGE, fields, timeout_ms=4 * _HOLD_MS, accept=accepted)
        now_ms = wall_ms()
        if answer.code == codes.SUCCESS:
            found = [int(record.property_map()[DUE_MS]) for record in decode_records(answer.body)]
            self.late_ms.extend(now_ms - due_ms for due_ms in found)
            if len(self.late_ms) >= self._messages:
                self._all_came.set()
        return int(answer.ext["nextBeginOffset"])


def measure(program: Path, per_second: int, seconds: float, settings: tuple[str, ...]) -> dict[str, Any]:
    """How late all timers were: `stored` in the log, and `received` by a consumer (ms)."""
    messages = round(per_second * seconds)
    with broker(1, settings) as (cluster, address):
        cluster.admin.create_topic(_PROBE, queues=QUEUES)
        eventually("the route of the probe", lambda: bool(cluster.admin.queue_offsets(_PROBE)))
        load = Load(program, address)
        due_ms = wall_ms() + round(1000 * (load.seconds_for_timers(_PROBE, messages) + _ROOM_S))
        load.send(TOPIC, messages, due_ms, round(1000 * seconds))
        with Consumer(address, messages) as consumer:
            wait_until(due_ms)
            consumer.wait(2 * seconds + 60)
        wait_visible(address, TOPIC, messages)
        stored = delivered(cluster.controller_addresses, TOPIC, messages).late_ms
    return {"stored": stored, "received": np.array(consumer.late_ms)}


def run(
    per_second: int = PER_SECOND, seconds: float = SECONDS, flush: str = "fdatasync", picture: Path | None = None
) -> list[Row]:
    with load_program() as program:
        found = measure(program, per_second, seconds, FLUSH[flush])
    rows = []
    for name, late_ms in found.items():
        figures = {part: percentile(late_ms, part) for part in (0.5, 0.99, 0.999, 1)}
        is_met = all(figures[part] <= goal_ms for part, goal_ms in GOALS_MS.items())
        rows.append(
            Row(
                f"{per_second:,} timers a second for {seconds:g} s, {flush}: {name} late",
                f"p50 {figures[0.5]:.0f} ms, p99 {figures[0.99]:.0f}, 99.9 % {figures[0.999]:.0f}, max {figures[1]:.0f}; load "
                f"{os.getloadavg()[0]:.1f}",
                "p50 <= 20 ms, p99 <= 100 ms",
                is_met,
            )
        )
    if picture is not None:
        title = f"Lateness of timers, {per_second:,} a second for {seconds:g} s"
        picture.write_text(
            svg(title, {"in the log": found["stored"], "at a consumer": found["received"]}), encoding="utf-8"
        )
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-second", type=int, default=PER_SECOND, help="timers that are due (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for how long (%(default)s)")
    parser.add_argument(
        "--flush", choices=FLUSH, default="fdatasync", help="before it acknowledges, or in the background (%(default)s)"
    )
    parser.add_argument("--svg", type=Path, help="write the distribution to this file, as a picture")
    options = parser.parse_args()
    run(options.per_second, options.seconds, options.flush, options.svg)


if __name__ == "__main__":
    main()
