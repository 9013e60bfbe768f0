"""Sends written in every way that clients may write them, each against the ordinary one: what a variant costs a message more.

    python -m tests.bench.send_variants [--pairs N] [--seconds S] [--only TEXT] [--mode python|native] [--json FILE]

All rows are of one broker in one run, background flush, 64 in flight on one connection; frames come from `send_frames` and from
what the original's clients wrote (`tests/golden/sends`). A is the variant, B an ordinary send of as many bytes and messages.
The stored count is compared with the acknowledged one after every row. The last row is the worst.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from remoting.frame import Command, decode_frames
from tests.bench.harness import ROOT, Pairs, Row, Sample, load_program, print_row, run_frames
from tests.bench.processes import cpu_seconds
from tests.bench.send_frames import LONG_TOPIC, TOPIC, Frame, Variant, recorded, topic_of, variants
from tests.bench.sends import BACKGROUND, check_stored
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

_RECORDINGS: Final = ROOT / "tests/golden/sends"
_SETTINGS: Final = (
    *BACKGROUND,
    "transactions.check_interval_ms=86400000",  # nobody is asked about the half messages meanwhile
    "transactions.max_open=10000000",
    "store.index_enabled=false",  # follows at its own pace: what it costs would be counted in some other row
)
_GOAL: Final = 0.5  # of the rate by CPU time of an ordinary send


@contextmanager
def _broker(topics: Sequence[str], mode: str) -> Iterator[tuple[Cluster, str]]:
    with tempfile.TemporaryDirectory(prefix="bench") as directory:
        settings = (*_SETTINGS, f"kernel.mode={mode}")
        with Cluster(Path(directory), controllers=1, replicas=1, broker_settings=settings) as cluster:
            cluster.start()
            for topic in topics:
                call_until(lambda name=topic: cluster.admin.create_topic(name, queues=8))
            eventually("the topics' routes", lambda: all(cluster.admin.queue_offsets(topic) for topic in topics))
            yield cluster, cluster.broker_addresses[cluster.master()]


class _Bench:
    """One broker, and the load program."""

    def __init__(self, cluster: Cluster, address: str, program: Path, directory: Path) -> None:
        self._cluster = cluster
        self._address = address
        self._program = program
        self._file = directory / "frames"
        [self._broker] = cluster.brokers

    def _stored(self, topic: str) -> int:
        return sum(each.max_offset for each in self._cluster.admin.queue_offsets(topic))

    def _sample(self, frames: Sequence[Frame], topic: str, seconds: float) -> Sample:
        self._file.write_bytes(b"".join(frame.packed() for frame in frames))
        own = {topic, TOPIC}
        before, used_s = sum(map(self._stored, own)), cpu_seconds(self._broker.pid)
        sample, acknowledged = run_frames(self._program, self._address, self._file, seconds=seconds)
        check_stored(acknowledged, lambda: sum(map(self._stored, own)) - before)
        return replace(sample, cpu_us=(cpu_seconds(self._broker.pid) - used_s) * 1e6 / acknowledged)

    def row(self, variant: Variant, pairs: int, seconds: float) -> Pairs:
        a, b = [], []
        for number in range(pairs + 1):
            length_s = seconds if number else min(seconds, 0.3)
            a.append(self._sample(variant.frames, variant.stored_in, length_s))
            b.append(self._sample(variant.ordinary, TOPIC, length_s))
        result = Pairs(variant.name, a[1:], b[1:])
        print_row(result)
        return result


def _recordings() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(_RECORDINGS.iterdir())} if _RECORDINGS.exists() else {}


def _topics_in(data: bytes) -> list[str]:
    commands: list[Command] = []
    decode_frames(data, commands)
    return [topic_of(command) for command in commands]


def run(pairs: int, seconds: float, only: str = "", mode: str = "auto") -> list[Row]:
    """All rows whose name contains `only`, and the worst."""
    recordings = _recordings()
    every = variants(time.time_ns() // 1_000_000)
    for client, data in recordings.items():
        every += recorded(client, data)
    topics = sorted({TOPIC, LONG_TOPIC, *(topic for data in recordings.values() for topic in _topics_in(data))})
    chosen = [each for each in every if only in each.name]
    with (
        tempfile.TemporaryDirectory() as directory,
        load_program() as program,
        _broker(topics, mode) as (cluster, address),
    ):
        bench = _Bench(cluster, address, program, Path(directory))
        found = [bench.row(each, pairs, seconds) for each in chosen]
    rows = [_row(each) for each in found]
    worst = max(found, key=_cost)
    return [*rows, replace(_row(worst), name=f"the worst of these {len(found)}: {worst.name}")]


def _cost(pairs: Pairs) -> float:
    """By how much a message of A costs more CPU time than one of B."""
    a_us, b_us = pairs.cpu_us
    return a_us / b_us


def _row(pairs: Pairs) -> Row:
    goal = f"by CPU time >= {_GOAL}"
    return replace(pairs.row, name=f"{pairs.name} / ordinary", goal=goal, met=_cost(pairs) <= 1 / _GOAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--mode", default="auto", choices=("auto", "native", "python"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = run(options.pairs, options.seconds, options.only, options.mode)
    for row in rows:
        print(f"| {row.name} | {row.figure} | {row.goal} | {'met' if row.met else '**missed**'} |")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
