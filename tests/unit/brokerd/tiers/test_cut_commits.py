"""A commit of several records, of which the log has the first ones alone: who leads then has what the manifest says."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft
from brokerd.tiers import table
from remoting.tier.contents import Queue
from tests.unit.brokerd.tiers.test_model import GROWING
from tests.unit.brokerd.tiers.world import HOST, SHORT, World

QUEUE = Queue("Orders", 0)
QUEUES = [(topic, queue_id) for topic in ("Orders", SHORT) for queue_id in (0, 1)]


def world_within_a_commit() -> World:
    """The manifest has several changes; the log has those of all but the last record."""
    world = World(1)
    world.turns.run(5000)
    world.objects.has_no_manifest = (
        True  # so the commit of the first queue takes long, and the others are committed as one
    )
    drafts = [Draft(*queue, b"body", b"", world.turns.wall_ms(), HOST) for queue in QUEUES]
    world.core.record_log.append_messages(drafts)
    world.turns.run(5000)
    world.heal()
    tiers = world.core.tiers
    assert tiers._commits is not None
    for _ in range(100_000):
        if world.turns.is_due:
            world.turns.run_one()
        else:
            world.turns.pass_s(0.001)
        is_within = tiers.table.position < tiers._commits._writer.position
        if is_within and 1 < tiers.table.contents.holdings.segments < len(QUEUES):
            return world
    raise AssertionError("no commit had several records")


def test_a_master_that_died_between_the_records_of_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_CHANGES", 1)
    world = world_within_a_commit()
    world.restart(leaves_zombie=False)
    world.turns.run(120_000)
    tiers = world.core.tiers
    assert (tiers.is_open, tiers.trouble) == (True, "")
    assert [tiers.range_of(*queue).end for queue in QUEUES] == [1] * len(QUEUES)
    assert not len(tiers.pending)


def go_on(world: World) -> None:
    """By what falls due, or a millisecond."""
    if world.turns.is_due:
        world.turns.run_one()
    else:
        world.turns.pass_s(0.001)


def test_a_master_that_died_at_any_moment_of_an_append() -> None:
    """The next one has each message once, also when the dead one wakes up."""
    seen, step = set[tuple[int, int]](), 0
    while (2, 6) not in seen:
        world = World(3, GROWING, appends=True)
        world.turns.run(5000)
        tiers, end = world.core.tiers, 0
        for end in (3, 6):
            for _ in range(3):
                world.send_one(*QUEUE)
            if end == 3:
                world.turns.run(5000)
        while not tiers.is_growing(QUEUE):
            go_on(world)
        for _ in range(step):
            go_on(world)
        seen.add((world.stored.appends, tiers.range_of(*QUEUE).end))
        world.restart(leaves_zombie=step % 4 == 0)
        world.send_one(*QUEUE)
        world.finish()
        assert world.core.tiers.range_of(*QUEUE).end == end + 1
        step += 2
    assert seen == {(0, 3), (1, 3), (2, 3), (2, 6)}
