"""Whatever happens in whatever order, each timer is delivered once, in time and in order; and the model finds wrong rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.store.draft import Draft
from brokerd.timers import batch, horizon, moving, overtaking, queue_far, rolling
from brokerd.timers.batch import Batches
from brokerd.timers.clock import TimerClock
from brokerd.timers.codes import Key, due_by
from brokerd.timers.delivery import Delivery
from brokerd.timers.done import Done
from brokerd.timers.far import Found
from brokerd.timers.horizon import Horizon
from brokerd.timers.lanes import Lanes
from brokerd.timers.service import TimerService
from brokerd.timers.set_back import SettingBack
from remoting.record.codec import Record
from tests.unit.brokerd.timers.world import World, Wrong

SEEDS = 16
STEPS = 120


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horizon, "_ASKED_AT_ONCE", 5)
    monkeypatch.setattr(horizon, "_LOADED_AT_ONCE", 2)
    monkeypatch.setattr(queue_far, "CHUNK", 4)
    monkeypatch.setattr(moving, "_ENTRIES", 3)
    monkeypatch.setattr(moving, "MOST_DECODED", 2)
    monkeypatch.setattr(moving, "MOST_PART", 1000)
    monkeypatch.setattr(overtaking, "LATE_MS", 5)
    monkeypatch.setattr(overtaking, "TAIL_BATCHES", 1)
    monkeypatch.setattr(overtaking, "_MARKERS_AT_ONCE", 1)


def test_no_story_breaks_a_promise() -> None:
    worlds = [World(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.delivered for world in worlds) > 200
    assert sum(world.switches for world in worlds) > 60
    assert sum(world.torn for world in worlds) > 10, "batches were cut in two"
    assert sum(len(world.accepted) for world in worlds) > 30
    assert sum(len(world.fences) for world in worlds) > 3, "clocks went back behind what was delivered"
    assert sum(len(world.ahead) for world in worlds) > 60, "the newest overtook what was late"
    assert sum(len(world.moves) for world in worlds) > 60, "timers were moved before their files went"
    assert sum(world.torn_moves for world in worlds) > 3, "moves were cut in two"
    assert {world.tells for world in worlds} == {None, False, True}


_begin_lanes = Lanes.begin
_first, _rolled, _of_due = Horizon.first, batch.rolled, Batches.of_due
_begin, _is_recalled = Delivery.begin, Batches._is_recalled
_of_moved, _of_promised, _is_pending = Batches.of_moved, Batches.of_promised, TimerService.is_pending
_passed, _set_back, _look = Done.passed, Done.set_back, SettingBack.look


def early_by_a_tick(self: Horizon, until_ms: int, limit: int) -> list[Found]:
    return _first(self, until_ms + 1, limit)


def lost_at_roll(record: Record, place: int, due_ms: int, leg_ms: int | None, *, is_cut: bool = False) -> Draft:
    leg_was_ms = rolling.leg_before(due_ms, 0, 0, 1)
    return _rolled(record, place, due_ms, leg_was_ms, is_cut=is_cut)


def twice_after_a_switch(self: Batches) -> Sequence[int]:
    return self.table.last.offsets if self.table.last is not None else ()


def lost_after_a_switch(_self: Batches) -> Sequence[int]:
    return ()


def markers_are_ignored(self: Batches, _batch: Any, _properties: dict[str, str], place: int, _code: int) -> bool:
    return place in self.table.places


def recalls_are_ignored(self: Batches, made: Any, properties: dict[str, str], _place: int, code: int) -> bool:
    return _is_recalled(self, made, properties, -1, code)


def passes_what_is_not_dispatched(*_: Any) -> int:
    return 1 << 62


def forgets_what_an_earlier_master_appended(self: Delivery) -> None:
    _begin(self)
    self._others = ()


def forgets_where_it_waited_first(_kind: int, _properties: dict[str, str], offset: int) -> int:
    return offset


def goes_by_the_leg_alone(properties: dict[str, str]) -> int | None:
    return 0 if due_by(properties) is not None else None


def fences_are_forgotten(self: Done, key: Key) -> bool:
    return key <= self.cursor


def a_fence_covers_what_comes_later(self: Done, to: Key, before: int) -> Done:
    return _set_back(self, to, before + 3)


def a_fence_lacks_the_last(self: Done, to: Key, before: int) -> Done:
    return _set_back(self, to, before - 1)


def fences_fall_with_the_next_batch(self: Done, to: Key, after: Key | None = None) -> Done:
    return _passed(self, to, after)._replace(fences=())


def the_cursor_stays(_self: SettingBack, _now_ms: int) -> bool:
    return False


def believes_whoever_is_silent(self: TimerClock, wall_ms: int, steady_ms: int, _others: Any, _stored_ms: int) -> None:
    self._ahead_ms = wall_ms - steady_ms


def counts_what_is_dispatched(self: SettingBack, now_ms: int) -> bool:
    with patch.object(self._log, "undispatched_units", return_value=[]):
        return _look(self, now_ms)


def forgets_what_was_left_behind(self: Lanes, done: Done) -> None:
    _begin_lanes(self, Done(done.front))


def forgets_what_overtook(self: Done, to: Key, after: Key | None = None) -> Done:
    return self if after is not None and to != after else _passed(self, to, after)


def closes_what_is_not_loaded(self: Horizon) -> bool:
    return self.end is not None and not self.count


def counts_what_was_left_as_done(self: Done, to: Key, after: Key | None = None) -> Done:
    return _passed(self, to)


def moves_are_forgotten(self: Done, key: Key) -> bool:
    return self.is_over(key)


def a_move_covers_what_stays(self: Batches, offsets: Sequence[int], before: int, now_ms: int) -> Any:
    return _of_moved(self, offsets, before + 1, now_ms)


def a_torn_move_is_delivered(self: Batches, offsets: Sequence[int], now_ms: int) -> Any:
    last = self.table.last
    assert last is not None
    with patch.object(self.table, "last", last._replace(before=0)):
        return _of_promised(self, offsets, now_ms)


def what_moved_is_in_memory_still(self: Batches, found: Sequence[Found], *args: Any, **more: Any) -> Any:
    with patch.object(self.table, "done", self.table.done._replace(moved=0)):
        return _of_due(self, found, *args, **more)


def what_moved_is_taken_for_delivered(self: TimerService, place: int, due_ms: int) -> bool:
    return _is_pending(self, place, due_ms) and not self.table.done.has(Key(due_ms, place))


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "early by a tick": (Horizon, "first", early_by_a_tick),
    "lost at roll": (batch, "rolled", lost_at_roll),
    "delivered when its leg ends": (batch, "due_by", goes_by_the_leg_alone),
    "twice after a switch": (Batches, "promised", twice_after_a_switch),
    "lost after a switch": (Batches, "promised", lost_after_a_switch),
    "delete markers are ignored": (Batches, "_is_recalled", markers_are_ignored),
    "recalls are ignored": (Batches, "_is_recalled", recalls_are_ignored),
    "the cursor passes what is not dispatched": (Delivery, "_may_pass_ms", passes_what_is_not_dispatched),
    "the same, of an earlier master": (Delivery, "begin", forgets_what_an_earlier_master_appended),
    "a rolled timer forgets its place": (batch, "place_of", forgets_where_it_waited_first),
    "fences are forgotten": (Done, "has", fences_are_forgotten),
    "a fence covers what comes later": (Done, "set_back", a_fence_covers_what_comes_later),
    "a fence lacks the last timer": (Done, "set_back", a_fence_lacks_the_last),
    "fences fall with the next batch": (Done, "passed", fences_fall_with_the_next_batch),
    "the cursor stays ahead": (SettingBack, "look", the_cursor_stays),
    "a new master asks no witness": (TimerClock, "begin", believes_whoever_is_silent),
    "what was left behind is forgotten at a switch": (Lanes, "begin", forgets_what_was_left_behind),
    "what overtook is forgotten, and comes twice": (Done, "passed", forgets_what_overtook),
    "what was left behind ends before it is loaded": (Horizon, "is_drained", property(closes_what_is_not_loaded)),
    "what was left behind is taken for done": (Done, "passed", counts_what_was_left_as_done),
    "moves are forgotten": (Done, "has", moves_are_forgotten),
    "a move covers what stays": (Batches, "of_moved", a_move_covers_what_stays),
    "a torn move is delivered": (Batches, "of_promised", a_torn_move_is_delivered),
    "what moved is in memory still": (Batches, "of_due", what_moved_is_in_memory_still),
    "what moved is taken for delivered": (TimerService, "is_pending", what_moved_is_taken_for_delivered),
    "a fence knows only what was dispatched": (SettingBack, "look", counts_what_is_dispatched),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(10 * SEEDS):
        try:
            World(seed).run(STEPS)
        except Wrong:
            return
    pytest.fail(f"nobody noticed: {name}")
