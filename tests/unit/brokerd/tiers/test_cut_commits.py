"""A commit of several records, of which the log has the first ones alone: who leads then has what the manifest says."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft
from brokerd.tiers import table
from tests.unit.brokerd.tiers.world import HOST, SHORT, World

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
