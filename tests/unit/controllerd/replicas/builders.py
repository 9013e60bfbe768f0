"""Short ways to write groups, heartbeats and commands in tests."""

from __future__ import annotations

from controllerd.replicas.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    Command,
    ElectMaster,
    Observation,
    RegisterBroker,
    Trigger,
    encode_command,
)
from controllerd.replicas.machine import ReplicasMachine, Reply
from controllerd.replicas.state import Group

CLUSTER = "DefaultCluster"
NAME = "broker-a"
LOWEST = 2**31 - 1


def seen(
    broker_id: int,
    epoch: int = 1,
    max_offset: int = 100,
    priority: int = LOWEST,
    incarnation: int = 0,
    is_learner: bool = False,
) -> Observation:
    return Observation(broker_id, epoch, max_offset, priority, incarnation, is_learner)


def apply_id(broker_id: int, code: str | None = None, *, name: str = NAME, cluster: str = CLUSTER) -> ApplyBrokerId:
    return ApplyBrokerId(cluster, name, broker_id, code or f"127.0.0.1:{10900 + broker_id};1700000000000")


def register(broker_id: int, *, address: str | None = None, known_epoch: int = 0, name: str = NAME) -> RegisterBroker:
    own = address or f"127.0.0.1:{10900 + broker_id}"
    return RegisterBroker(CLUSTER, name, broker_id, own, f"{own}2", f"{own}3", known_epoch)


def alter(
    proposed: list[int], *, master: int = 1, master_epoch: int = 1, set_epoch: int = 1, not_alive: tuple[int, ...] = ()
) -> AlterSyncStateSet:
    return AlterSyncStateSet(NAME, master, master_epoch, tuple(proposed), set_epoch, not_alive)


def elect(
    *observed: Observation,
    trigger: Trigger = Trigger.BROKER,
    wanted: int | None = None,
    designate: bool = False,
    unclean: bool = False,
    seen_epoch: int | None = None,
    name: str = NAME,
) -> ElectMaster:
    return ElectMaster(CLUSTER, name, trigger, observed, wanted, designate, unclean, seen_epoch)


def clean(ids: list[int] | None, *, living: bool = False, alive: tuple[int, ...] = (), name: str = NAME) -> CleanBroker:
    return CleanBroker(CLUSTER, name, None if ids is None else tuple(ids), living, alive)


def run(machine: ReplicasMachine, command: Command) -> Reply:
    """Apply a command as the log would: through its bytes."""
    reply = machine.apply(encode_command(command))
    assert isinstance(reply, Reply)
    return reply


def group_of(machine: ReplicasMachine, name: str = NAME) -> Group:
    return machine.state.groups[name]


def group_of_three() -> ReplicasMachine:
    """Three registered replicas, master 1 in epoch 1, all three in the sync-state set at epoch 2."""
    machine = ReplicasMachine()
    for broker_id in (1, 2, 3):
        run(machine, apply_id(broker_id))
        run(machine, register(broker_id))
    run(machine, elect(seen(1, epoch=-1), wanted=1))
    run(machine, alter([1, 2, 3]))
    return machine
