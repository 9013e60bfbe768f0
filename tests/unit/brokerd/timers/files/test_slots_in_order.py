"""The slots of the wheel that have records, by time: against a dictionary, and without a look at all of them."""

from __future__ import annotations

import random
from array import array

import pytest

from brokerd.timers.codes import SLOT_MS
from brokerd.timers.files.layout import EMPTY, Shape, Slot
from brokerd.timers.files.wheel import TimerWheel, write_slots
from tests.support.disks import MemoryDisk

NOW = 1_700_000_000


@pytest.mark.parametrize("seed", range(10))
def test_they_are_those_that_were_put_there_last(seed: int) -> None:
    rng, shape, disk = random.Random(seed), Shape(slots=5000, file_bytes=1 << 16), MemoryDisk()
    wheel, wanted = TimerWheel(shape), dict[int, int]()
    for _ in range(300):
        time = NOW + rng.randrange(rng.choice((50, 5000, 12_000)))
        wheel.put(time * SLOT_MS, Slot(0, 0, 1) if rng.random() < 0.8 else EMPTY)
        wanted[time % 5000] = time if wheel.slot(time * SLOT_MS) != EMPTY else 0
        if rng.random() < 0.02:
            write_slots(disk, shape, wheel.begin_write())
            wheel.finish_write()
            wheel = TimerWheel(shape)
            wheel.load(disk)
        first, last = (rng.choice((0, NOW, NOW + rng.randrange(12_000), NOW + 90_000)) for _ in range(2))
        found = list(wheel.slots_between(first * SLOT_MS, last * SLOT_MS))
        assert found == sorted(time * SLOT_MS for time in wanted.values() if time and first <= time <= last)


def test_the_first_is_found_without_a_look_at_all_even_from_the_beginning_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a master of a group whose timers were never due yet."""
    wheel = TimerWheel(Shape())
    for day in range(6):
        wheel.put((NOW + day * 86_400) * SLOT_MS, Slot(0, 0, 1))
    looks: list[int] = []
    column = TimerWheel._column

    def counting(self: TimerWheel, word: int, first: int, count: int) -> array[int]:
        looks.append(count)
        return column(self, word, first, count)

    monkeypatch.setattr(TimerWheel, "_column", counting)
    assert next(wheel.slots_between(0, (NOW + 40 * 86_400) * SLOT_MS)) == NOW * SLOT_MS
    assert len(looks) == 1
