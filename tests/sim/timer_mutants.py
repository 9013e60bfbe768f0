"""Broken rules of timers, which stories with timers find: see `timer_checks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import patch

from brokerd.store.draft import Draft
from brokerd.timers import batch
from brokerd.timers.batch import Batch, Batches
from brokerd.timers.clock import TimerClock
from brokerd.timers.codes import START, Key
from brokerd.timers.cursor import Begin
from brokerd.timers.delivery import Delivery
from brokerd.timers.done import Done
from brokerd.timers.far import Found
from brokerd.timers.horizon import Horizon
from brokerd.timers.lanes import Lanes
from brokerd.timers.service import TimerService
from remoting.record.codec import Record
from tests.sim.mutants import Mutant, Tell, full, scenario
from tests.sim.timed_light import TimedLightStory
from tests.unit.brokerd.timers.test_service import test_a_batch_that_is_torn_anywhere_is_completed_by_the_next_master

# An administrator stays, who has others become the master.
_OTHERS: Final = ("p0", "p1", "g0", "g1", "popper", "ordered", "leaser", "transactor", "delayer", "backer", "owner")


def _early_by_a_tick(self: Horizon, until_ms: int, limit: int) -> list[Found]:
    """What is due in the next millisecond is delivered."""
    return _first(self, until_ms + 1, limit)


def _lost_at_roll(record: Record, place: int, due_ms: int, leg_ms: int | None, *, is_cut: bool = False) -> Draft:
    """A timer that was rolled once is due when it never comes."""
    return _rolled(record, place, due_ms + (1 << 40), leg_ms, is_cut=is_cut)


def _all_again(self: Batches) -> Sequence[int]:
    """A new master delivers what the last begin announced without a look at what follows it."""
    return self.table.last.offsets if self.table.last is not None else ()


def _not_again(_self: Batches) -> Sequence[int]:
    """A new master takes it for delivered that the last begin announced."""
    return ()


def _never_back(_self: Batches, _batch: Batch, _properties: dict[str, str], _place: int, _code: int) -> bool:
    """What was taken back is delivered."""
    return False


def _no_names(_self: Batches, _batch: Batch, _name: str, _slot_ms: int) -> None:
    """A delete marker does not count before the messages of its slot."""


def _where_it_was(self: Batch) -> Begin:
    """A begin does not record the cursor."""
    return _begin(self)._replace(to=START)


def _moves_past(self: Delivery, from_ms: int = 0) -> int | None:
    """The cursor moves past what is appended and not dispatched."""
    return 1 << 62


def _as_the_wall_says(_self: TimerClock, wall_ms: int, *_: Any) -> int:
    """A wall clock that somebody sets forward is believed at once."""
    return wall_ms


def _no_witness(*_: Any) -> None:
    """A new master believes its clock, whatever others say."""


def _no_fence(self: Done, key: Key) -> bool:
    """What was delivered before a clock went back is not remembered."""
    return key <= self.cursor


def _left_is_lost(self: Lanes, done: Done) -> None:
    """A new master forgets what was left behind while the newest overtook it."""
    _begin_lanes(self, Done(done.front, moved=done.moved))


def _overtaken_again(self: Done, to: Key, after: Key | None = None) -> Done:
    """What was delivered ahead of the cursor is not remembered."""
    return self if after is not None and to != after else _passed(self, to, after)


def _moved_in_memory(self: Batches, found: Sequence[Found], *args: Any, **more: Any) -> Batch:
    """What was in memory when it was moved is delivered from there, too."""
    with patch.object(self.table, "done", self.table.done._replace(moved=0)):
        return _of_due(self, found, *args, **more)


def _says(rule: Any) -> str:
    return " ".join((rule.__doc__ or "").split())


_first, _rolled, _begin = Horizon.first, batch.rolled, Batch.begin
_begin_lanes, _passed, _of_due = Lanes.begin, Done.passed, Batches.of_due


def _timers(mood: str, fault_ms: float = 2500) -> Tell:
    return full(mood, fault_ms=fault_ms, ingredients=("timers",), without_clients=_OTHERS)


def _light(seed: int) -> None:
    """The story of a seed."""
    TimedLightStory(seed).run()


def _light_mutant(name: str, rule: Any, owner: Any, attribute: str, within: int, first: int = 0) -> Mutant:
    """In light stories: these are quick."""
    return Mutant(
        f"{name}, light", "timers", _says(rule), ((owner, attribute, rule),), _light, within=within, first=first
    )


def _mutant(
    name: str,
    rule: Any,
    owner: Any,
    attribute: str,
    mood: str = "calm",
    within: int = 4,
    first: int = 0,
    *,
    is_quick: bool = False,
) -> Mutant:
    return Mutant(
        name,
        "timers",
        _says(rule),
        ((owner, attribute, rule),),
        _timers(mood),
        within=within,
        first=first,
        is_quick=is_quick,
    )


MUTANTS = (
    _mutant("timers early by a tick", _early_by_a_tick, Horizon, "first", is_quick=True),
    _mutant("timers lost at a roll", _lost_at_roll, batch, "rolled"),
    _mutant("timers twice after a switch", _all_again, Batches, "promised", within=20),
    Mutant(
        "timers lost in a torn batch",
        "timers",
        _says(_not_again),
        ((Batches, "promised", _not_again),),
        scenario(test_a_batch_that_is_torn_anywhere_is_completed_by_the_next_master, False),  # stories seldom tear one
        within=1,
    ),
    _mutant("recalls ignored", _never_back, Batches, "_is_recalled"),
    _mutant("delete markers ignored", _no_names, Batches, "_add_name", within=10),
    _mutant("cursor not recorded", _where_it_was, Batch, "begin", within=20),
    _mutant("cursor past what comes", _moves_past, Delivery, "_may_pass_ms", "processes", within=100),
    _mutant("timers by the wall clock", _as_the_wall_says, TimerClock, "now_ms", "network", within=100),
    _mutant("no witness of a clock", _no_witness, TimerClock, "begin", "clocks", within=100, first=35),
    _mutant("no fence behind a clock", _no_fence, Done, "has", "clocks", within=20),
    Mutant(
        "stamps before the cursor",
        "timers",
        "A timer is not stamped behind the cursor.",
        ((TimerService, "least_due_ms", property(lambda _: 0)),),
        _timers("processes"),
        within=100,
        is_quick=False,
    ),
    _light_mutant("timers early by a tick", _early_by_a_tick, Horizon, "first", 20, 40),
    _light_mutant("timers lost at a roll", _lost_at_roll, batch, "rolled", 10),
    _light_mutant("timers twice after a switch", _all_again, Batches, "promised", 100),
    _light_mutant("timers lost in a torn batch", _not_again, Batches, "promised", 100, 26),
    _light_mutant("recalls ignored", _never_back, Batches, "_is_recalled", 20),
    _light_mutant("delete markers ignored", _no_names, Batches, "_add_name", 40),
    _light_mutant("cursor not recorded", _where_it_was, Batch, "begin", 100),
    _light_mutant("cursor past what comes", _moves_past, Delivery, "_may_pass_ms", 400),
    _light_mutant("overtaken timers lost", _left_is_lost, Lanes, "begin", 200),
    _light_mutant("overtaking timers twice", _overtaken_again, Done, "passed", 100),
    _light_mutant("moved timers in memory", _moved_in_memory, Batches, "of_due", 100),
    Mutant(
        "stamps before the cursor, light",
        "timers",
        "A timer is not stamped behind the cursor.",
        ((TimerService, "least_due_ms", property(lambda _: 0)),),
        _light,
    ),
)
