"""Waiting requests: limits, deadlines, wake-ups under random interleavings."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from brokerd.loop.long_polling import ANY_QUEUE, LongPolling, Waiter, WaitTable
from tests.support.turns import Turn, Turns


class Wants:
    def __init__(self, name: str, *codes: int, client: str = "") -> None:
        self.name = name
        self.client = client
        self.tags_codes = frozenset(codes) if codes else None


class Counter:
    """Messages as a number per topic; a waiter is served by one."""

    def __init__(self, turns: Turns, *, per_client: int = 100, total: int = 100, share: bool = True) -> None:
        self.available = 0
        self.tries = 0
        self.most_at_once = 0
        self.served: list[str] = []
        self.expired: list[str] = []
        table: WaitTable[Wants] = WaitTable(per_client, total)
        self.polling = LongPolling(turns, table, self.try_again, self.timed_out, share=share)

    def try_again(self, waiters: Sequence[Waiter[Wants]]) -> int:
        self.tries += 1
        self.most_at_once = max(self.most_at_once, len(waiters))
        served = [waiter.payload.name for waiter in waiters[: self.available]]
        self.available -= len(served)
        self.served += served
        return len(served)

    def timed_out(self, waiter: Waiter[Wants]) -> None:
        self.expired.append(waiter.payload.name)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_an_arrival_serves_the_longest_waiting(turns: Turns) -> None:
    counter = Counter(turns)
    for name in ("a", "b", "c"):
        counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants(name))
    counter.available = 2
    counter.polling.arrived("t", 5, [0])
    assert counter.served == []
    turns.run()
    assert counter.served == ["a", "b"]
    assert counter.tries == 2
    assert counter.polling.table.count == 1


def test_only_the_queue_and_those_of_any_queue_are_tried(turns: Turns) -> None:
    counter = Counter(turns)
    counter.available = 9
    counter.polling.park("t", "g", 1, 1000, Wants("one"))
    counter.polling.park("t", "g", 2, 1000, Wants("two"))
    counter.polling.park("t", "h", ANY_QUEUE, 1000, Wants("any"))
    counter.polling.park("u", "g", ANY_QUEUE, 1000, Wants("other"))
    counter.polling.arrived("t", 2)
    turns.run()
    assert sorted(counter.served) == ["any", "two"]


def test_one_whose_tags_do_not_match_does_not_starve_the_others(turns: Turns) -> None:
    counter = Counter(turns)
    counter.available = 1
    counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants("x", 1))
    counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants("y", 2))
    counter.polling.arrived("t", 0, [2, 3])
    turns.run()
    assert counter.served == ["y"]
    counter.available = 1
    counter.polling.arrived("t", 0, [3])
    turns.run()
    assert counter.served == ["y"]
    counter.polling.arrived("t", 0, [3])
    counter.polling.arrived("t", 0, None)
    counter.polling.arrived("t", 0, [4])
    turns.run()
    assert counter.served == ["y", "x"]


def test_deadlines_with_one_timer(turns: Turns) -> None:
    counter = Counter(turns)
    for number in (300, 100, 200, 100):
        counter.polling.park("t", "g", ANY_QUEUE, number, Wants(str(number)))
    turns.run(99)
    assert counter.expired == []
    turns.run(1)
    assert counter.expired == ["100", "100"]
    assert turns.waiting == 1
    turns.run(200)
    assert counter.expired == ["100", "100", "200", "300"]
    assert turns.waiting == 0


def test_limits(turns: Turns) -> None:
    counter = Counter(turns, per_client=2, total=3)
    assert counter.polling.park("t", "g", 0, 100, Wants("a", client="x"))
    second = counter.polling.park("u", "h", 0, 100, Wants("b", client="x"))
    assert second
    assert counter.polling.park("t", "g", 0, 100, Wants("c", client="x")) is None
    assert counter.polling.park("t", "g", 0, 100, Wants("d", client="y")), "it keeps nobody else out"
    third = counter.polling.park("t", "g", 0, 100, Wants("e", client="z"))
    assert third, "each has its share"
    assert not second.is_parked
    assert counter.polling.park("t", "g", 0, 100, Wants("w", client="w")) is None, "that is all together"
    third.cancel()
    assert counter.polling.park("t", "g", 0, 100, Wants("f", client="x"))
    turns.run(100)
    assert sorted(counter.expired) == ["a", "b", "d", "f"]
    assert [bool(counter.polling.park("t", "g", 0, 300, Wants(each, client="x"))) for each in "ghi"] == [
        True,
        True,
        False,
    ]


def test_a_cancelled_one_leaves_nothing(turns: Turns) -> None:
    counter = Counter(turns)
    waiter = counter.polling.park("t", "g", 0, 100, Wants("a"))
    assert waiter is not None
    waiter.cancel()
    waiter.cancel()
    counter.available = 1
    counter.polling.arrived("t", 0)
    turns.run(1000)
    assert (counter.served, counter.expired, counter.available) == ([], [], 1)
    assert counter.polling.table.keys("t", 0) == []


def test_everybody_is_tried_when_they_do_not_compete(turns: Turns) -> None:
    counter = Counter(turns, share=False)
    for name in ("a", "b", "c"):
        counter.polling.park("t", "", 0, 1000, Wants(name))
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.tries == 3
    assert counter.most_at_once == 1


def test_what_comes_first_is_done_before_each_part_of_those_who_are_tried(
    turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.loop.long_polling._TRIED_AT_ONCE", 2)
    counter = Counter(turns, share=False)
    counter.available = 10
    served_before: list[int] = []
    counter.polling.before = lambda: served_before.append(len(counter.served))
    for name in "abcde":
        counter.polling.park("t", name, 0, 1000, Wants(name))
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.served == list("abcde")
    assert served_before == [0, 2, 4]


def test_when_what_comes_first_fails_they_are_tried_all_the_same(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.loop.long_polling._TRIED_AT_ONCE", 2)
    counter = Counter(turns, share=False)
    counter.available = 10
    counter.polling.before = lambda: 1 / 0
    for name in "abc":
        counter.polling.park("t", name, 0, 1000, Wants(name))
    counter.polling.arrived("t", 0)
    for served in ("ab", "abc"):
        with pytest.raises(ZeroDivisionError):
            turns.run()
        assert counter.served == list(served)
    counter.polling.before = None
    counter.polling.park("t", "d", 0, 1000, Wants("d"))
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.served == list("abcd")


def test_those_who_do_not_compete_are_tried_so_many_in_a_turn(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(turns, share=False)
    by_turn: list[int] = []
    run = Turn.run

    def counted(turn: Turn) -> None:
        before = counter.tries
        run(turn)
        by_turn.append(counter.tries - before)
        if len(by_turn) == 1:  # it is served behind the second turn's 16
            counter.polling.arrived("t", 0)

    monkeypatch.setattr(Turn, "run", counted)
    waiters = [counter.polling.park("t", "", 0, 1000, Wants(str(number))) for number in range(100)]
    gone = waiters[99]
    assert gone is not None
    counter.polling.arrived("t", 0)
    gone.cancel()
    turns.run()
    assert max(by_turn) == 16
    assert counter.tries == 99 + 2 * 16, "those who had been tried before it came, and no others, are tried again"

    counter.available = 50
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.served == [str(number) for number in range(50)]


def test_nobody_is_tried_after_all_were_taken(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter(turns, share=False)
    run = Turn.run

    def taking(turn: Turn) -> None:
        run(turn)
        counter.polling.take_all()

    monkeypatch.setattr(Turn, "run", taking)
    for number in range(40):
        counter.polling.park("t", "", 0, 1000, Wants(str(number)))
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.tries == 16


def test_a_burst_is_for_many_at_once(turns: Turns) -> None:
    counter = Counter(turns, per_client=300, total=300)
    for number in range(300):
        counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants(str(number)))
    counter.available = 250
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.served == [str(number) for number in range(250)]
    assert (counter.tries, counter.most_at_once) == (9, 64)
    assert counter.polling.table.count == 50


def test_a_group_can_be_served_alone(turns: Turns) -> None:
    counter = Counter(turns)
    counter.available = 5
    counter.polling.park("t", "g", 3, 1000, Wants("g"))
    counter.polling.park("t", "h", 3, 1000, Wants("h"))
    counter.polling.arrived("t", ANY_QUEUE, None, "h")
    turns.run()
    assert counter.served == ["h"]


@pytest.mark.parametrize("seed", range(20))
def test_no_wake_up_is_lost(seed: int) -> None:
    """Waiters that look before they park, messages that arrive in any order: in the end nobody waits beside a message."""
    rng = random.Random(seed)
    turns = Turns()
    counter = Counter(turns, per_client=10_000, total=10_000)
    parked = 0
    for step in range(400):
        choice = rng.random()
        if choice < 0.45:
            if counter.available:
                counter.available -= 1
                counter.served.append("at once")
            elif counter.polling.park("t", "g", rng.choice((ANY_QUEUE, 0)), 10**9, Wants(str(step))):
                parked += 1
        elif choice < 0.85:
            counter.available += rng.randint(1, 3)
            counter.polling.arrived("t", 0, [0])
        else:
            turns.run(1)
    turns.run(1)
    assert counter.available == 0 or counter.polling.table.count == 0


def test_ten_thousand_waiters_cost_one_timer_and_no_work(turns: Turns) -> None:
    counter = Counter(turns, per_client=10_000, total=10_000)
    for number in range(10_000):
        assert counter.polling.park(f"t{number % 100}", "g", ANY_QUEUE, 20_000, Wants("w"))
    assert turns.waiting == 1
    turns.run(19_000)
    assert counter.tries == 0
    assert turns.waiting == 1
    assert len(counter.polling.take_all()) == 10_000
    assert turns.waiting == 0


def test_clients_are_served_in_turns(turns: Turns) -> None:
    counter = Counter(turns, per_client=5000, total=10_000)
    for number in range(5000):
        counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants(f"greedy {number}", client="greedy"))
    for name in ("one", "two"):
        counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants(name, client=name))
    counter.available = 5
    counter.polling.arrived("t", 0)
    turns.run()
    assert counter.served == ["greedy 0", "one", "two", "greedy 1", "greedy 2"]


def test_whoever_was_served_last_comes_last_also_when_messages_come_one_by_one(turns: Turns) -> None:
    counter = Counter(turns, per_client=5000, total=10_000)
    for _ in range(10):
        counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants("greedy", client="greedy"))
    for number in range(6):
        if number % 2 == 0:
            counter.polling.park("t", "g", ANY_QUEUE, 1000, Wants("one", client="one"))
        counter.available = 1
        counter.polling.arrived("t", 0)
        turns.run()
    assert counter.served == ["greedy", "one"] * 3


def test_a_full_table_gives_a_client_its_share(turns: Turns) -> None:
    counter = Counter(turns, per_client=100, total=6)
    for number in range(6):
        assert counter.polling.park("t", "g", 0, 1000, Wants(str(number), client="greedy"))
    assert counter.polling.park("t", "g", 0, 1000, Wants("a", client="x"))
    turns.run()
    assert counter.expired == ["5"], "the one that waited shortest"
    assert counter.polling.park("u", "h", 0, 1000, Wants("b", client="x"))
    assert counter.polling.park("t", "g", 0, 1000, Wants("c", client="x"))
    assert counter.polling.park("t", "g", 0, 1000, Wants("d", client="x")) is None, "that is its share"
    assert counter.polling.park("t", "g", 0, 1000, Wants("e", client="greedy")) is None
    turns.run()
    assert counter.expired == ["5", "4", "3"]
    assert counter.polling.park("t", "g", 0, 1000, Wants("f", client="y")), "two is the share of three"
    assert counter.polling.table.count == 6


@pytest.mark.parametrize("seed", range(10))
def test_a_table_counts_its_clients_right(seed: int) -> None:
    rng = random.Random(seed)
    table: WaitTable[Wants] = WaitTable(5, 12)
    parked: list[Waiter[Wants]] = []
    for step in range(300):
        if rng.random() < 0.6:
            client = rng.choice("abcde")
            waiter, displaced = table.park("t", "g", 0, step, Wants(str(step), client=client))
            parked = [each for each in parked if each.is_parked]
            if waiter is not None:
                parked.append(waiter)
            if displaced is not None:
                assert not displaced.is_parked
                assert displaced.payload.client != client
        elif parked:
            table.remove(parked.pop(rng.randrange(len(parked))))
        found = list(table.waiters("t", "g", 0))
        assert table.count == len(found) == len(parked) <= 12
        assert set(found) == set(parked)
        counts = [sum(each.payload.client == client for each in parked) for client in "abcde"]
        assert max(counts) <= 5
        assert table.most_of_one_client == max(counts)
