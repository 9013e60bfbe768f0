"""Whatever happens in whatever order, each message that was sent is read where it was, from the files or from the tier."""

from __future__ import annotations

from tests.unit.brokerd.tiers.world import World

SEEDS = 12
STEPS = 60


def test_no_story_loses_a_message() -> None:
    worlds = [World(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.cold_reads for world in worlds) > 30
    assert sum(world.misses for world in worlds) > 50
    assert sum(world.viewed for world in worlds) > 10
    assert sum(world.queried for world in worlds) > 500
    assert sum(world.faults for world in worlds) > 50
    assert sum(world.zombies for world in worlds) > 5
    assert sum(world.removed_files for world in worlds) > 30
