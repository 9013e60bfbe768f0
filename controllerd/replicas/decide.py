"""Requests against the state: each gives a reply and the records that change the state; read-only (pure)

Runs on every node when a command is applied, and on the leader beforehand to see whether a command would change anything. The
order of the checks is part of the protocol: brokers act on the code.
"""

from __future__ import annotations

from dataclasses import dataclass

from controllerd.replicas.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    Command,
    ElectMaster,
    Observation,
    RegisterBroker,
    Trigger,
)
from controllerd.replicas.elect import choose_master, explain_eligibility, is_clean
from controllerd.replicas.records import (
    EpochFloorRaised,
    GroupRemoved,
    MasterElected,
    MasterLost,
    Record,
    ReplicaAdded,
    ReplicaMoved,
    ReplicasRemoved,
    SyncStateSetChanged,
)
from controllerd.replicas.state import (
    MAX_EPOCH,
    MAX_GROUPS,
    MAX_REPLICAS,
    MAX_REPLICAS_IN_ALL,
    Group,
    Replica,
    ReplicasState,
    UncleanElection,
)
from remoting import codes


@dataclass(frozen=True, slots=True)
class Decision:
    """Code and sentence for whoever asked, and what changes."""

    code: int = codes.SUCCESS
    remark: str | None = None
    records: tuple[Record, ...] = ()


def decide(state: ReplicasState, command: Command) -> Decision:
    """Decide one command."""
    if isinstance(command, ApplyBrokerId):
        return _apply_broker_id(state, command)
    if isinstance(command, RegisterBroker):
        return _register_broker(state, command)
    if isinstance(command, AlterSyncStateSet):
        return _alter_sync_state_set(state, command)
    if isinstance(command, ElectMaster):
        return _elect_master(state, command)
    return _clean_broker(state, command)


def _apply_broker_id(state: ReplicasState, command: ApplyBrokerId) -> Decision:
    group = state.groups.get(command.broker_name)
    if (refused := _other_cluster(group, command.cluster_name)) is not None:
        return refused
    known = group.replicas.get(command.broker_id) if group else None
    if known is not None and known.register_check_code == command.register_check_code:
        return Decision()
    free = state.next_broker_id(command.broker_name)
    if command.broker_id != free:
        return Decision(
            codes.CONTROLLER_BROKER_ID_INVALID,
            f"broker id {command.broker_id} of {command.broker_name} is not free; ask for the next id, which is {free}",
        )
    if group is None and len(state.groups) + len(state.retired) >= MAX_GROUPS:
        return Decision(codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_GROUPS} broker names are known; that is the limit")
    if sum(len(each.replicas) for each in state.groups.values()) >= MAX_REPLICAS_IN_ALL:
        return Decision(
            codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_REPLICAS_IN_ALL} replicas are known; that is the limit"
        )
    if group is not None and len(group.replicas) >= MAX_REPLICAS:
        return Decision(
            codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_REPLICAS} replicas are registered; that is the limit"
        )
    address = command.register_check_code.split(";")[0]
    replica = Replica(command.broker_id, address, command.register_check_code)
    return Decision(records=(ReplicaAdded(command.cluster_name, command.broker_name, replica),))


def _register_broker(state: ReplicasState, command: RegisterBroker) -> Decision:
    group = state.groups.get(command.broker_name)
    if (refused := _other_cluster(group, command.cluster_name)) is not None:
        return refused
    replica = group.replicas.get(command.broker_id) if group else None
    if group is None or replica is None:
        return Decision(
            codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"broker id {command.broker_id} of {command.broker_name} is not known here; apply for an id first",
        )
    records: list[Record] = []
    here = (command.address, command.ha_address, command.grpc_address)
    if here != (replica.address, replica.ha_address, replica.grpc_address):
        records.append(ReplicaMoved(command.broker_name, command.broker_id, *here))
    if max(group.master_epoch, group.epoch_floor) < command.known_epoch < MAX_EPOCH:
        records.append(EpochFloorRaised(command.broker_name, command.known_epoch))
    if not command.lost_tail or command.broker_id not in group.sync_state_set:
        return Decision(records=tuple(records))
    # It counts as holding every acknowledged message, and does not any more: whoever does must not be cut to its log.
    remaining = tuple(each for each in group.sync_state_set if each != command.broker_id)
    lost = f"broker {command.broker_id} lost the end of its log, which ends at {command.max_offset} now"
    if not remaining or group.master_epoch >= MAX_EPOCH:
        return Decision(remark=f"{lost}; it stays in the sync-state set as its last member", records=tuple(records))
    if group.master_broker_id == command.broker_id:
        records.append(MasterLost(group.broker_name, group.master_epoch + 1))
    records.append(SyncStateSetChanged(group.broker_name, remaining))
    return Decision(remark=f"{lost}; it left the sync-state set", records=tuple(records))


