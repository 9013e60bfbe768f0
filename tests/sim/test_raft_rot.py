"""A controller forgets what it promised, while the only other member that knows it is away: no decision is undone by that."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.sim.checks import check_end
from tests.sim.cluster import SimCluster, Story
from tests.sim.controller import SimController
from tests.support.disks import MemoryFile

# One is enough: in the stories of the next one no controller gets a message in a role, or notes what, it does not in these.
SEEDS = (0,)


Files = dict[str, MemoryFile]


def _newest_log(controller: SimController) -> str:
    return max(path for path in controller.disk.files if path.startswith("raft/log-"))


def _flip(controller: SimController, _: Files) -> None:
    """One bit of its last record, synced and acknowledged long ago."""
    path = _newest_log(controller)
    controller.disk.flip_bit(path, controller.disk.files[path].seen.size - 7, 0)
    controller.world.note(f"one bit of {controller.name} {path} flips")


def _lose(controller: SimController, _: Files) -> None:
    controller.disk.remove(_newest_log(controller))
    controller.world.note(f"the log of {controller.name} vanishes")


def put_back(controller: SimController, copied: Files) -> None:
    """What its directory held before it was started last."""
    controller.disk.files.clear()
    controller.disk.files.update(copied)
    controller.world.note(f"an older copy of {controller.name}'s directory is put back")


def _started_again(cluster: SimCluster, controller: SimController) -> Files:
    """What its directory held while it ran, before this start."""
    copied = copy.deepcopy(controller.disk.files)
    controller.kill()
    controller.start()
    cluster.world.run(1500)
    return copied


def _begun(seed: int) -> SimCluster:
    cluster = SimCluster(Story(seed, "calm", without_clients=frozenset({"admin", "owner"})))
    for node in cluster.nodes:
        node.start()
    assert cluster.world.run_until(lambda: cluster.master() is not None, 20_000)
    cluster._create()
    cluster._employ()
    cluster.world.run(2500)
    return cluster


def _is_back(cluster: SimCluster, controller: SimController) -> bool:
    leader = cluster.leader()
    return (
        leader is not None
        and controller.node_id != controller.name
        and (
            controller.node_id in leader.node.core.configuration.voters
            and controller.name in leader.node.core.configuration.retired
        )
    )


def _end(cluster: SimCluster) -> None:
    for client in cluster.clients:
        client.stop()
    cluster._settle("healed")
    cluster._let_clients_end()
    cluster._settle("left alone")
    check_end(cluster)


@pytest.mark.parametrize("damage", [_flip, _lose, put_back])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_decided_entry_outlives_the_controller_that_forgot_it(
    seed: int, damage: Callable[[SimController, Files], None]
) -> None:
    """The set shrinks by a decision that the leader and one follower hold; that follower's last record rots, and the leader goes
    away. The third controller and the rotten one must not decide anything before it is back."""
    cluster = _begun(seed)
    world, cut = cluster.world, cluster.network.cut
    leader = cluster.leader()
    assert leader is not None
    witness, stranger = (each for each in cluster.controllers[:3] if each is not leader)
    copied = _started_again(cluster, witness)
    assert cluster.leader() is leader
    for node in [*cluster.nodes, *cluster.clients]:
        if node is not stranger:
            cut(node.name, stranger.name)
            cut(stranger.name, node.name)
    world.run(400)
    out = next(broker for broker in cluster.brokers if broker is not cluster.master())
    out.kill()
    assert world.run_until(lambda: cluster.id_of(out) not in cluster.truth.group.sync_state_set, 8000)
    world.run(1200)
    assert cluster.leader() is leader
    witness.kill()
    witness.is_damaged = True
    damage(witness, copied)
    leader.kill()
    for broker in cluster.brokers:
        if broker.is_running:
            broker.kill()
    cluster.network.heal()
    witness.start()
    out.start()
    world.run(6000)
    assert cluster.leader() is None, "nobody can know what was decided"
    leader.start()
    for broker in cluster.brokers:
        cluster.restart(broker)
    assert world.run_until(lambda: _is_back(cluster, witness), 20_000)
    _end(cluster)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_after_the_other_they_forget_and_come_back(seed: int) -> None:
    """With a healthy majority all the time the group takes each of them again, and one of them twice."""
    cluster = _begun(seed)
    for controller in (*cluster.controllers[:3], cluster.controllers[0]):
        before = controller.node_id
        controller.is_damaged = True
        _flip(controller, {})
        controller.kill()
        controller.start()
        assert cluster.world.run_until(
            lambda controller=controller, before=before: (
                controller.node_id != before
                and (leader := cluster.leader()) is not None
                and controller.node_id in leader.node.core.configuration.voters
                and before in leader.node.core.configuration.retired
            ),
            20_000,
        )
    leader = cluster.leader()
    assert leader is not None
    assert len(leader.node.core.configuration.members) == 3
    _end(cluster)
