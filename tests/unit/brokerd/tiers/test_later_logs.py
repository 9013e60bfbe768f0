"""A log that begins later than its tier: a queue whose messages are all in the tier goes on behind them."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft
from brokerd.store.queues.queue_reads import GetStatus
from tests.unit.brokerd.tiers.world import HOST, SEGMENT_BYTES, SHORT, World

OLD = ("Orders", 0)


def world_with_an_old_queue() -> World:
    """Its messages are in the tier alone."""
    world = World(1)
    world.heal()
    append(world, *OLD, count=3)
    for _ in range(4):
        append(world, SHORT, 1, count=SEGMENT_BYTES // 9000)
        world.turns.run(20_000)
    world.store.checkpoint()
    world.remove_files(needs_room=False)
    assert world.store.local_min_offset(*OLD) == world.store.max_offset(*OLD) == 3
    return world


def append(world: World, topic: str, queue_id: int, count: int) -> None:
    for _ in range(count):
        draft = Draft(topic, queue_id, b"x" * 9000, b"", world.turns.wall_ms(), HOST)
        world.core.record_log.append_messages([draft])
    world.turns.run()


@pytest.mark.parametrize("files", ["", "consumequeue"])
def test_such_a_queue_is_read_and_goes_on_after_a_start_without_its_files(files: str) -> None:
    world = world_with_an_old_queue()
    world.core.close()
    world.store.close()
    if files:
        world.disk.remove(files)
    world.start()
    world.turns.run(20_000)
    assert (world.store.min_offset(*OLD), world.store.max_offset(*OLD)) == (0, 3)
    result = world._read(OLD, 0)
    assert result.status is GetStatus.FOUND
    append(world, *OLD, count=1)
    assert world.store.max_offset(*OLD) == 4
    world.turns.run(20_000)
    segments = world.core.tiers.range_of(*OLD)
    assert (segments.first, segments.end) == (0, 4)
