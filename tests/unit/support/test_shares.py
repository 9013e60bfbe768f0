"""The schedule of the suite, played with workers that are lists: every order of what they end, and some that die."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest
from tests.support.shares import Kind, Share, Shares

SEEDS = range(40)
SUITE = [
    *(f"unit/a.py::{n}" for n in range(5)),
    *(f"unit/b.py::{n}" for n in range(1)),
    *(f"unit/c.py::{n}" for n in range(3)),
    *(f"unit/d.py::{n}" for n in range(1)),
    *(f"daemons/a.py::{n}" for n in range(3)),
    *(f"daemons/b.py::{n}" for n in range(1)),
    *(f"daemons/c.py::{n}" for n in range(2)),
    *(f"alone/a.py::{n}" for n in range(2)),
    *(f"alone/b.py::{n}" for n in range(2)),
]
KINDS = {"unit": Kind.SELF_CONTAINED, "daemons": Kind.DAEMONS, "alone": Kind.ALONE}


def share_of(test: str) -> Share:
    return Share(KINDS[test.partition("/")[0]], test.partition("::")[0])


class Worker:
    """What xdist has for a worker, as far as a schedule needs it."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, tests: list[int]) -> None:
        assert not self.shutting_down
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def runs(self) -> int | None:
        """The test that it is at: it begins one only when it knows which is the next, or that there is none."""
        return self.given[0] if len(self.given) > self.shutting_down ^ 1 else None


class Play:
    """A run of the suite; `ran` are the tests in the order of their ends, each with its worker. `most_with_daemons` workers had
    daemons while something self-contained waited."""

    def __init__(self, count: int, suite: list[str] = SUITE) -> None:
        options = {"tx": ["popen"] * count, "maxschedchunk": None}
        config: Any = SimpleNamespace(getvalue=options.get, getoption=options.get)
        self.suite = suite
        self.schedule: Any = Shares(config, None, share_of)
        self.workers: list[Worker] = []
        self.ran: list[tuple[str, Worker]] = []
        self.crashed: list[str] = []
        self.most_with_daemons = 0
        for _ in range(count):
            self.workers.append(Worker())
            self.schedule.add_node(self.workers[-1])
        for worker in self.workers:
            self.schedule.add_node_collection(worker, suite)
        self.schedule.schedule()
        self.look()

    def kind(self, test: int | None) -> Kind | None:
        return None if test is None else share_of(self.suite[test]).kind

    def look(self) -> None:
        """What holds at every moment."""
        running = [kind for worker in self.workers if (kind := self.kind(worker.runs))]
        taken = {test for test, _ in self.ran} | {self.suite[test] for worker in self.workers for test in worker.given}
        if any(share_of(test).kind is Kind.SELF_CONTAINED for test in self.suite if test not in taken):
            self.most_with_daemons = max(self.most_with_daemons, running.count(Kind.DAEMONS))
        if Kind.ALONE in running:
            assert len(self.workers) == 1, "not alone"

    def end_one(self, worker: Worker) -> None:
        """The worker ends the test it is at, and itself if it shall and has no other."""
        assert worker.runs is not None
        test = worker.given.pop(0)
        self.ran.append((self.suite[test], worker))
        self.schedule.mark_test_complete(worker, test)
        self.let_end()
        self.look()

    def let_end(self) -> None:
        while ended := next((worker for worker in self.workers if worker.shutting_down and not worker.given), None):
            self.workers.remove(ended)
            assert self.schedule.remove_node(ended) is None

    def die(self, worker: Worker) -> None:
        """The worker dies of the test it is at, and another one comes in its place."""
        self.workers.remove(worker)
        crashed = self.schedule.remove_node(worker)
        assert crashed == (self.suite[worker.given[0]] if worker.given else None)
        self.crashed += [crashed] if crashed else []
        self.let_end()
        self.workers.append(Worker())
        self.schedule.add_node(self.workers[-1])
        self.schedule.add_node_collection(self.workers[-1], self.suite)
        self.schedule.schedule()
        self.let_end()
        self.look()

    def to_the_end(self, rng: Random, deaths: float = 0) -> None:
        self.let_end()
        while self.workers:
            able = [worker for worker in self.workers if worker.runs is not None]
            assert able, "everybody waits"
            if rng.random() < deaths:
                self.die(rng.choice(self.workers))
            else:
                self.end_one(rng.choice(able))
        assert not self.schedule.has_pending
        assert self.schedule.tests_finished


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
def test_every_test_runs_once_in_the_worker_and_the_order_of_its_bundle(workers: int) -> None:
    for seed in SEEDS:
        play = Play(workers)
        play.to_the_end(Random(seed))
        assert Counter(test for test, _ in play.ran) == Counter(SUITE)
        for bundle in {share_of(test).bundle for test in SUITE}:
            ran = [(test, worker) for test, worker in play.ran if share_of(test).bundle == bundle]
            assert [test for test, _ in ran] == [test for test in SUITE if share_of(test).bundle == bundle]
            assert len({worker for _, worker in ran}) == 1


