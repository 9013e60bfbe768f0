"""A master whose disk stands still while it goes on speaking: it ends no sync, so it acknowledges nothing."""

from __future__ import annotations

import pytest

from remoting.facts.words import DiskPace
from tests.sim.broker import SimBroker
from tests.sim.cluster import SimCluster
from tests.sim.standing import stand
from tests.sim.test_suspects import finish, healthy

_STANDS_MS = 8000
_NOTICED_MS = (
    2500  # a second until a disk stands, a heartbeat, the election, and until clients have found the new master
)
_SLOW_MS = (1100.0, 1300.0)  # syncs of disks that work, and take longer than makes one stand
_SLOW_FOR_MS = 20_000


def lead_and_stand(seed: int) -> tuple[SimCluster, SimBroker]:
    cluster = healthy(seed)
    assert cluster is not None
    master = cluster.master()
    assert master is not None
    stand(master, _STANDS_MS)
    return cluster, master


def epoch_of(cluster: SimCluster) -> int:
    group = cluster.truth.group
    assert group is not None
    return group.master_epoch


def acknowledged(cluster: SimCluster) -> int:
    return len(cluster.history.acknowledged)


def another_leads(seed: int) -> None:
    """Long before the disk goes on others acknowledge, and the one that stands is a replica again when it went on."""
    cluster, stuck = lead_and_stand(seed)
    world = cluster.world
    assert world.run_until(lambda: cluster.master() not in (None, stuck), _NOTICED_MS), "nobody else leads"
    before = acknowledged(cluster)
    world.run(1000)
    assert acknowledged(cluster) > before, "nothing is acknowledged though another one leads"
    assert stuck.driver.machine.disk.stands
    assert not stuck.driver.is_master, "it knows, and steps down"
    assert not stuck.is_paused, "its loop does not wait for the disk: it answers that it leads no more"
    assert stuck.waiting == 0
    world.run(_STANDS_MS)
    finish(cluster)
    assert world.run_until(cluster.all_in_set, 20_000)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_master_whose_disk_stands_gives_way_and_comes_back_as_a_replica(seed: int) -> None:
    another_leads(seed)


def slow_together(seed: int) -> None:
    """Disks that are slow together pass nothing on, whatever each of them would be called alone."""
    cluster = healthy(seed)
    assert cluster is not None
    world, epoch = cluster.world, epoch_of(cluster)
    for broker in cluster.brokers:
        broker.sync_ms = _SLOW_MS
        broker.disk.in_the_middle = None  # a sync there takes no time
    before = acknowledged(cluster)
    stood = set()
    for _ in range(_SLOW_FOR_MS // 50):
        world.run(50)
        stood |= {each.name for each in cluster.brokers if each.driver.machine.disk.pace is DiskPace.STANDS}
    assert epoch_of(cluster) == epoch, "the lead was passed on"
    assert stood, "no sync took long enough to prove anything"
    assert acknowledged(cluster) > before
    for broker in cluster.brokers:
        broker.sync_ms = (0.2, 3.0)
    finish(cluster)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_disks_that_are_slow_together_pass_no_lead_on(seed: int) -> None:
    slow_together(seed)


def test_where_all_disks_stand_the_master_stays_and_goes_on_with_them() -> None:
    cluster, master = lead_and_stand(0)
    epoch = epoch_of(cluster)
    for broker in cluster.brokers:
        if broker is not master:
            stand(broker, _STANDS_MS)
    cluster.world.run(_STANDS_MS - 1000)
    assert (epoch_of(cluster), master.driver.is_master) == (epoch, True)
    before = acknowledged(cluster)
    cluster.world.run(3000)
    assert acknowledged(cluster) > before
    finish(cluster)
