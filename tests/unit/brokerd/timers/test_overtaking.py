"""What is due behind a burst comes in time, by the loop's own clock, and so does the burst itself."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from brokerd.timers import horizon, overtaking
from brokerd.timers.codes import DUE_MS, MESSAGE, RECALL, START, Key, encode_code
from brokerd.timers.cursor import TimerTable
from brokerd.timers.done import ALL, Done, Fence
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.near import Near
from remoting.record.codec import decode_record
from tests.support.memory_log import MemoryRecordLog
from tests.support.turns import Turns
from tests.unit.brokerd.timers import followed
from tests.unit.brokerd.timers.test_service import Alone
from tests.unit.brokerd.timers.world import TOPIC

BURST = 2000
PORTION = 36  # records of a slot in a call, as many of the burst as C looks at of a million
BATCH = 25
BATCH_S = 0.05  # so the burst alone takes four seconds
SECOND_MS = 1000
EVERY_MS = 20
LAST_MS = 6000


def slow_log(turns: Turns, append_s: float = BATCH_S) -> MemoryRecordLog:
    """Each append takes its time."""
    log = MemoryRecordLog(turns.wall_ms)
    append: Callable[..., Any] = log.append_leading

    def slow(*given: Any, **more: Any) -> Any:
        turns.pass_s(append_s)
        return append(*given, **more)

    log.append_leading = slow  # type: ignore[method-assign]
    return log


def found_late_ms(broker: Alone) -> dict[str, int]:
    """How late each was that was delivered."""
    copies = [decode_record(each) for topic_queue in range(4) for each in broker.log.bodies(TOPIC, topic_queue)]
    found = {each.body.decode(): each.store_timestamp_ms - int(each.property_map()[DUE_MS]) for each in copies}
    assert len(copies) == len(found), "each comes once"
    return found


def late_ms(first_other_ms: int) -> dict[str, int]:
    """How late each is of a burst that is due in one second, and of others that are due one by one from that time on."""
    turns = Turns()
    broker = Alone(slow_log(turns), turns, batch_messages=BATCH)
    begin_ms = turns.wall_ms() + SECOND_MS
    for n in range(BURST):
        broker.put(f"burst {n}", begin_ms + n * SECOND_MS // BURST)
    for at_ms in range(first_other_ms, LAST_MS, EVERY_MS):
        broker.put(f"other {at_ms}", begin_ms + at_ms)
    turns.run(2 * SECOND_MS)
    left = broker.service.state().left
    assert left <= overtaking.MAX_LEFT
    assert bool(left) == bool(overtaking.MAX_LEFT), "the broker's state says that something was overtaken"
    turns.run(2 * LAST_MS)
    assert broker.service.state().left == 0
    found = found_late_ms(broker)
    assert len(found) == BURST + len(range(first_other_ms, LAST_MS, EVERY_MS)), "each comes once"
    assert broker.service.table.done.fences == (), "and nothing is left behind"
    assert min(found.values()) >= 0
    return found


def of_others(found: dict[str, int]) -> int:
    return max(late for name, late in found.items() if name.startswith("other"))


def test_what_is_due_behind_a_burst_is_late_by_less_than_a_second() -> None:
    found = late_ms(SECOND_MS)
    assert of_others(found) <= 1000
    assert max(found.values()) > 3000, "of the burst some are late by all that it takes"


def test_without_overtaking_it_waits_for_all_of_the_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overtaking, "MAX_LEFT", 0)
    assert of_others(late_ms(SECOND_MS)) > 2000


@pytest.mark.parametrize("in_memory", [1500, 3000])
def test_what_is_due_behind_a_burst_that_has_no_room_in_memory_comes_in_time(
    monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    """All that is due is added when the first of it has been looked for; portions are as large as those of a million are."""
    monkeypatch.setattr(followed, "TimerFiles", lambda *given: TimerFiles(*given[:-1], PORTION))
    monkeypatch.setattr(horizon, "_ASKED_AT_ONCE", 40)
    monkeypatch.setattr(horizon, "_LOADED_AT_ONCE", 20)
    turns = Turns()
    broker = Alone(slow_log(turns, BATCH_S / 5), turns, batch_messages=BATCH // 5, near_max=in_memory)
    turns.run(100)
    begin_ms, most = turns.wall_ms() + 20 * SECOND_MS, 0
    timers = [(f"burst {n}", n * SECOND_MS // BURST) for n in range(BURST)]
    timers += [(f"other {at_ms}", at_ms) for at_ms in range(SECOND_MS + EVERY_MS, LAST_MS, EVERY_MS)]
    for n, (name, at_ms) in enumerate(timers):
        broker.put(name, begin_ms + at_ms)
        if not n % 50:
            turns.run(1)
            most = max(most, broker.service.state().near)
    turns.run(25_000 + 2 * LAST_MS)
    found = found_late_ms(broker)
    assert len(found) == len(timers)
    assert most <= in_memory
    assert (most < BURST) == (in_memory < BURST)
    assert of_others(found) <= 1000


def test_what_is_done_ahead_of_the_cursor_is_what_was_delivered_there() -> None:
    for seed in range(25):
        rng = random.Random(seed)
        done, model = Done(Key(10, 0)), {ms for ms in range(11)}
        for _ in range(20):
            begin, end = (done.gaps or ((done.front, Key(100, 0)),))[0]
            if done.gaps and rng.random() < 0.5:
                to = rng.randrange(begin.due_ms, end.due_ms + 1)
                done = done.passed(Key(to, 0))
                model |= set(range(to + 1))
            else:
                after = done.front if rng.random() < 0.5 else Key(done.front.due_ms + rng.randrange(5), 0)
                to = after.due_ms + rng.randrange(5)
                done = done.passed(Key(to, 0), after)
                model |= set(range(after.due_ms + 1, to + 1))
            assert {ms for ms in range(300) if done.has(Key(ms, 0))} == model
            assert done.front.due_ms >= max(model)
            assert all(fence.is_open for fence in done.fences)
            table = TimerTable()
            table.done = done
            again = TimerTable()
            for row in table.snapshot_rows():
                again.load_row(row)
            assert again.done == done


def test_when_a_clock_goes_back_nothing_that_was_done_ahead_is_due_again() -> None:
    done = Done(Key(100, 5)).passed(Key(300, 9), Key(200, 0)).passed(Key(900, 3), Key(500, 0))
    assert done == Done(Key(100, 5), (Fence(ALL, Key(300, 9), Key(200, 0)), Fence(ALL, Key(900, 3), Key(500, 0))))
    back = done.set_back(Key(250, -1), 40)
    assert (back.cursor, back.front, back.gaps) == (Key(100, 5), Key(100, 5), ())
    for due_ms, is_done in ((100, True), (150, False), (250, True), (400, False), (600, True), (901, False)):
        assert done.has(Key(due_ms, 1)) is back.has(Key(due_ms, 1)) is is_done
        assert not back.has(Key(due_ms, 40)) or due_ms <= 100, "what comes later is due when it says"
    assert back.went_back(done)
    assert not done.passed(Key(950, 0), Key(900, 3)).went_back(done)
    assert not Done(START).went_back(Done(START))


def test_what_is_split_off_is_all_that_is_due_before() -> None:
    near = Near()
    for offset, due_ms in enumerate((5, 3, 3, 9, 7, 3)):
        near.add(encode_code(due_ms, RECALL if offset in (2, 5) else MESSAGE), offset)
    near.drop(1)
    assert near.recalls(10) == [2, 5]
    part = near.split(6)
    assert [offset for _, offset in part.first(99, 9)] == [2, 5, 0]
    assert [offset for _, offset in near.first(99, 9)] == [4, 3]
    assert (part.count, near.count, part.recalls(10), near.recalls(10)) == (3, 2, [2, 5], [])
    part.drop(2)
    assert part.recalls(10) == []
