"""What the console says of a tier's trouble is so now: it ends with the trouble, also when nothing is uploaded any more."""

from __future__ import annotations

from brokerd.store.draft import Draft
from tests.unit.brokerd.tiers.world import HOST, World

TOPIC = "Orders"


def troubled_world() -> World:
    """A message waits, and the store does not answer."""
    world = World(1)
    world.turns.run(5000)
    assert world.core.tiers.is_open
    world.objects.is_down = True
    world.core.record_log.append_messages([Draft(TOPIC, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    world.turns.run(5000)
    assert world.core.tiers.trouble
    return world


def test_it_ends_when_the_store_is_well_again() -> None:
    world = troubled_world()
    world.heal()
    world.turns.run(120_000)
    assert (world.core.tiers.trouble, len(world.core.tiers.pending)) == ("", 0)


def test_it_ends_when_what_could_not_be_uploaded_is_not_wanted_any_more() -> None:
    world = troubled_world()
    world.switch(TOPIC)
    world.turns.run(30_000)
    assert (world.core.tiers.trouble, len(world.core.tiers.pending)) == ("", 0)


def test_it_ends_when_what_could_not_be_removed_is_removed_at_last() -> None:
    world = troubled_world()
    world.heal()
    world.turns.run(120_000)
    tiers = world.core.tiers
    assert tiers._commits is not None
    world.objects.fails_before = 1.0
    tiers._loop.spawn(tiers._commits._remove_old(), "remove")
    world.turns.run(1000)
    assert tiers.trouble
    world.heal()
    world.turns.run(60_000)
    assert not tiers.trouble
