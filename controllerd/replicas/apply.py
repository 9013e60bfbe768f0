"""Records into the state; cannot fail, as whatever could be wrong was refused when the record was decided (pure)

Runs on every controller, whatever its version, so it decides nothing: what a record of a version does here never changes. The
assertions say what deciding guarantees, and end a controller whose log contradicts itself.

Invariants kept here: epochs only grow, each change of the sync-state set raises its epoch by exactly one, the master is in the
set, the set holds registered ids only, lives are those of members, ids and epochs survive the removal of their group as floors.
"""

from __future__ import annotations

from dataclasses import replace

from controllerd.replicas.records import (
    EpochFloorRaised,
    GroupRemoved,
    LivesCounted,
    MasterElected,
    MasterLost,
    Record,
    ReplicaAdded,
    ReplicaMoved,
    ReplicasRemoved,
    SyncStateSetChanged,
)
from controllerd.replicas.state import MAX_UNCLEAN_ELECTIONS, Group, ReplicasState, Retired


def apply(state: ReplicasState, record: Record) -> ReplicasState:
    if isinstance(record, GroupRemoved):
        return _retire(state, state.groups[record.broker_name])
    if isinstance(record, ReplicaAdded):
        return _put(*_add_replica(state, record))
    group = state.groups[record.broker_name]
    group = _remove_replicas(group, record) if isinstance(record, ReplicasRemoved) else _change(group, record)
    return _put(state, group) if group.replicas else _retire(state, group)


def _put(state: ReplicasState, group: Group) -> ReplicasState:
    _check(group)
    return replace(state, groups={**state.groups, group.broker_name: group})


def _change(
    group: Group,
    record: ReplicaMoved | EpochFloorRaised | SyncStateSetChanged | MasterElected | MasterLost | LivesCounted,
) -> Group:
    if isinstance(record, ReplicaMoved):
        moved = replace(
            group.replicas[record.broker_id],
            address=record.address,
            ha_address=record.ha_address,
            grpc_address=record.grpc_address,
        )
        return replace(group, replicas={**group.replicas, record.broker_id: moved})
    if isinstance(record, EpochFloorRaised):
        assert record.epoch > group.epoch_floor
        return replace(group, epoch_floor=record.epoch)
    if isinstance(record, SyncStateSetChanged):
        return _with_set(group, record.sync_state_set)
    if isinstance(record, LivesCounted):
        return replace(group, lives={**group.lives, **dict(record.lives)})
    assert record.master_epoch > group.master_epoch, "a master epoch is never used twice"
    if isinstance(record, MasterLost):
        return replace(group, master_epoch=record.master_epoch, master_broker_id=None, master_incarnation=0)
    elected = replace(
        group,
        master_epoch=record.master_epoch,
        master_broker_id=record.broker_id,
        master_incarnation=record.incarnation,
        had_master=True,
        lives={},
    )
    if record.unclean is not None:
        remembered = (*group.unclean_elections, record.unclean)[-MAX_UNCLEAN_ELECTIONS:]
        elected = replace(elected, unclean_elections=remembered)
    return _with_set(elected, (record.broker_id,))


def _add_replica(state: ReplicasState, record: ReplicaAdded) -> tuple[ReplicasState, Group]:
    group = state.groups.get(record.broker_name)
    if group is None:
        retired = dict(state.retired)
        floor = retired.pop(record.broker_name, Retired(0, 0, 1))
        state = replace(state, retired=retired)
        group = Group(
            record.cluster_name,
            record.broker_name,
            floor.next_broker_id,
            floor.master_epoch,
            floor.sync_state_set_epoch,
        )
    broker_id = record.replica.broker_id
    assert broker_id >= group.next_broker_id, "a broker id is never given out twice"
    return state, replace(group, next_broker_id=broker_id + 1, replicas={**group.replicas, broker_id: record.replica})


def _remove_replicas(group: Group, record: ReplicasRemoved) -> Group:
    removed = set(record.broker_ids)
    remaining = tuple(broker_id for broker_id in group.sync_state_set if broker_id not in removed)
    if remaining != group.sync_state_set:
        group = _with_set(group, remaining)
    if group.master_broker_id in removed:
        group = replace(group, master_broker_id=None, master_incarnation=0, master_epoch=group.master_epoch + 1)
    replicas = {broker_id: replica for broker_id, replica in group.replicas.items() if broker_id not in removed}
    return replace(group, replicas=replicas)


def _retire(state: ReplicasState, group: Group) -> ReplicasState:
    floor = Retired(max(group.master_epoch, group.epoch_floor), group.sync_state_set_epoch, group.next_broker_id)
    groups = {name: each for name, each in state.groups.items() if name != group.broker_name}
    return ReplicasState(groups, {**state.retired, group.broker_name: floor})


def _with_set(group: Group, sync_state_set: tuple[int, ...]) -> Group:
    return replace(
        group,
        sync_state_set=tuple(sorted(sync_state_set)),
        sync_state_set_epoch=group.sync_state_set_epoch + 1,
        lives={broker_id: life for broker_id, life in group.lives.items() if broker_id in sync_state_set},
    )


def _check(group: Group) -> None:
    assert group.lives.keys() <= set(group.sync_state_set), "a life is counted of who is no member"
    assert set(group.sync_state_set) <= set(group.replicas), "the sync-state set holds an id that is not registered"
    assert group.master_broker_id is None or group.master_broker_id in group.sync_state_set
    assert max(group.replicas) < group.next_broker_id
