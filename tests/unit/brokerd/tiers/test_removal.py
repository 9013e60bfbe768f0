"""Objects leave the tier in time, whatever becomes of the wall clock."""

from __future__ import annotations

from brokerd.store.draft import Draft
from brokerd.tiers.removal import DELAY_MS, SWEEP_MS
from remoting.tier.contents import Queue
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
