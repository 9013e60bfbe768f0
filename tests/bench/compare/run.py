"""The pairs: every setup's work in both systems in turn, and the rows that come of it."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Final

from tests.bench.compare import faults
from tests.bench.compare.java_client import java_client
from tests.bench.compare.systems import REPLICAS, SETUPS, WITH_PROXY, Running, nothing, original, ours
from tests.bench.compare.work import ROWS, Tools, Work
from tests.bench.harness import Pairs, Row, Sample, load_program, print_row, pull_program
from tests.bench.processes import Memory
from tests.interop.apache import Apache, Unavailable

_MOST_MEMORY_MB: Final = 150
Start = Callable[[str], AbstractContextManager[Running]]


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long. `warm_up_s` is the original's; ours, which compiles nothing, gets a quarter."""

    pairs: int = 5
    seconds: float = 8
    warm_up_s: float = 20
    faults: int = 3
    setups: Sequence[str] = SETUPS
    only: str = ""
    due: int = 100_000
    beside_nothing: bool = False  # in place of the original


class SetupRun:
    """The work of one setup, and what the pairs gave."""

    def __init__(self, setup: str, work: Sequence[Work]) -> None:
        self.setup = setup
        self.work = work
        self.ours: dict[str, list[Sample]] = {each.name: [] for each in work}
        self.theirs: dict[str, list[Sample]] = {each.name: [] for each in work}
        self.memory: dict[str, list[Memory]] = {}

    def measure(self, start: Start, results: dict[str, list[Sample]], tools: Tools, warm_up_s: float) -> None:
        """One side of a pair: start it, warm it up, do all the work."""
        with start(self.setup) as running:
            _warm_up(running, self.work, tools, warm_up_s)
            for each in self.work:
                sample = each.measure(running, tools)
                results[each.name].append(sample)
                _print_sample(running, self.setup, each, sample)
            self.memory.setdefault(running.name, []).append(running.memory())

    def rows(self) -> list[Row]:
        found = []
        for each in self.work:
            pairs = Pairs(f"{each.name}; {self.setup}", self.ours[each.name], self.theirs[each.name], each.goal)
            print_row(pairs)
            found.append(pairs.row)
            if each.uses_java and all(sample.p99_us for sample in pairs.a):
                found.append(_printed(_p99_row(pairs)))
        return [*found, _printed(self._memory_row())]

    def _memory_row(self) -> Row:
        medians = {
            name: tuple(
                statistics.median(values) for values in zip(*((m.anonymous_mb, m.file_mb) for m in found), strict=True)
            )
            for name, found in self.memory.items()
        }
        text = "; ".join(f"{name} {own:.0f} MB + {file:.0f} MB of files" for name, (own, file) in medians.items())
        own_mb = medians["Logboom"][0]
        return Row(
            f"memory after the work; {self.setup}", text, f"own <= {_MOST_MEMORY_MB} MB", own_mb <= _MOST_MEMORY_MB
        )


def _print_sample(running: Running, setup: str, work: Work, sample: Sample) -> None:
    print(
        f"    {running.name:16} {setup:14} {work.name:46} {sample.rate:9.0f}/s  p50 {sample.p50_us} us  p99 {sample.p99_us} us  "
        f"CPU {sample.cpu_us:.1f} us  failed {sample.failures}  load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def _p99_row(pairs: Pairs) -> Row:
    ratios = [a.p99_us / b.p99_us for a, b in zip(pairs.a, pairs.b, strict=True)]
    ratio = statistics.median(ratios)
    return Row(f"{pairs.name}: p99", f"A/B {ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f})", "A/B < 1", ratio < 1)


def _printed(row: Row) -> Row:
    """The row, which is on the terminal now: a later setup may fail."""
    print(f"{row.name:58} {row.figure}", flush=True)
    return row


def _warm_up(running: Running, work: Sequence[Work], tools: Tools, warm_up_s: float) -> None:
    """The first work of the setup, uncounted."""
    work[0].measure(running, replace(tools, seconds=warm_up_s))


def compare(plan: Plan) -> list[Row]:
    """All rows that are asked for."""
    rows: list[Row] = []
    with ExitStack() as stack:
        try:
            apache = Apache.find_with_proxy() if WITH_PROXY.intersection(plan.setups) else Apache.find()
            java = stack.enter_context(java_client(apache))
        except Unavailable as reason:
            return [Row("Logboom / Apache RocketMQ", f"not measured: {reason}")]
        pull = stack.enter_context(pull_program())
        tools = Tools(stack.enter_context(load_program()), pull, java, plan.seconds, plan.due)
        theirs: Start = nothing if plan.beside_nothing else original(apache)
        for setup in plan.setups:
            work = [each for each in ROWS if each.setup == setup and plan.only in each.name]
            if not work:
                continue
            run = SetupRun(setup, work)
            for _ in range(plan.pairs):
                run.measure(ours, run.ours, tools, plan.warm_up_s / 4)
                run.measure(theirs, run.theirs, tools, plan.warm_up_s)
            rows += run.rows()
        if plan.faults and REPLICAS in plan.setups:
            rows += faults.rows(faults.measure(ours, plan.faults), faults.measure(theirs, plan.faults))
    return rows
