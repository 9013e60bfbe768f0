"""What the daemons hold in memory: idle, and after many sends.

    python -m tests.bench.memory [--sends N]

Resident memory of one controller and one broker, the process's own (anonymous) and pages of files apart, as the kernel counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from typing import Final

from tests.bench.harness import load_program, run_load
from tests.bench.processes import Memory, memory_of
from tests.bench.sends import TOPIC, broker

BROKER_GOAL_MB: Final = 120
CONTROLLER_GOAL_MB: Final = 80

_IDLE_S: Final = 5.0  # a few heartbeats, polls and ticks


def run(sends: int) -> list[tuple[str, Memory, int | None]]:
    """(what, its memory, the goal in MB) per row."""
    with load_program() as program, broker(1) as (cluster, address):
        time.sleep(_IDLE_S)
        controller, server = cluster.controllers[0].pid, cluster.brokers[0].pid
        rows: list[tuple[str, Memory, int | None]] = [
            ("idle controller", memory_of(controller), CONTROLLER_GOAL_MB),
            ("idle broker", memory_of(server), BROKER_GOAL_MB),
        ]
        acknowledged = 0
        while acknowledged < sends:
            acknowledged += run_load(program, address, TOPIC, seconds=2)[1]
        rows.append((f"broker after {acknowledged} sends of 1 KiB", memory_of(server), None))
        print_table(rows)
        return rows


def print_table(rows: Iterable[tuple[str, Memory, int | None]]) -> None:
    for what, memory, goal_mb in rows:
        goal = f"  goal {goal_mb} MB" if goal_mb else ""
        print(
            f"{what:44} RSS {memory.resident_mb:6.1f} MB: anonymous {memory.anonymous_mb:6.1f}, files {memory.file_mb:5.1f}"
            f"  (PSS {memory.shared_once_mb:.1f}){goal}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=200_000)
    run(parser.parse_args().sends)


if __name__ == "__main__":
    main()
