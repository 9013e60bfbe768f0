"""Three replicas that all acknowledge: against one replica, and against Apache RocketMQ 5.3.3 with the same guarantee.

    python -m tests.bench.replication [--pairs N] [--seconds S] [--only TEXT] [--apache-pairs N] [--warm-up S]

The original runs in controller mode with `allAckInSyncStateSet=true`, flushes in the background, and gets a JVM with its full
compiler, warmed up; ours is measured with the same durability (`replication.ack_after=append`). Never both at once. Stored counts
are checked on both sides. Sends that a system refuses ("busy") or gives up are no sends. Where the original cannot be had, those
rows say so.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Protocol

from tests.bench.compare.run import Plan, compare
from tests.bench.compare.systems import REPLICAS
from tests.bench.harness import Row, Sample, in_pairs, load_program, run_load
from tests.bench.sends import BACKGROUND, TOPIC, measured

_REPLICAS = 3


class Load(Protocol):
    """Runs the load against an address; gives the sample and how many messages were acknowledged."""

    def __call__(self, address: str, *, in_flight: int, seconds: float) -> tuple[Sample, int]: ...


def run(pairs: int, seconds: float, apache_pairs: int, warm_up_s: float, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    with load_program() as program:

        def load(address: str, *, in_flight: int, seconds: float) -> tuple[Sample, int]:
            return run_load(program, address, TOPIC, seconds=seconds, in_flight=in_flight, may_fail=True)

        rows = against_one_replica(load, pairs, seconds, only)
    if not apache_pairs:
        return rows
    plan = Plan(apache_pairs, seconds, warm_up_s, faults=0, setups=(REPLICAS,), only=only)
    return rows + compare(plan)


def against_one_replica(load: Load, pairs: int, seconds: float, only: str) -> list[Row]:
    rows = []
    for durability, settings in (("fdatasync", ()), ("background", BACKGROUND)):
        name = f"1 x 64, {durability}: three replicas / one"
        if only not in name:
            continue
        three, one = (
            measured(count, settings, lambda address: load(address, in_flight=64, seconds=seconds))
            for count in (_REPLICAS, 1)
        )
        found = in_pairs(name, pairs, three, one, 0.5)
        rows.append(found.row)
        slower = [a.p99_us / b.p99_us for a, b in zip(found.a, found.b, strict=True)]
        ratio = statistics.median(slower)
        figure = f"A/B {ratio:.2f} ({min(slower):.2f}-{max(slower):.2f})"
        rows.append(Row(f"{name}, p99", figure, "A/B <= 3", ratio <= 3))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--apache-pairs", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=20, help="seconds of load before each side is measured")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    for row in run(options.pairs, options.seconds, options.apache_pairs, options.warm_up, options.only):
        verdict = "" if row.met is None else "  met" if row.met else "  MISSED"
        print(f"{row.name}  {row.figure}  {row.goal}{verdict}")


if __name__ == "__main__":
    main()
