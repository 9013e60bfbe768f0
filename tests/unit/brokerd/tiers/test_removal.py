"""Objects leave the tier in time, whatever becomes of the wall clock."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from brokerd.store.draft import Draft
from brokerd.tiers.removal import DELAY_MS, SWEEP_MS, YOUNG_MS, Removal
from remoting.tier.contents import Queue, TierContents
from remoting.tier.segments import Segment
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns
from tests.unit.brokerd.tiers.world import HOST, HOUR_MS, World

QUEUE = Queue("Orders", 0)
AHEAD_MS = 8 * 24 * HOUR_MS
A_WHILE_MS = 180_000  # longer than it takes until somebody looks


def test_a_clock_that_was_ahead_and_is_set_back_puts_off_nothing() -> None:
    world = World(1)
    world.core.record_log.append_messages([Draft(QUEUE.topic, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    world.turns.run(60_000)
    used = world.core.tiers.segments_of(QUEUE).last
    (of_the_dead, _), (of_ours, _) = (used._replace(number=number).names(*QUEUE) for number in (98, 99))
    world.stored.put(of_the_dead, b"nobody names it", world.turns.wall_ms() - 2 * HOUR_MS)
    world.stored.put(of_ours, b"a commit took it out", world.turns.wall_ms())
    world.turns.set_wall_clock(AHEAD_MS)
    world.restart(leaves_zombie=False)
    world.turns.run(5000)
    tiers = world.core.tiers
    assert tiers.upkeep is not None
    tiers.upkeep.removal.add([of_ours])
    world.turns.set_wall_clock(-AHEAD_MS)
    world.turns.run(DELAY_MS + A_WHILE_MS)
    assert of_ours not in world.stored.objects
    for _ in range(SWEEP_MS // HOUR_MS):
        world.turns.run(HOUR_MS)
    world.turns.run(A_WHILE_MS)
    assert of_the_dead not in world.stored.objects
    assert {*used.names(*QUEUE)} <= world.stored.objects.keys()


def test_what_somebody_was_killed_over_goes_with_a_sweep_and_what_is_being_written_stays() -> None:
    world = World(1)
    now_ms = world.turns.wall_ms() + world.stored.skew_ms
    world.stored.unfinished = {"of the dead": now_ms - YOUNG_MS, "of who writes": now_ms + DELAY_MS}
    world.turns.run(DELAY_MS + A_WHILE_MS)
    assert world.stored.unfinished.keys() == {"of who writes"}
    assert world.core.tiers.upkeep is not None
    assert world.core.tiers.upkeep.removal.swept == 1


class Owner:
    """Names nothing, and owns the tier."""

    epoch = 1

    def __init__(self) -> None:
        self.contents = TierContents()

    def next_number(self) -> int:
        return 7

    def is_stowed(self, _epoch: int, _number: int) -> bool:
        return False


class Commits:
    def is_on_its_way(self, *_: object) -> bool:
        return False


def test_what_two_changes_take_out_stays_until_both_are_over() -> None:
    """A topic is deleted while some of it is being merged: when nothing comes of one, the other is not acknowledged yet."""
    turns, stored = Turns(), Stored()
    steps, owner, commits = Steps(turns), Owner(), Commits()
    segment = Segment(0, 1, 0, 9, 9, 1, 1, 9, 1, 3, 0, 0)
    names = segment.names(*QUEUE)
    for name in names:
        stored.put(name, b"", turns.wall_ms() - 2 * HOUR_MS)
    unlucky: Any = owner, commits
    removal = Removal(FaultyObjects(stored, steps, turns, Random(1)), *unlucky, steps.loop())
    for _ in range(2):
        removal.hold(names)
    removal.release(names)
    sweep(removal, turns)
    assert stored.objects.keys() == {*names}, "a log that is cut at this moment names them"
    removal.add(names)
    sweep(removal, turns)
    assert not stored.objects


@pytest.mark.parametrize("ends", ["release", "add"])
def test_what_nothing_takes_out_any_more_is_swept_when_nobody_names_it(ends: str) -> None:
    turns, stored = Turns(), Stored()
    steps, owner, commits = Steps(turns), Owner(), Commits()
    names = Segment(0, 1, 0, 9, 9, 1, 1, 9, 1, 3, 0, 0).names(*QUEUE)
    for name in names:
        stored.put(name, b"", turns.wall_ms() - 2 * HOUR_MS)
    unlucky: Any = owner, commits
    removal = Removal(FaultyObjects(stored, steps, turns, Random(1)), *unlucky, steps.loop())
    for _ in range(2):
        removal.hold(names)
        removal.release(names)
    if ends == "add":
        removal.add(names)
        assert removal.waiting == 2
    sweep(removal, turns)
    assert not stored.objects


def sweep(removal: Removal, turns: Turns) -> None:
    """Whatever is due in a day."""
    for _ in range(2):
        turns.run(SWEEP_MS)
        removal.tend(turns.wall_ms())
        turns.run(60_000)
