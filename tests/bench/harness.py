"""Measuring in pairs: A and B in turn, a ratio per pair, medians. One run on a shared machine proves only ratios.

Rows are printed as they are measured; what a row means beside its goal is in `Row`, of which `python -m tests.bench` makes one
table.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Sample:
    """One measurement: acknowledged messages per second, what the load saw, the server's CPU time per message (0: not measured),
    and how many sends it refused or gave up. Of less than 10,000 sends `p9999_us` is the longest."""

    rate: float
    p50_us: int = 0
    p99_us: int = 0
    cpu_us: float = 0.0
    failures: int = 0
    p9999_us: int = 0


@dataclass(frozen=True)
class Row:
    """One line of the final table; `met` is None where there is no goal."""

    name: str
    figure: str
    goal: str = ""
    met: bool | None = None


@dataclass(frozen=True)
class Pairs:
    """The samples of A and B of one row, in the order they were taken. `goal` is the least that the median ratio should be."""

    name: str
    a: list[Sample]
    b: list[Sample]
    goal: float | None = None

    @property
    def ratios(self) -> list[float]:
        return [a.rate / b.rate for a, b in zip(self.a, self.b, strict=True)]

    @property
    def rates(self) -> tuple[float, float]:
        """The median rates of A and B."""
        return _medians(self, lambda sample: sample.rate)

    @property
    def cpu_us(self) -> tuple[float, float]:
        """The median CPU time per message of A's and B's servers; 0 where it was not measured."""
        return _medians(self, lambda sample: sample.cpu_us)

    @property
    def row(self) -> Row:
        ratio = statistics.median(self.ratios)
        a_us, b_us = self.cpu_us
        cpu = f"; by CPU time {b_us / a_us:.2f} ({a_us:.1f} / {b_us:.1f} us)" if a_us and b_us else ""
        figure = f"A/B {ratio:.2f} ({min(self.ratios):.2f}-{max(self.ratios):.2f}), A {self.rates[0]:.0f}/s{cpu}"
        failed = [sum(sample.failures for sample in side) for side in (self.a, self.b)]
        if any(failed):
            figure += f"; failed sends {failed[0]} / {failed[1]}"
        if self.goal is None:
            return Row(self.name, figure)
        return Row(self.name, figure, f"A/B >= {self.goal}", ratio >= self.goal)


def _medians(row: Pairs, value: Callable[[Sample], float]) -> tuple[float, float]:
    return statistics.median(map(value, row.a)), statistics.median(map(value, row.b))


def in_pairs(
    name: str, pairs: int, a: Callable[[], Sample], b: Callable[[], Sample], goal: float | None = None
) -> Pairs:
    """Take A and B in turn, after one uncounted round of each."""
    a()
    b()
    samples_a, samples_b = [], []
    for _ in range(pairs):
        samples_a.append(a())
        samples_b.append(b())
    result = Pairs(name, samples_a, samples_b, goal)
    print_row(result)
    return result


def print_row(row: Pairs) -> None:
    ratios = sorted(row.ratios)
    a, b = row.rates
    a_us, b_us = row.cpu_us
    p99 = statistics.median(sample.p99_us for sample in row.a)
    print(
        f"{row.name:58} A {a:9.0f}/s  B {b:9.0f}/s  A/B {statistics.median(ratios):5.2f} "
        f"({ratios[0]:.2f}-{ratios[-1]:.2f})  p99 of A {p99 / 1000:.1f} ms"
        + (f"  CPU {a_us:.1f} / {b_us:.1f} us" if a_us and b_us else ""),
        flush=True,
    )


@contextmanager
def load_program(*, secure: bool = False) -> Iterator[Path]:
    """The compiled load generator; `secure`: with TLS, for which OpenSSL's headers have to be there."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "load"
        source = ROOT / "tests/bench/load.c"
        more = ("-DSECURE", "-lssl", "-lcrypto") if secure else ()
        subprocess.run(["cc", "-O2", "-o", program, source, *more], check=True)
        yield program


@contextmanager
def pull_program() -> Iterator[Path]:
    """The compiled load of who reads; `pull.c` says how it is called."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "pull"
        subprocess.run(["cc", "-O2", "-o", program, ROOT / "tests/bench/pull.c"], check=True)
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
    may_fail: bool = False,
    requests: int = 0,
    due_ms: int = 0,
    spread_ms: int = 1,
    environment: Mapping[str, str] | None = None,
) -> tuple[Sample, int]:
    """Run the load; returns the sample and how many messages were acknowledged. A refused send is an error, or else counted.

    With `requests` the load ends after so many, and they may be timers: due from `due_ms` on, spread over `spread_ms`.
    """
    host, port = address.split(":")
    words: list[object] = [host, port, topic, queues, connections, in_flight, seconds, body_bytes, batch]
    if requests:
        words += [requests, *((due_ms, spread_ms) if due_ms else ())]
    return _result(program, words, may_fail, environment)


def run_frames(
    program: Path,
    address: str,
    frames: Path,
    *,
    connections: int = 1,
    in_flight: int = 64,
    seconds: float = 5,
    environment: Mapping[str, str] | None = None,
) -> tuple[Sample, int]:
    """Run the load with the frames of a file (`load.c` says how they lie in it); as `run_load`."""
    host, _, port = address.rpartition(":")
    return _result(program, [host, port, f"@{frames}", connections, in_flight, seconds], False, environment)


def _result(
    program: Path, words: Sequence[object], may_fail: bool, environment: Mapping[str, str] | None = None
) -> tuple[Sample, int]:
    environ = {**os.environ, **(environment or {})}
    done = subprocess.run([program, *map(str, words)], check=True, capture_output=True, text=True, env=environ)
    result = json.loads(done.stdout)
    if result["failures"] and not may_fail:
        raise RuntimeError(f"{result['failures']} sends were refused, the first with {done.stderr}")
    sample = Sample(
        result["messages_per_s"],
        result["p50_us"],
        result["p99_us"],
        failures=result["failures"],
        p9999_us=result["p9999_us"],
    )
    return sample, result["messages"]


@contextmanager
def python_server(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server of ours, killed at the end."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
