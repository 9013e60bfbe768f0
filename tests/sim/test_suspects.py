"""All machines lose power, and a bit of one broker's log is bad that no checkpoint on a disk proves durable."""

from __future__ import annotations

import pytest

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.store.start.checkpoint_page import decode_page
from tests.sim.broker import SimBroker
from tests.sim.checks import check_end
from tests.sim.cluster import SimCluster, Story
from tests.sim.world import Violation

_ALL_CLIENTS = frozenset(
    {"admin", "owner", "popper", "ordered", "transactor", "delayer", "backer", "g0", "g1", "g2", "g3"}
)


def healthy(seed: int) -> SimCluster | None:
    """A cluster with a master and all of its brokers in the set, and messages; None for seeds that are otherwise."""
    cluster = SimCluster(Story(seed, "calm", without_clients=_ALL_CLIENTS))
    for node in cluster.nodes:
        node.start()
    assert cluster.world.run_until(lambda: cluster.master() is not None, 20_000)
    cluster._create()
    cluster._employ()
    cluster.world.run(3000)
    cluster.injector.later = lambda *_: None
    return cluster if cluster.all_in_set() and len(cluster.brokers) == 3 else None


def lose_power(cluster: SimCluster) -> dict[str, int]:
    """Every machine, at once, with the pages that no sync covered; how far each page on the platter proves the log durable."""
    durable = {}
    for broker in cluster.brokers:
        page = decode_page(bytes(broker.disk.files["checkpoint"].platter.held))
        assert page is not None
        durable[broker.name] = page.flushed_offset
    for node in cluster.nodes:
        if "checkpoint" in node.disk.files:
            node.disk.files["checkpoint"].unsynced.clear()
        node.crash()
    return durable


def flip(cluster: SimCluster, broker: SimBroker, at: int) -> None:
    size = cluster._store.segment_size_bytes
    broker.disk.flip_bit(f"commitlog/{at - at % size:020d}", at % size, 1)


def start_controllers(cluster: SimCluster) -> None:
    for controller in cluster.controllers:
        if controller.name in controller.founders or not controller.founders:
            controller.start()


def finish(cluster: SimCluster) -> None:
    for client in cluster.clients:
        client.stop()
    cluster._settle("healed")
    check_end(cluster)


def tell(seed: int) -> None:
    """A rack loses power; one bit of one synced log flips; that broker is there first."""
    cluster = healthy(seed)
    assert cluster is not None
    world = cluster.world
    victim = next(each for each in cluster.brokers if each is not cluster.master())
    acknowledged = len(cluster.history.acknowledged)
    flushed = victim.core.store.commitlog.flushed_offset
    durable = lose_power(cluster)
    assert flushed > durable[victim.name] + 200
    flip(cluster, victim, durable[victim.name] + 100)
    start_controllers(cluster)
    victim.start()
    world.run(4000)
    for broker in cluster.brokers:
        cluster.restart(broker)
    world.run(3000)
    finish(cluster)
    assert len(cluster.history.acknowledged) >= acknowledged > 0
    assert victim.core.store.suspicion is None
    # It may have told once more what it was suspected of, and left the set for that.
    assert world.run_until(cluster.all_in_set, 20_000)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rotten_log_that_is_there_first_cuts_nobody(seed: int) -> None:
    tell(seed)


def test_the_story_finds_a_start_that_tells_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreReplicatedLog, "keeps_tail", lambda self, acked_after_flush: True)
    with pytest.raises((AssertionError, Violation)):
        tell(0)
