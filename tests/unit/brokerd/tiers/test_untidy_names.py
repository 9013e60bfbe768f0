"""Objects beside those of a tier that are called nearly like them: whoever put them there keeps nobody from anything."""

from __future__ import annotations

import random

import pytest

from brokerd.store.draft import Draft
from brokerd.tiers.mounting.leases import latest_lease
from brokerd.tiers.mounting.states import StateWriter, read_state
from remoting.tier.contents import Queue
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns
from tests.unit.brokerd.tiers.world import HOST, World

QUEUE = Queue("Orders", 0)
NEARLY = ("\u00b2-\u00b2", "7-1", "99999999999999999999-x", ".DS_Store", f"{'9' * 40}-{'9' * 40}", "\u00b2" * 20, "zzz")


@pytest.mark.parametrize("restarts", [True, False])
def test_a_broker_opens_its_tier_and_uploads(restarts: bool) -> None:
    world = World(1)
    world.turns.run(5000)
    for directory in ("manifest", "lease", "state", "timers", "clock", "Orders/0/COMMIT_LOG", "rmq_sys_INDEX/0/INDEX"):
        for name in NEARLY:
            world.stored.put(f"{directory}/{name}", b"whatever", world.turns.wall_ms())
    if restarts:
        world.restart(leaves_zombie=False)
        world.turns.run(5000)
    world.core.record_log.append_messages([Draft(QUEUE.topic, 0, b"body", b"", world.turns.wall_ms(), HOST)])
    world.turns.run(60_000)
    tiers = world.core.tiers
    assert (tiers.is_open, tiers.trouble) == (True, "")
    assert tiers.segments_of(QUEUE).end == 1


def test_a_mount_reads_the_last_state_and_lease() -> None:
    turns, stored = Turns(), Stored()
    steps = Steps(turns)
    objects = FaultyObjects(stored, steps, turns, random.Random(1))
    for directory in ("lease", "state"):
        for name in NEARLY:
            stored.put(f"{directory}/{name}", b"whatever", 0)
    found: list[object] = []

    async def story() -> None:
        for number in range(4):
            await StateWriter(objects, number).write([["topic", number]])
        found.extend((await read_state(objects), await latest_lease(objects)))

    steps.spawn(story(), "write states and read")
    turns.run(60_000)
    assert found == [[["topic", 3]], None]
    assert {f"state/{name}" for name in NEARLY} <= set(stored.objects), "they are not ours to remove"
