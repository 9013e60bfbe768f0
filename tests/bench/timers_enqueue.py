"""What it costs the broker to take a message that waits for its time, beside a plain send, over sockets.

    python -m tests.bench.timers_enqueue [--pairs N] [--seconds S] [--only TEXT]

Real processes: one broker that flushes in the background, and the load program with 64 sends in flight on one connection, and on
four; over gRPC h2load, with 16 on each of four. The messages are due later than the measurement lasts. The figure is the broker's
CPU time for each message, with all that it does in its background, and the rate beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from remoting.names import TIMER_TOPIC
from tests.bench.grpc_sends import send_request
from tests.bench.h2load import GrpcLoad
from tests.bench.harness import Pairs, Row, Sample, in_pairs, load_program, run_load
from tests.bench.processes import cpu_seconds
from tests.bench.sends import BACKGROUND, TOPIC, broker, check_stored
from tests.bench.timed import QUEUES, queue_end, visible, wall_ms
from tests.support.cluster import eventually

PAIRS: Final = 3
SECONDS: Final = 4.0
GOAL: Final = 1.5

_AHEAD_MS: Final = 3_600_000
_GRPC_TOPIC: Final = "Mixed"
_REQUESTS: Final = 100_000_000  # more than can be sent: the time ends it


def _measured(program: Path, seconds: float, connections: int, *, is_timed: bool) -> Sample:
    with broker(1, BACKGROUND) as (cluster, address):
        pid = cluster.brokers[0].pid
        before_s = cpu_seconds(pid)
        sample, acknowledged = run_load(
            program,
            address,
            TOPIC,
            queues=QUEUES,
            connections=connections,
            seconds=seconds,
            requests=_REQUESTS,
            due_ms=wall_ms() + _AHEAD_MS if is_timed else 0,
        )
        if is_timed:
            check_stored(acknowledged, lambda: queue_end(address, TIMER_TOPIC, 0))
        else:
            check_stored(acknowledged, lambda: visible(address, TOPIC))
        return replace(sample, cpu_us=1e6 * (cpu_seconds(pid) - before_s) / acknowledged)


def _measured_grpc(seconds: float, connections: int, streams: int, *, is_timed: bool) -> Sample:
    """Both to a topic that takes both."""
    with broker(1, BACKGROUND) as (cluster, address):
        cluster.admin.create_topic(_GRPC_TOPIC, queues=QUEUES, message_type="MIXED")
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(_GRPC_TOPIC)))
        message = send_request(_GRPC_TOPIC, 1024, wall_ms() + _AHEAD_MS if is_timed else 0)
        load = GrpcLoad("SendMessage", message, connections, streams, seconds)
        sample, acknowledged = load(cluster.grpc_addresses[0], cluster.brokers[0].pid)
        if is_timed:
            check_stored(acknowledged, lambda: queue_end(address, TIMER_TOPIC, 0))
        else:
            check_stored(acknowledged, lambda: visible(address, _GRPC_TOPIC))
        return sample


def run(pairs: int = PAIRS, seconds: float = SECONDS, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    rows = []
    with load_program() as program:
        measured: dict[str, Callable[..., Sample]] = {
            "timed sends / plain sends, 1 x 64": partial(_measured, program, seconds, 1),
            "timed sends / plain sends, 4 x 64": partial(_measured, program, seconds, 4),
            "timed sends / plain sends over gRPC, 4 x 16": partial(_measured_grpc, seconds, 4, 16),
        }
        for name, measure in measured.items():
            if only in name:
                timed, plain = (partial(measure, is_timed=is_timed) for is_timed in (True, False))
                rows += _rows(in_pairs(name, pairs, timed, plain))
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def _rows(pairs: Pairs) -> list[Row]:
    cpu: Callable[[tuple[Sample, Sample]], float] = lambda pair: pair[0].cpu_us / pair[1].cpu_us  # noqa: E731
    ratios = list(map(cpu, zip(pairs.a, pairs.b, strict=True)))
    ratio, (timed_us, plain_us) = statistics.median(ratios), pairs.cpu_us
    figure = f"{ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), {timed_us:.1f} / {plain_us:.1f} us"
    return [pairs.row, Row(f"{pairs.name}: the broker's CPU time of each", figure, f"<= {GOAL}", ratio <= GOAL)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="measurements of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each lasts (%(default)s)")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    run(options.pairs, options.seconds, options.only)


if __name__ == "__main__":
    main()