def _alter_sync_state_set(state: ReplicasState, command: AlterSyncStateSet) -> Decision:
    group = state.groups.get(command.broker_name)
    proposed = set(command.proposed)
    failed = codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    if group is None:
        return Decision(failed, f"no replica of {command.broker_name} is registered")
    if proposed == set(group.sync_state_set):
        return Decision(failed, f"the sync-state set is {list(group.sync_state_set)} already")
    if group.master_broker_id is None or group.master_broker_id != command.master_broker_id:
        return Decision(
            codes.CONTROLLER_INVALID_MASTER,
            f"broker {command.master_broker_id} is not the master, that is {group.master_broker_id or 'nobody'}",
        )
    if command.master_epoch != group.master_epoch:
        return Decision(
            codes.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch is {group.master_epoch}, not {command.master_epoch}",
        )
    if command.sync_state_set_epoch != group.sync_state_set_epoch:
        return Decision(
            codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the sync-state set's epoch is {group.sync_state_set_epoch}, not {command.sync_state_set_epoch}",
        )
    if unknown := sorted(proposed - set(group.replicas)):
        return Decision(codes.CONTROLLER_INVALID_REPLICAS, f"brokers {unknown} are not registered")
    if dead := sorted(proposed & set(command.not_alive)):
        return Decision(codes.CONTROLLER_BROKER_NOT_ALIVE, f"brokers {dead} send no heartbeats")
    if group.master_broker_id not in proposed:
        return Decision(failed, f"the proposed set omits the master {group.master_broker_id}")
    return Decision(records=(SyncStateSetChanged(group.broker_name, tuple(sorted(proposed))),))


def _elect_master(state: ReplicasState, command: ElectMaster) -> Decision:
    group = state.groups.get(command.broker_name)
    if (refused := _other_cluster(group, command.cluster_name)) is not None:
        return refused
    if group is None:
        return Decision(
            codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"no replica of {command.broker_name} is registered"
        )
    if command.seen_master_epoch not in (None, group.master_epoch):
        return Decision(codes.CONTROLLER_MASTER_STILL_EXIST, f"the master epoch is {group.master_epoch} by now")
    choice = choose_master(group, command.observed, command.broker_id if command.designate else None, command.unclean)
    if choice.keep_master:
        return Decision(codes.CONTROLLER_MASTER_STILL_EXIST, f"broker {group.master_broker_id} is the master and alive")
    if choice.broker_id is None:
        return _nobody(group, command)
    # Brokers may remember epochs that these controllers never gave out (after a loss of all controller data): go above those.
    claimed = max(each.epoch for each in command.observed if each.broker_id in group.replicas)
    epoch = max(group.master_epoch, group.epoch_floor, claimed) + 1
    if epoch > MAX_EPOCH:
        return Decision(
            codes.CONTROLLER_ELECT_MASTER_FAILED, f"a replica claims epoch {claimed}: none is left above it"
        )
    elected = next(each for each in command.observed if each.broker_id == choice.broker_id)
    unclean = None
    if not is_clean(group, elected):
        unclean = _price(group, elected, command, epoch)
    record = MasterElected(group.broker_name, elected.broker_id, epoch, elected.incarnation, unclean)
    return Decision(remark=unclean.sentence if unclean else None, records=(record,))


def _price(group: Group, elected: Observation, command: ElectMaster, epoch: int) -> UncleanElection:
    said = [each for each in (*command.observed, *command.last_known) if each.broker_id in group.sync_state_set]
    known = max(((each.epoch, each.max_offset) for each in said), default=(-1, -1))
    return UncleanElection(
        epoch, elected.broker_id, group.sync_state_set, elected.epoch, elected.max_offset, *known, command.at_ms
    )


def _nobody(group: Group, command: ElectMaster) -> Decision:
    reasons = explain_eligibility(group, command.observed, command.unclean)
    if command.designate:
        reasons = [each for each in reasons if each.broker_id == command.broker_id]
    remark = "; ".join(f"broker {each.broker_id}: {each.reason}" for each in reasons)
    if command.trigger is not Trigger.CONTROLLER:
        if not reasons:
            remark = f"broker {command.broker_id} is not registered"
        return Decision(codes.CONTROLLER_ELECT_MASTER_FAILED, f"nobody can be elected: {remark}")
    records: tuple[Record, ...] = ()
    if group.master_broker_id is not None and group.master_epoch < MAX_EPOCH:
        records = (MasterLost(group.broker_name, group.master_epoch + 1),)
    return Decision(codes.CONTROLLER_MASTER_NOT_AVAILABLE, f"nobody can be elected: {remark}", records)


def _clean_broker(state: ReplicasState, command: CleanBroker) -> Decision:
    group = state.groups.get(command.broker_name)
    invalid = codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if group is None or (command.cluster_name and command.cluster_name != group.cluster_name):
        return Decision(invalid, f"no replica of {command.broker_name} is registered in this cluster")
    if command.broker_ids is None:
        if not command.clean_living and group.master_broker_id is not None:
            return Decision(
                invalid, f"broker {group.master_broker_id} is the master; say that living brokers may be cleaned"
            )
        return Decision(records=(GroupRemoved(group.broker_name),))
    ids = set(command.broker_ids)
    if not command.clean_living and (living := sorted(ids & set(command.alive))):
        return Decision(invalid, f"brokers {living} are alive; say that living brokers may be cleaned")
    known = tuple(sorted(ids & set(group.replicas)))
    return Decision(records=(ReplicasRemoved(group.broker_name, known),) if known else ())


def _other_cluster(group: Group | None, cluster_name: str) -> Decision | None:
    if group is None or group.cluster_name == cluster_name:
        return None
    return Decision(
        codes.CONTROLLER_INVALID_REQUEST,
        f"the broker name {group.broker_name} belongs to cluster {group.cluster_name}; choose another name",
    )
