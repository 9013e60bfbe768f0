"""Measuring in pairs: A and B in turn, a ratio per pair, medians. One run on a shared machine proves only ratios.

Nothing here judges; the numbers are printed as a table and, with `--json FILE`, kept.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sample:
    """One measurement: messages per second, what the load saw, and the server's CPU time per message (0: not measured)."""

    rate: float
    p50_us: int = 0
    p99_us: int = 0
    cpu_us: float = 0.0


@dataclass(frozen=True)
class Pairs:
    """The samples of A and B of one row, in the order they were taken."""

    name: str
    a: list[Sample]
    b: list[Sample]

    @property
    def ratios(self) -> list[float]:
        return [a.rate / b.rate for a, b in zip(self.a, self.b, strict=True)]


def in_pairs(name: str, pairs: int, a: Callable[[], Sample], b: Callable[[], Sample]) -> Pairs:
    """Take A and B in turn, after one uncounted round of each."""
    a()
    b()
    samples_a, samples_b = [], []
    for _ in range(pairs):
        samples_a.append(a())
        samples_b.append(b())
    result = Pairs(name, samples_a, samples_b)
    print_row(result)
    return result


def print_row(row: Pairs) -> None:
    ratios = sorted(row.ratios)
    a, b = (statistics.median(sample.rate for sample in side) for side in (row.a, row.b))
    p99 = statistics.median(sample.p99_us for sample in row.a)
    print(
        f"{row.name:58} A {a:9.0f}/s  B {b:9.0f}/s  A/B {statistics.median(ratios):5.2f} "
        f"({ratios[0]:.2f}-{ratios[-1]:.2f})  p99 of A {p99 / 1000:.1f} ms{_cpu(row)}",
        flush=True,
    )


def _cpu(row: Pairs) -> str:
    """The servers' CPU time per message, where it was measured."""
    a, b = (statistics.median(sample.cpu_us for sample in side) for side in (row.a, row.b))
    return f"  CPU {a:.1f} / {b:.1f} us" if a and b else ""


@contextmanager
def load_program() -> Iterator[Path]:
    """The compiled load generator."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "load"
        subprocess.run(["cc", "-O2", "-o", program, ROOT / "tests/bench/load.c"], check=True)
        yield program


def run_load(
    program: Path,
    address: str,
    topic: str,
    *,
    queues: int = 8,
    connections: int = 1,
    in_flight: int = 64,
    seconds: float = 5,
    body_bytes: int = 1024,
    batch: int = 0,
) -> tuple[Sample, int]:
    """Run the load; returns the sample and how many messages were acknowledged. Any refused send is an error."""
    host, port = address.split(":")
    words = [host, port, topic, queues, connections, in_flight, seconds, body_bytes, batch]
    output = subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True).stdout
    result = json.loads(output)
    if result["failures"]:
        raise RuntimeError(f"{result['failures']} sends were refused")
    return Sample(result["messages_per_s"], result["p50_us"], result["p99_us"]), result["messages"]


@contextmanager
def python_server(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server of ours, killed at the end."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
