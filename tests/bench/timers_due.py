"""A million messages that are due in one second, end to end, beside plain sends of as many.

    python -m tests.bench.timers_due [--messages N] [--pairs N] [--connections N]

Real processes: a controller, one broker that flushes in the background, and the load program. In each pair: plain sends of all
messages, from the first send until the last can be read by a consumer; the same messages as timers, due in one second, from its
begin until the last can be read; and that again with other timers, due one by one before, in and behind that second, and with
plain sends meanwhile. What was delivered is read back: each timer once, and none early.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench.harness import Row, Sample, load_program, run_load
from tests.bench.sends import BACKGROUND, TOPIC, broker
from tests.bench.timed import QUEUES, Load, delivered, percentile, wait_until, wait_visible, wall_ms
from tests.support.cluster import Cluster, eventually

MESSAGES: Final = 1_000_000
PAIRS: Final = 3
GOAL_RATIO: Final = 1.3
GOAL_TRICKLE_MS: Final = 1000
GOAL_P99_MS: Final = 50

_SECOND_MS: Final = 1000
_TRICKLE: Final = "Trickle"
_TRICKLE_PER_S: Final = 100
_BEFORE_S: Final = 3
_PLAIN: Final = "Plain"
_PROBE: Final = "Probe"
_ROOM_S: Final = 10.0  # between the last send and the due second


@dataclass(frozen=True)
class Due:
    """One measurement: until all could be read, until the last was stored, and what else went on."""

    readable_s: float
    stored_s: float
    amid_max_ms: float = 0.0  # of others that are due in the second of the burst
    trickle_p99_ms: float = 0.0  # and of those behind it
    trickle_max_ms: float = 0.0
    plain: Sample | None = None


def _sent_s(program: Path, messages: int, connections: int) -> float:
    with broker(1, BACKGROUND) as (_, address):
        began_s = time.monotonic()
        Load(program, address, connections).send(TOPIC, messages)
        return wait_visible(address, TOPIC, messages) - began_s


def _due(program: Path, messages: int, connections: int, sent_s: float, *, with_others: bool) -> Due:
    with broker(1, BACKGROUND) as (cluster, address):
        for topic in (_TRICKLE, _PLAIN, _PROBE):
            _make_topic(cluster, topic)
        load = Load(program, address, connections)
        seconds = load.seconds_for_timers(_PROBE, messages) + _ROOM_S
        due_ms = wall_ms() + round(1000 * seconds)
        load.send(TOPIC, messages, due_ms, _SECOND_MS)
        if not with_others:
            wait_until(due_ms)
            return _measured(cluster, address, messages, due_ms)
        trickle_s = 2 * _BEFORE_S + round(3 * sent_s)
        trickle = _TRICKLE_PER_S * trickle_s
        load.send(_TRICKLE, trickle, due_ms - 1000 * _BEFORE_S, 1000 * trickle_s)
        wait_until(due_ms)
        with ThreadPoolExecutor() as threads:
            plain = threads.submit(
                run_load, program, address, _PLAIN, queues=QUEUES, connections=4, in_flight=1, seconds=max(1.0, sent_s)
            )
            found = _measured(cluster, address, messages, due_ms)
            sample, _ = plain.result()
        wait_visible(address, _TRICKLE, trickle)
        others = delivered(cluster.controller_addresses, _TRICKLE, trickle)
        amid_ms = percentile(others.due_in(due_ms, due_ms + _SECOND_MS), 1)
        stored_ms = max(2 * _SECOND_MS, round(1000 * found.stored_s))
        late_ms = others.due_in(due_ms + _SECOND_MS, due_ms + stored_ms)
        return Due(found.readable_s, found.stored_s, amid_ms, percentile(late_ms, 0.99), percentile(late_ms, 1), sample)


def _make_topic(cluster: Cluster, topic: str) -> None:
    cluster.admin.create_topic(topic, queues=QUEUES)
    eventually(f"the route of {topic}", lambda: bool(cluster.admin.queue_offsets(topic)))


def _measured(cluster: Cluster, address: str, messages: int, due_ms: int) -> Due:
    """From the begin of the second, which is now."""
    began_s = time.monotonic() - (wall_ms() - due_ms) / 1000
    readable_s = wait_visible(address, TOPIC, messages) - began_s
    stored_ms = int(delivered(cluster.controller_addresses, TOPIC, messages).stored_ms.max())
    return Due(readable_s, (stored_ms - due_ms) / 1000)


def run(messages: int = MESSAGES, pairs: int = PAIRS, connections: int = 4) -> list[Row]:
    ratios, trickle_ms, p99_ms = [], [], []
    with load_program() as program:
        for number in range(pairs):
            sent_s = _sent_s(program, messages, connections)
            alone = _due(program, messages, connections, sent_s, with_others=False)
            beside = _due(program, messages, connections, sent_s, with_others=True)
            assert beside.plain is not None
            ratios.append(alone.readable_s / sent_s)
            trickle_ms.append(beside.trickle_max_ms)
            p99_ms.append(beside.plain.p99_us / 1000)
            print(
                f"pair {number + 1}: sent {sent_s:.2f} s; due {alone.readable_s:.2f} s (stored {alone.stored_s:.2f}); "
                f"beside others {beside.readable_s:.2f} s, trickle p99 {beside.trickle_p99_ms:.0f} ms, max "
                f"{beside.trickle_max_ms:.0f} ms, in the same second {beside.amid_max_ms:.0f} ms; sends p50 "
                f"{beside.plain.p50_us / 1000:.1f} ms, p99 {p99_ms[-1]:.1f} ms; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    ratio, late_ms, p99 = (statistics.median(each) for each in (ratios, trickle_ms, p99_ms))
    what = f"{messages:,} due in one second"
    rows = [
        Row(
            f"{what}: until the last can be read / plain sends of as many, {pairs} pairs",
            f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"<= {GOAL_RATIO}",
            ratio <= GOAL_RATIO,
        ),
        Row(
            f"{what}: the latest of other timers that are due behind that second, meanwhile",
            f"{late_ms:.0f} ms",
            f"<= {GOAL_TRICKLE_MS} ms",
            late_ms <= GOAL_TRICKLE_MS,
        ),
        Row(f"{what}: p99 of sends meanwhile, 4 x 1", f"{p99:.1f} ms", f"<= {GOAL_P99_MS} ms", p99 <= GOAL_P99_MS),
    ]
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="that are due in one second (%(default)s)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="measurements of each (%(default)s)")
    parser.add_argument("--connections", type=int, default=4, help="of the producer, 64 in flight each (%(default)s)")
    options = parser.parse_args()
    run(options.messages, options.pairs, options.connections)


if __name__ == "__main__":
    main()
