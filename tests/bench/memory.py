"""What the daemons hold in memory: idle, and after many sends.

    python -m tests.bench.memory [--sends N]

Resident memory of one controller and one broker, the process's own (anonymous) and pages of files apart, as the kernel counts.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Final

from tests.bench.harness import Row, load_program, run_load
from tests.bench.processes import Memory, memory_of
from tests.bench.sends import TOPIC, broker

BROKER_GOAL_MB: Final = 120
CONTROLLER_GOAL_MB: Final = 80

_IDLE_S: Final = 5.0  # a few heartbeats, polls and ticks


@dataclass(frozen=True)
class Reading:
    """What one process held at one moment."""

    what: str
    memory: Memory
    goal_mb: int | None = None

    @property
    def row(self) -> Row:
        memory = self.memory
        figure = f"RSS {memory.resident_mb:.0f} MB (anonymous {memory.anonymous_mb:.0f}, files {memory.file_mb:.0f})"
        if self.goal_mb is None:
            return Row(f"memory: {self.what}", figure)
        return Row(f"memory: {self.what}", figure, f"< {self.goal_mb} MB", memory.resident_mb < self.goal_mb)


def run(sends: int) -> list[Reading]:
    """Idle, then after at least so many sends."""
    with load_program() as program, broker(1) as (cluster, address):
        time.sleep(_IDLE_S)
        controller, server = cluster.controllers[0].pid, cluster.brokers[0].pid
        readings = [
            Reading("idle controller", memory_of(controller), CONTROLLER_GOAL_MB),
            Reading("idle broker", memory_of(server), BROKER_GOAL_MB),
        ]
        acknowledged = 0
        while acknowledged < sends:
            acknowledged += run_load(program, address, TOPIC, seconds=2)[1]
        readings.append(Reading(f"broker after {acknowledged} sends of 1 KiB", memory_of(server)))
    for reading in readings:
        row = reading.row
        print(f"{row.name:58} {row.figure}, PSS {reading.memory.shared_once_mb:.0f} MB  {row.goal}", flush=True)
    return readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=200_000)
    run(parser.parse_args().sends)


if __name__ == "__main__":
    main()
