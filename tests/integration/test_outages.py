"""How long a silent broker may hold up the sends: real processes, frozen, with the settings that everybody has.

The limits are the settings' own (how long silence is borne at most, what may come on top of it) and room for a busy machine:
what is asserted is that the design's time holds, not how fast this machine is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brokerd.replication.settings import ReplicationSettings
from controllerd.settings import LivenessSettings, RaftSettings
from tests.support.cluster import Cluster, Process, eventually
from tests.support.senders import Senders
from tests.support.workload import check_queue, read_queue

pytestmark = pytest.mark.slow

SETTINGS = ReplicationSettings()
ROOM_MS = 3000  # election, promotion and the sends themselves
MASTER_LIMIT_S = (SETTINGS.controller_heartbeat_timeout_ms + LivenessSettings().scan_ms + ROOM_MS) / 1000
REPLICA_LIMIT_S = (
    max(SETTINGS.silence_limit_ms, SETTINGS.not_caught_up_ms) + SETTINGS.reconnect_grace_ms + ROOM_MS
) / 1000

RAFT = RaftSettings()
ELECTION_LIMIT_S = 2 * RAFT.election_ticks * RAFT.tick_ms / 1000


@pytest.fixture
def senders(cluster: Cluster, topic: str) -> Iterator[Senders]:
    senders = Senders(cluster.broker_addresses, topic, pause_s=0.01)
    senders.start()
    eventually("the first sends", lambda: senders.acknowledged > 20)
    yield senders
    senders.abandon()


def check_everything(cluster: Cluster, topic: str, senders: Senders) -> None:
    """The group becomes whole again, sends go on, and what was acknowledged is there."""
    cluster.wait_in_sync(3)
    before = senders.acknowledged
    assert before > 20
    eventually("sends into the whole group", lambda: senders.acknowledged > before + 10)
    histories = senders.stop()
    check_queue(read_queue(cluster.admin, topic, 0), histories)


def count_decided(cluster: Cluster) -> int:
    """How many elections the controllers told of."""
    return sum(each.log_text().count("was decided") for each in cluster.controllers)


def test_a_frozen_master_is_replaced_in_time(cluster: Cluster, topic: str, senders: Senders) -> None:
    before = count_decided(cluster)
    for _ in range(2):
        master = cluster.master()
        frozen_s = time.monotonic()
        cluster.brokers[master].freeze()
        took_s = senders.first_success_elsewhere(master, frozen_s) - frozen_s
        cluster.brokers[master].thaw()
        assert took_s <= MASTER_LIMIT_S
        assert took_s > SETTINGS.controller_heartbeat_ms / 1000, "nobody can know so soon: it was not frozen"
        cluster.wait_in_sync(3)
        assert cluster.master() != master
    assert count_decided(cluster) >= before + 2, "one election for each freeze, and its time is told"
    check_everything(cluster, topic, senders)


def test_a_frozen_replica_holds_sends_up_for_a_moment_and_costs_no_election(
    cluster: Cluster, topic: str, senders: Senders
) -> None:
    before = cluster.wait_in_sync(3)
    replica = (cluster.master() + 1) % 3
    frozen_s = time.monotonic()
    cluster.brokers[replica].freeze()
    resumed_s = senders.first_success(frozen_s + 0.2)
    after = cluster.wait_in_sync(2)
    blocked_s = senders.longest_gap(frozen_s, max(resumed_s, time.monotonic()))
    cluster.brokers[replica].thaw()
    assert len(after["syncStateSet"]) == 2, (
        "all must have a message, so a frozen member has to leave before sends go on"
    )
    assert blocked_s <= REPLICA_LIMIT_S
    assert blocked_s > SETTINGS.heartbeat_ms / 1000, "sends did not need the frozen replica"
    check_everything(cluster, topic, senders)
    assert cluster.wait_in_sync(3)["masterEpoch"] == before["masterEpoch"]


def test_another_leader_of_the_controllers_changes_nothing_for_the_brokers(
    cluster: Cluster, topic: str, senders: Senders
) -> None:
    before = cluster.wait_in_sync(3)
    for stop, resume in ((Process.freeze, Process.thaw), (Process.kill, Process.start)):
        leader = cluster.controllers[cluster.leader()]
        stop(leader)
        eventually("another leader", lambda leader=leader: cluster.controllers[cluster.leader()] is not leader)
        goal = senders.acknowledged + 10
        eventually("sends under the new leader", lambda goal=goal: senders.acknowledged > goal)
        resume(leader)
    assert cluster.wait_in_sync(3)["masterEpoch"] == before["masterEpoch"]
    check_everything(cluster, topic, senders)
    assert all(not history.unknown for history in senders.histories)


def test_a_frozen_replica_leaves_in_time_although_the_leading_controller_froze_with_it(
    cluster: Cluster, topic: str, senders: Senders
) -> None:
    """They share a machine, say: the master has to find the next leader before it can have the set changed."""
    before = cluster.wait_in_sync(3)
    replica, leader = (cluster.master() + 1) % 3, cluster.leader()
    frozen_s = time.monotonic()
    cluster.controllers[leader].freeze()
    cluster.brokers[replica].freeze()
    resumed_s = senders.first_success(frozen_s + 0.2)
    blocked_s = senders.longest_gap(frozen_s, resumed_s)
    cluster.controllers[leader].thaw()
    cluster.brokers[replica].thaw()
    assert blocked_s <= max(REPLICA_LIMIT_S, ELECTION_LIMIT_S + ROOM_MS / 1000)
    check_everything(cluster, topic, senders)
    after = cluster.wait_in_sync(3)
    assert after["masterEpoch"] == before["masterEpoch"]
    assert after["syncStateSetEpoch"] >= before["syncStateSetEpoch"] + 2, "out of the set, and back"
