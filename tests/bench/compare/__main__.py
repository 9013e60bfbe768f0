"""Logboom beside Apache RocketMQ 5.3.3, in pairs: never both at once, the same durability on both sides, stored counts checked.

    python -m tests.bench.compare [--pairs N] [--seconds S] [--warm-up S] [--processors N] [--faults N] [--setup NAME ...]
                                  [--only TEXT] [--due N] [--beside-nothing] [--json FILE]

For each setup (see systems.py) both systems are started in turn, as often as there are pairs; each
is warmed up, and then does all of the setup's work. Systems and load programs share the first processors of the machine. A row
is the median of the ratios with their range. "Busy" answers and failures are no sends. Memory is read after the work: what is the
process's own, and what are pages of files that it maps.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench.compare.run import Plan, compare
from tests.bench.compare.systems import SETUPS
from tests.bench.harness import Row


def print_table(rows: Sequence[Row]) -> None:
    """As the tables of docs/benchmarks.md."""
    print("\n| what | figure | goal | |\n|---|---|---|---|")
    for row in rows:
        verdict = "" if row.met is None else "met" if row.met else "**missed**"
        print(f"| {row.name} | {row.figure} | {row.goal} | {verdict} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="how long each measurement lasts (%(default)s)")
    parser.add_argument(
        "--warm-up",
        type=float,
        default=20,
        help="seconds of load before the original is measured, ours a quarter (%(default)s)",
    )
    parser.add_argument(
        "--processors",
        type=int,
        default=2,
        help="how many there are for the system and its load (%(default)s; 0 = all)",
    )
    parser.add_argument(
        "--faults", type=int, default=3, help="kills and freezes of the master, of each system (%(default)s)"
    )
    parser.add_argument("--setup", nargs="*", choices=SETUPS, default=list(SETUPS), help="which setups (all)")
    parser.add_argument("--only", default="", help="work whose name contains this")
    parser.add_argument("--due", type=int, default=100_000, help="timers that are due in one second (%(default)s)")
    parser.add_argument(
        "--beside-nothing",
        action="store_true",
        help="beside a broker that stores nothing and costs as little as one can: what the load leaves one to gain",
    )
    parser.add_argument("--json", type=Path, help="write the table's rows to this file, too")
    options = parser.parse_args()
    if options.processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.processors])
    print(f"on {len(os.sched_getaffinity(0))} of {os.cpu_count()} processors", flush=True)
    plan = Plan(
        options.pairs,
        options.seconds,
        options.warm_up,
        options.faults,
        tuple(options.setup),
        options.only,
        options.due,
        options.beside_nothing,
    )
    rows = compare(plan)
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
