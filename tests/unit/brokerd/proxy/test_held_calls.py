"""Calls that wait: bounded, in order, tried in portions, and nobody is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from brokerd.proxy import held_calls
from brokerd.proxy.held_calls import Held, HeldCalls
from tests.support.turns import Turns
from tests.unit.brokerd.proxy.calls import FakeCall

LOOK_MS = 50


class Bench:
    """Calls are named by their message; what has a key in `closed` stays. Each portion is a list of what it carried out."""

    def __init__(self, max_held: int = 2000, max_bytes: int = 1 << 20) -> None:
        self.turns = Turns()
        self.held: HeldCalls[str] = HeldCalls(
            self.turns, self, look_s=LOOK_MS / 1000, max_held=max_held, max_bytes=max_bytes
        )
        self.closed: set[object] = set()
        self.portions: list[list[str]] = []
        self.expired: list[str] = []
        self.looks = 0
        self.in_portion: Callable[[], None] = lambda: None
        self._leaving: list[str] = []

    def add(self, name: str, *keys: str, ms: int = 10_000) -> Held[str]:
        expires_ms = self.turns.monotonic_ms() + ms
        held = self.held.admit(FakeCall(name.encode()), keys or (name[0],), name, expires_ms)
        assert self.held.hold(held)
        return held

    def run(self, ms: int = 0) -> list[str]:
        """What left."""
        before = len(self.portions)
        self.turns.run(ms)
        return [name for portion in self.portions[before:] for name in portion]

    def look(self) -> None:
        self.looks += 1

    def attempt(self, held: Held[str]) -> Held[str] | None:
        if not self.closed.isdisjoint(held.keys):
            return held
        self._leaving.append(held.what)
        return None

    def expire(self, held: Held[str]) -> None:
        self.expired.append(held.what)

    def carry_out(self) -> None:
        leaving, self._leaving = self._leaving, []
        self.portions.append(leaving)
        self.in_portion()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "MAX_LEAVING", 2)
    monkeypatch.setattr(held_calls, "MAX_LOOKED_AT", 3)


def test_all_are_tried_again_after_a_while_and_when_something_changed(bench: Bench) -> None:
    bench.add("a1")
    bench.closed = {"a"}
    assert (bench.run(LOOK_MS), bench.looks) == ([], 1)
    bench.closed = set()
    assert (bench.run(LOOK_MS - 1), bench.looks) == ([], 1)
    assert (bench.run(1), bench.looks) == (["a1"], 2)
    bench.add("a2")
    bench.held.try_all()
    assert bench.portions[-1] == ["a1"], "not before the next turn of the loop"
    assert (bench.run(), bench.looks) == (["a2"], 2)
    assert bench.turns.waiting == 0, "nothing is held, so nothing is looked at"


def test_a_portion_is_bounded_in_calls_and_in_bytes(bench: Bench) -> None:
    for number in range(3 * held_calls.MAX_LEAVING):
        bench.add(f"a{number}")
    bench.held.try_all()
    assert len(bench.run()) == 3 * held_calls.MAX_LEAVING
    assert [len(portion) for portion in bench.portions] == [held_calls.MAX_LEAVING] * 3
    bench.portions.clear()
    large = "b" * (held_calls.MAX_LEAVING_BYTES // 2)
    for _ in range(4):
        bench.add(large)
    bench.held.try_all()
    bench.run()
    assert [len(portion) for portion in bench.portions] == [2, 2]


def test_what_stays_is_looked_at_in_portions_too(bench: Bench) -> None:
    bench.closed = {"a"}
    for number in range(held_calls.MAX_LOOKED_AT - 1):
        bench.add(f"a{number}")
    for number in range(3):
        bench.add(f"b{number}")
    bench.held.try_all()
    assert bench.run() == ["b0", "b1", "b2"]
    assert [len(portion) for portion in bench.portions] == [1, 2]


@pytest.mark.usefixtures("small_portions")
def test_what_comes_during_a_walk_comes_behind_and_leaves_by_it(bench: Bench) -> None:
    for name in ("a1", "a2", "a3"):
        bench.add(name)
    bench.in_portion = lambda: bench.add("a4") and None if len(bench.portions) == 1 else None
    bench.held.try_all()
    assert bench.run() == ["a1", "a2", "a3", "a4"]


@pytest.mark.usefixtures("small_portions")
def test_what_is_behind_one_that_stays_stays_for_the_whole_walk(bench: Bench) -> None:
    bench.closed = {"x"}
    for name, keys in (("1", "ax"), ("2", "b"), ("3", "c"), ("4", "d"), ("5", "ab"), ("6", "b"), ("7", "c")):
        bench.add(name, *keys)
    bench.in_portion = lambda: bench.closed.clear()
    bench.held.try_all()
    assert bench.run() == ["2", "3", "4", "7"], "6 has a key of 5, which has one of 1"
    assert [bench.held.waits(key) for key in "abcdx"] == [True, True, False, False, True]
    assert bench.run(LOOK_MS) == ["1", "5", "6"]


@pytest.mark.usefixtures("small_portions")
def test_what_comes_back_takes_its_place(bench: Bench) -> None:
    given = [bench.add(f"a{number}") for number in range(4)]
    bench.held.try_all()
    assert bench.run() == ["a0", "a1", "a2", "a3"]
    bench.add("a4")
    for held in (given[2], given[0]):
        assert bench.held.hold(held)
    bench.add("a5")
    bench.held.try_all()
    assert bench.run() == ["a0", "a2", "a4", "a5"]


@pytest.mark.usefixtures("small_portions")
def test_what_comes_back_in_the_middle_of_a_walk_holds_up_those_behind_it(bench: Bench) -> None:
    first = bench.add("a1")
    for name in ("a2", "a3", "b", "a4"):
        bench.add(name)

    def come_back() -> None:
        if len(bench.portions) == 1:
            assert bench.held.hold(first)

    bench.in_portion = come_back
    bench.held.try_all()
    assert bench.run() == ["a1", "a2", "b"]
    assert bench.run(LOOK_MS) == ["a1", "a3", "a4"]


@pytest.mark.usefixtures("small_portions")
def test_a_change_in_the_middle_of_a_walk_begins_it_anew(bench: Bench) -> None:
    bench.closed = {"a"}
    for name in ("a1", "b1", "b2", "b3"):
        bench.add(name)

    def change() -> None:
        bench.closed.clear()
        if len(bench.portions) == 1:
            bench.held.try_all()

    bench.in_portion = change
    bench.held.try_all()
    assert bench.run() == ["b1", "b2", "a1", "b3"]


@pytest.mark.usefixtures("small_portions")
def test_who_stays_expires_though_more_comes_than_leaves() -> None:
    bench = Bench(max_held=6)
    bench.closed = {"a"}
    bench.add("a1", ms=5)
    bench.add("b1")

    def come() -> None:
        bench.turns.pass_s(0.001)
        while not bench.expired and len(bench.held) < 6:
            bench.add("b")

    bench.in_portion = come
    bench.held.try_all()
    bench.run(100)
    assert bench.expired == ["a1"]


def test_who_waited_too_long_or_left_is_not_carried_out(bench: Bench) -> None:
    bench.add("a1", ms=LOOK_MS)
    gone = bench.add("a2")
    bench.add("a3", ms=LOOK_MS + 1)
    gone.call.live = False  # type: ignore[misc]
    assert bench.run(LOOK_MS) == ["a3"]
    assert (bench.expired, len(bench.held), bench.held.waits("a")) == (["a1"], 0, False)


def test_only_so_much_is_held() -> None:
    bench = Bench(max_held=2, max_bytes=10)
    assert [_offer(bench, name) for name in ("a" * 8, "b" * 3, "b" * 2, "c")] == [True, False, True, False]
    assert len(bench.held) == 2
    assert len(bench.run(LOOK_MS)) == 2
    assert _offer(bench, "a" * 10), "there is room again"
    assert not bench.held.hold(bench.held.admit(FakeCall(b""), [str(key) for key in range(99)], "", 1))


def test_stopping_gives_all_of_them_in_order(bench: Bench) -> None:
    given = [bench.add(name) for name in ("a1", "b1", "a2")]
    bench.closed = {"b"}
    bench.run(LOOK_MS)
    bench.add("a3")
    assert bench.held.hold(given[0])
    assert [held.what for held in bench.held.take_all()] == ["a1", "b1", "a3"]
    assert (len(bench.held), bench.held.waits("a"), bench.run(10 * LOOK_MS), bench.turns.waiting) == (0, False, [], 0)


@pytest.mark.usefixtures("small_portions")
def test_stopping_in_the_middle_of_a_walk_ends_it(bench: Bench) -> None:
    for number in range(5):
        bench.add(f"a{number}")
    left: list[Sequence[Held[str]]] = []
    bench.in_portion = lambda: left.append(bench.held.take_all())
    bench.held.try_all()
    assert bench.run(LOOK_MS) == ["a0", "a1"]
    assert [[held.what for held in each] for each in left] == [["a2", "a3", "a4"]]


def _offer(bench: Bench, name: str) -> bool:
    return bench.held.hold(bench.held.admit(FakeCall(name.encode()), (name[0],), name, 10_000))
