"""Short ways to write groups, heartbeats and requests in tests."""

from __future__ import annotations

from dataclasses import dataclass

from controllerd.replicas.records import Record
from controllerd.replicas.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    ElectMaster,
    Observation,
    RegisterBroker,
    Request,
    Trigger,
)
from controllerd.replicas.state import Group, ReplicasState
from controllerd.state.machine import ControllerMachine

CLUSTER = "DefaultCluster"
NAME = "broker-a"
LOWEST = 2**31 - 1


@dataclass(frozen=True)
class Outcome:
    """What a request came to, with the group as it was right after it."""

    code: int
    remark: str | None
    records: tuple[Record, ...]
    group: Group | None


class Machine(ControllerMachine):
    """A leader alone, about replicas."""

    @property
    def state(self) -> ReplicasState:
        return self.replicas

    def run(self, request: Request) -> Outcome:
        """Decide a request, append it, and apply what the log holds then."""
        data = self.decide(request)
        self.appended(data)
        return self.take(data, request.broker_name)

    def take(self, data: bytes, broker_name: str) -> Outcome:
        """Apply an entry, as everybody does."""
        records = self._read(data)[1].records
        applied = self.apply(data)
        return Outcome(applied.reply.code, applied.reply.remark, records, applied.state.groups.get(broker_name))


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


def run(machine: Machine, request: Request) -> Outcome:
    """Decide and apply a request as the log does: through its bytes."""
    return machine.run(request)


def group_of(machine: Machine, name: str = NAME) -> Group:
    return machine.state.groups[name]


def group_of_three() -> Machine:
    """Three registered replicas, master 1 in epoch 1, all three in the sync-state set at epoch 2."""
    machine = Machine()
    for broker_id in (1, 2, 3):
        run(machine, apply_id(broker_id))
        run(machine, register(broker_id))
    run(machine, elect(seen(1, epoch=-1), wanted=1))
    run(machine, alter([1, 2, 3]))
    return machine