@pytest.mark.parametrize(("workers", "most"), [(1, 0), (2, 1), (3, 2), (4, 2), (7, 4)])
def test_daemons_are_with_two_thirds_of_the_workers_while_something_else_waits(workers: int, most: int) -> None:
    many = [f"daemons/{bundle}.py::{n}" for bundle in "abcdef" for n in range(3)]
    short = [f"unit/{n}.py::0" for n in range(60)]
    for seed in SEEDS:
        play = Play(workers, [*short, *many, *SUITE[-4:]])
        play.to_the_end(Random(seed))
        assert play.most_with_daemons == most


def test_one_of_two_workers_begins_with_daemons_and_helps_the_other_one_then() -> None:
    play = Play(2)
    first, second = play.workers
    assert [play.kind(worker.runs) for worker in (first, second)] == [Kind.DAEMONS, Kind.SELF_CONTAINED]
    for _ in range(6):
        play.end_one(first)
    assert [play.kind(worker.runs) for worker in (first, second)] == [Kind.SELF_CONTAINED] * 2
    assert len(play.ran) == 6


def test_a_worker_without_daemons_helps_with_them_when_all_that_is_self_contained_is_taken() -> None:
    play = Play(2)
    first, second = play.workers
    for _ in range(10):
        play.end_one(second)
    assert [play.kind(worker.runs) for worker in (first, second)] == [Kind.DAEMONS] * 2
    play.to_the_end(Random(0))
    assert Counter(test for test, _ in play.ran) == Counter(SUITE)


def test_a_single_worker_runs_what_is_fast_first_and_what_measures_last() -> None:
    play = Play(1)
    play.to_the_end(Random(0))
    assert [test for test, _ in play.ran] == SUITE


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_what_a_dead_worker_had_before_it_is_done_by_others(workers: int) -> None:
    died = Counter[Kind]()
    for seed in SEEDS:
        play = Play(workers)
        play.to_the_end(Random(seed), deaths=0.1)
        assert Counter(test for test, _ in play.ran) + Counter(play.crashed) == Counter(SUITE)
        died.update(share_of(test).kind for test in play.crashed)
    assert set(died) == set(Kind)


@pytest.mark.parametrize("again", ["unit/a.py::1", "daemons/a.py::1"])
def test_a_test_that_is_to_run_once_more_does(again: str) -> None:
    play = Play(2)
    while again not in [test for test, _ in play.ran]:
        play.end_one(next(worker for worker in play.workers if worker.runs is not None and play.suite[worker.runs]))
    play.schedule.mark_test_pending(again)
    play.to_the_end(Random(0))
    assert Counter(test for test, _ in play.ran) == Counter([*SUITE, again])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_few_tests_of_one_kind_run_too(kind: str, workers: int, count: int) -> None:
    suite = [f"{kind}/a.py::{n}" for n in range(count)]
    play = Play(workers, suite)
    play.to_the_end(Random(0))
    assert [test for test, _ in play.ran] == suite


def test_every_place_of_the_suite_has_its_kind() -> None:
    places = {file.relative_to(conftest.TESTS).parts[0] for file in conftest.TESTS.rglob("test_*.py")}
    known = {*conftest.SELF_CONTAINED, *conftest.DAEMONS}
    assert places <= known
    assert all((conftest.TESTS / name).exists() for name in known)
    assert all((conftest.TESTS.parent / file).is_file() for file in conftest.ALONE)
