"""How many timers are due in each second, as a limit counts them: against a count that is made anew each time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from brokerd.timers import slots
from brokerd.timers.codes import MESSAGE, RECALL, ROLLED, Key, encode_code, key_of, slot_of
from brokerd.timers.done import Done
from brokerd.timers.rolling import Wait
from brokerd.timers.slots import SlotCounts, SlotLimit

NOW_MS = 1_700_000_000_000


class World:
    """A queue, what is appended behind it, and what was laid out; all by queue offset."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.codes: list[int] = []
        self.dispatched = 0
        self.first = 0
        self.done = Done()
        self.most = 3
        self.limit = SlotLimit(
            lambda: self.most,
            self.queue_range,
            self.read_units,
            lambda: self.done,
            lambda: self.codes[self.dispatched :],
        )
        self.own: dict[int, int] = {}  # due times of what clients sent here and was appended, by offset
        self.legs: Counter[int] = Counter()  # by slot, of what was sent here with a leg and was appended
        self.refused = self.taken = 0
        self.is_dropped = False  # what was laid out last was not appended
        self.is_replaced = False  # and others got its offsets: that is noticed when they are dispatched

    def queue_range(self) -> tuple[int, int]:
        return self.first, self.dispatched

    def read_units(self, start: int, count: int) -> list[tuple[int, int, int]]:
        return [(0, 0, code) for code in self.codes[start : min(start + count, self.dispatched)]]

    def expected(self, slot_ms: int, laid_out: list[tuple[int, bool, int]]) -> int:
        """What is due in a slot ahead of the cursor."""
        seen = [
            code
            for offset, code in enumerate(self.codes[self.first : self.dispatched], self.first)
            if code & 3 != RECALL and not self.done.has(key_of(code, offset))
        ]
        waiting = sum(slot_of(code >> 2) == slot_ms for code in seen)
        ahead = [due_ms for offset, due_ms in self.own.items() if offset >= self.dispatched]
        ahead += [due_ms for due_ms, has_leg, _ in laid_out if not has_leg]
        legs = self.legs[slot_ms] + sum(slot_of(due_ms) == slot_ms for due_ms, has_leg, _ in laid_out if has_leg)
        return max(waiting + sum(slot_of(due_ms) == slot_ms for due_ms in ahead), legs)

    def soon_ms(self) -> int:
        """Within the window, behind the cursor."""
        return max(NOW_MS + 100_000, self.done.cursor.due_ms) + 1 + self.rng.randrange(4000)

    def send(self) -> None:
        laid_out: list[tuple[int, bool, int]] = []
        for _ in range(self.rng.choice((1, 1, 2, 6))):
            if not self.limit.is_set:
                return
            has_leg = self.rng.random() < 0.2
            due_ms = NOW_MS + 500_000 + self.rng.randrange(4000) if has_leg else self.soon_ms()
            if self.limit.is_behind:
                break  # nobody asks
            wanted = self.expected(slot_of(due_ms), laid_out)
            wait = Wait(due_ms, self.soon_ms() if has_leg else None)
            found = self.limit.take(len(self.codes) + len(laid_out), wait)
            if not self.is_replaced:
                assert found == (wanted < self.most)
            assert found or wanted >= self.most or self.is_replaced, "nothing is refused where there is room"
            self.refused += not found
            if found:
                self.taken += 1
                laid_out.append((due_ms, has_leg, wait.code))
        if self.rng.random() < 0.2:
            self.is_dropped = bool(laid_out)
            return  # it was not appended
        self.is_dropped &= not laid_out
        for due_ms, has_leg, code in laid_out:
            if has_leg:
                self.legs[slot_of(due_ms)] += 1
            else:
                self.own[len(self.codes)] = due_ms
            self.codes.append(code)

    def others(self) -> None:
        """What is never refused: what goes on to its next leg, commits of transactions, delete markers."""
        self.is_replaced |= self.is_dropped
        self.codes.append(encode_code(self.soon_ms(), self.rng.choice((MESSAGE, ROLLED, RECALL))))

    def dispatch(self) -> None:
        end = self.rng.randint(self.dispatched, len(self.codes))
        if end > self.dispatched:
            before, self.dispatched = self.dispatched, end
            self.limit.arrived(end, self.codes[before:end])
        if end == len(self.codes):
            self.is_replaced = False

    def step(self) -> None:
        while self.limit.step():
            pass

    def another_master(self) -> None:
        self.limit.begin()
        self.own.clear()
        self.legs.clear()
        self.dispatched = len(self.codes)

    def set(self) -> None:
        self.most = self.rng.choice((0, 2, 3, 5))
        if not self.limit.is_set:
            self.own.clear()
            self.legs.clear()
            self.dispatched = len(self.codes)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_refused_has_no_room_and_what_is_taken_has(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_SCANNED_AT_ONCE", 3)
    world = World(seed)
    steps = [world.send] * 6 + [world.dispatch] * 4 + [world.others, world.step, world.step]
    for number in range(200):
        world.rng.choice(steps)()
        if number % 70 == 60:
            world.another_master()
        if number % 50 == 40:
            world.set()
        if number == 150:  # all is delivered up to the first second of those that are due
            world.done = world.done.passed(Key(NOW_MS + 101_000, 1 << 40))
    assert world.taken > 10
    assert world.refused > 10


def test_what_went_before_it_was_counted_is_not_waited_for() -> None:
    world = World(0)
    world.codes = [encode_code(NOW_MS + 1000, MESSAGE)] * 5
    world.dispatched = 5
    assert world.limit.is_set
    world.first = 5
    assert not world.limit.step()
    assert not world.limit.is_behind


def test_what_was_there_before_is_counted_in_slices_without_what_was_delivered() -> None:
    world = World(0)
    due_ms = NOW_MS + 1000
    world.codes = [encode_code(due_ms, kind) for kind in (MESSAGE, MESSAGE, RECALL, ROLLED, MESSAGE)]
    world.dispatched, world.first = 5, 1
    world.done = Done(Key(due_ms, 1))
    assert world.limit.is_set
    assert world.limit.is_behind
    world.step()
    assert world.limit.count(slot_of(due_ms)) == 2
    assert not world.limit.is_behind
    assert world.limit.take(5, Wait(due_ms, None))
    assert not world.limit.take(6, Wait(due_ms, None))
    world.most = 4
    assert world.limit.take(6, Wait(due_ms, None))


def test_when_the_cursor_goes_back_what_is_done_leaves_its_seconds() -> None:
    world = World(0)
    world.most = 2
    due_ms, far_ms = NOW_MS + 1_000, NOW_MS + 4_000_000
    assert world.limit.is_set
    for offset, each_ms in enumerate((due_ms, due_ms, far_ms)):
        wait = Wait(each_ms, None)
        assert world.limit.take(offset, wait)
        world.codes.append(wait.code)
    world.dispatched = 3
    world.limit.arrived(3, world.codes)
    assert not world.limit.take(3, Wait(due_ms, None))
    world.done = Done(Key(far_ms - 1, 1 << 40))
    world.codes.append(encode_code(far_ms, MESSAGE))
    world.dispatched = 4
    assert world.limit.is_set
    world.limit.arrived(4, world.codes[3:])
    world.done = world.done.set_back(Key(NOW_MS, -1), 4)
    for offset in (4, 5):
        assert world.limit.is_set
        assert world.limit.take(offset, Wait(due_ms, None)), "those that were due then were delivered"
        world.step()
    assert not world.limit.take(6, Wait(due_ms, None))
    assert not world.limit.take(6, Wait(far_ms, None)), "these wait"


def test_memory_is_bounded_and_the_past_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_MOST_PAGES", 2)
    counts = SlotCounts()
    for slot_ms in (0, 1_024_000, 2_048_000):
        counts.add(slot_ms, 2)
    assert [counts.of(slot_ms) for slot_ms in (0, 1000, 1_024_000, 2_048_000)] == [2, 0, 2, 0]
    counts.forget_before(1_024_000)
    counts.add(2_048_000, 7)
    counts.add(2_048_000, -8)
    counts.add(0, 5)
    assert [counts.of(slot_ms) for slot_ms in (0, 1_024_000, 2_048_000)] == [0, 2, 0]
