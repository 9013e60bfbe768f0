"""Timers that wait in a tier whose store fails, in random stories with logs that are cut: each is delivered once, in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from brokerd.tiers.stowage import Stowage
from brokerd.timers import collecting, returning, stowing
from brokerd.timers.batch import Batches
from brokerd.timers.collecting import Collecting
from brokerd.timers.cursor import Begin, TimerTable
from brokerd.timers.returning import Returning
from brokerd.timers.tier import Fetched
from remoting.tier import stowed
from remoting.tier.stowed import StowedObject
from tests.unit.brokerd.timers import test_model
from tests.unit.brokerd.timers.test_model import small_portions as small_portions
from tests.unit.brokerd.timers.tiered_world import TieredWorld
from tests.unit.brokerd.timers.world import Wrong

SEEDS = 60
STEPS = test_model.STEPS


@pytest.fixture(autouse=True)
def small_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MOST_OTHERS", 3)
    monkeypatch.setattr(collecting, "MOST_TIMERS", 6)
    monkeypatch.setattr(collecting, "WORTH_AN_OBJECT", 1)
    monkeypatch.setattr(collecting, "_READ_AT_ONCE", 2)
    monkeypatch.setattr(returning, "MOST_DECODED", 4)
    monkeypatch.setattr(returning, "MOST_AT_ONCE", 2)
    monkeypatch.setattr(stowing, "_REST_S", 3.0)
    monkeypatch.setattr(stowed, "HOUR_MS", 1000)
    monkeypatch.setattr(stowed, "_LEAST_BLOCK_BYTES", 1)
    monkeypatch.setattr(stowed, "_BLOCK_BYTES", 600)


def test_no_story_breaks_a_promise() -> None:
    worlds = [TieredWorld(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.stowed for world in worlds) > 200
    assert sum(world.returned for world in worlds) > 200
    assert sum(world.torn_stows + world.torn_returns for world in worlds) > 3, "such records were cut from what follows"
    assert sum(world.swept for world in worlds) > 30
    assert sum(world.faults for world in worlds) > 15
    assert sum(world.delivered for world in worlds) > 1000


_fetched, _batch_of = Returning._fetched, Collecting.batch
_promised, _note, _torn = Batches.promised, TimerTable._note, Batches._of_torn_return
_store = Stowage.store


def gone_before_it_is_in_the_log(self: Returning, life: int, entry: StowedObject, fetched: Fetched | None) -> None:
    """The object is removed when it was read to its end."""
    _fetched(self, life, entry, fetched)
    if fetched is not None and fetched.next_ms is None:
        self._tier.retire(entry)


def gone_before_it_is_acknowledged(self: Stowage, entry: StowedObject) -> None:
    self.retire(entry)


def a_sweep_goes_by_the_table_alone(self: Stowage, entry: StowedObject) -> None:
    """What was taken out of the log's table a moment ago counts as garbage."""


def named_though_it_is_not_there(self: Stowage, timers: Any, before: int, done: Any) -> None:
    head = stowed.encode_head([stowed.encode_block(part) for part in stowed.in_blocks(timers)])
    made = [stowed.describe(head, 1, 1 + len(timers) + before, before)]
    _store(self, timers, before, lambda entry: done(made[0] if entry is None and self.is_open else entry))


def what_came_meanwhile_is_not_looked_at(self: Collecting, entry: StowedObject, now_ms: int) -> Any:
    others = [key.offset for key in self._others]
    batch = self._batches.of_moved(others, self.at, now_ms)
    batch.taken, batch.stowed = batch.taken + len(self._far), entry
    return batch if batch.before == self.at else None


def a_torn_return_counts_as_whole(self: Batches) -> Sequence[int]:
    return () if self.table.last is not None and self.table.last.is_return else _promised(self)


def a_torn_return_counts_as_nothing(self: Batches, last: Begin, _missing: int) -> Any:
    return _torn(self, last, last.offsets[0])


def what_returned_stays_in_the_table(self: TimerTable, entry: StowedObject, days: Any, sign: int) -> None:
    _note(self, entry if sign > 0 else entry._replace(returned=max(0, entry.returned - 1)), days, sign)


def its_place_is_forgotten(properties: dict[str, str], name: str) -> int | None:
    return None


MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "an object goes before its timers are in the log": (Returning, "_fetched", gone_before_it_is_in_the_log),
    "an object goes before that is acknowledged": (Stowage, "hold", gone_before_it_is_acknowledged),
    "a sweep goes by the table alone": (Stowage, "hold", a_sweep_goes_by_the_table_alone),
    "the log names what is not there": (Stowage, "store", named_though_it_is_not_there),
    "what was delivered meanwhile is stowed": (Collecting, "batch", what_came_meanwhile_is_not_looked_at),
    "a torn return counts as whole": (Batches, "promised", a_torn_return_counts_as_whole),
    "a torn return counts as nothing": (Batches, "_of_torn_return", a_torn_return_counts_as_nothing),
    "the last one returns twice": (TimerTable, "_note", what_returned_stays_in_the_table),
    "what returns forgets its place": (returning, "number_of", its_place_is_forgotten),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(4 * SEEDS):
        try:
            TieredWorld(seed).run(STEPS)
        except Wrong:
            return
    pytest.fail(f"nobody noticed: {name}")
