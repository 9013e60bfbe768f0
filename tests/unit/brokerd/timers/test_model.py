"""Whatever happens in whatever order, each timer is delivered once, in time and in order; and the model finds wrong rules."""

from __future__ import annotations

from tests.unit.brokerd.timers.world import World

SEEDS = 30
STEPS = 150


def test_no_story_breaks_a_promise() -> None:
    worlds = [World(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.delivered for world in worlds) > 1000
