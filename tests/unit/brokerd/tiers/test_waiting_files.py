"""Local files wait for what is not in the tier yet, from the first moment on, however many queues there are."""

from __future__ import annotations

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.draft import Draft
from brokerd.tiers import service
from tests.unit.brokerd.tiers.world import HOST, World

TOPIC = "Wide"
QUEUES = 12


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Each queue has a message that the object store does not take; a turn of the loop looks at three queues."""
    monkeypatch.setattr(service, "_SLICE", 3)
    world = World(1)
    world.objects.is_down = True
    done: list[object] = []
    world.core.metadata.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES, 6), done.append)
    world.turns.run()
    drafts = [Draft(TOPIC, queue_id, b"body", b"", world.turns.wall_ms(), HOST) for queue_id in range(QUEUES)]
    world.core.record_log.append_messages(drafts)
    world.turns.run()
    return world


def first_of(world: World) -> int:
    return world.store.read_units(TOPIC, 0, 0, 1)[0][0]


def check_until_all_is_looked_at(world: World) -> None:
    first, tiers = first_of(world), world.core.tiers
    for _ in range(2 * QUEUES):
        held = tiers.waiting_offset()
        assert held is not None
        assert held <= first, f"{len(tiers.pending)} queues are looked at"
        world.turns.run_one()
    assert len([queue for queue in tiers.pending.queues() if queue.topic == TOPIC]) == QUEUES
    assert tiers.waiting_offset() == first


def test_when_the_log_was_cut(world: World) -> None:
    world.broker.replica.become(Role.REPLICA)
    world.core.tiers.truncated(world.store.commitlog.end_offset)
    check_until_all_is_looked_at(world)


def test_when_the_tables_are_read_again(world: World) -> None:
    world.core.tiers.rebuild()
    check_until_all_is_looked_at(world)
