"""Requests against the state: each gives a reply and the records that change the state; read-only (pure)

Runs on the leader only, against what its log holds; also beforehand, to see whether a request would change anything. The order
of the checks is part of the protocol: brokers act on the code.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from controllerd.records.decision import Decision, Reply, refused
from controllerd.replicas.elect import (
    choose_master,
    explain_eligibility,
    freshest_of_the_suspect,
    in_place_of_the_last,
    is_clean,
    members_after,
)
from controllerd.replicas.lives import lives_to_count, runs_elsewhere
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
from controllerd.replicas.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    CountLives,
    ElectMaster,
    Observation,
    RegisterBroker,
    Request,
    Trigger,
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

Decided: TypeAlias = Decision[Record]


def decide(state: ReplicasState, request: Request) -> Decided:
    if isinstance(request, ApplyBrokerId):
        return _apply_broker_id(state, request)
    if isinstance(request, CleanBroker):
        return _clean_broker(state, request)
    decision = _decide_about_members(state, request)
    if decision.reply.code != codes.SUCCESS and not decision.records:
        return decision
    lives = lives_to_count(state, request.broker_name, decision.records, request.observed)
    return replace(decision, records=(*decision.records, *lives)) if lives else decision


def _decide_about_members(
    state: ReplicasState, request: RegisterBroker | AlterSyncStateSet | ElectMaster | CountLives
) -> Decided:
    if isinstance(request, RegisterBroker):
        return _register_broker(state, request)
    if isinstance(request, AlterSyncStateSet):
        return _alter_sync_state_set(state, request)
    return _elect_master(state, request) if isinstance(request, ElectMaster) else Decision()


def _apply_broker_id(state: ReplicasState, request: ApplyBrokerId) -> Decided:
    group = state.groups.get(request.broker_name)
    if (foreign := _other_cluster(group, request.cluster_name)) is not None:
        return foreign
    known = group.replicas.get(request.broker_id) if group else None
    if known is not None and known.register_check_code == request.register_check_code:
        return Decision()
    free = state.next_broker_id(request.broker_name)
    if request.broker_id != free:
        return refused(
            codes.CONTROLLER_BROKER_ID_INVALID,
            f"broker id {request.broker_id} of {request.broker_name} is not free; ask for the next id, which is {free}",
        )
    if group is None and len(state.groups) + len(state.retired) >= MAX_GROUPS:
        return refused(codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_GROUPS} broker names are known; that is the limit")
    if sum(len(each.replicas) for each in state.groups.values()) >= MAX_REPLICAS_IN_ALL:
        return refused(
            codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_REPLICAS_IN_ALL} replicas are known; that is the limit"
        )
    if group is not None and len(group.replicas) >= MAX_REPLICAS:
        return refused(codes.CONTROLLER_BROKER_ID_INVALID, f"{MAX_REPLICAS} replicas are registered; that is the limit")
    address = request.register_check_code.split(";")[0]
    replica = Replica(request.broker_id, address, request.register_check_code)
    return Decision((ReplicaAdded(request.cluster_name, request.broker_name, replica),))


def _register_broker(state: ReplicasState, request: RegisterBroker) -> Decided:
    group = state.groups.get(request.broker_name)
    if (foreign := _other_cluster(group, request.cluster_name)) is not None:
        return foreign
    replica = group.replicas.get(request.broker_id) if group else None
    if group is None or replica is None:
        return refused(
            codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"broker id {request.broker_id} of {request.broker_name} is not known here; apply for an id first",
        )
    records: list[Record] = []
    here = (request.address, request.ha_address, request.grpc_address)
    if here != (replica.address, replica.ha_address, replica.grpc_address):
        records.append(ReplicaMoved(request.broker_name, request.broker_id, *here))
    if max(group.master_epoch, group.epoch_floor) < request.known_epoch < MAX_EPOCH:
        records.append(EpochFloorRaised(request.broker_name, request.known_epoch))
    elsewhere = any(runs_elsewhere(group, each) for each in request.observed)
    if not (request.lost_tail or elsewhere) or request.broker_id not in group.sync_state_set:
        return Decision(tuple(records))
    # It counts as holding every acknowledged message, and does not any more: whoever does must not be cut to its log.
    remaining = tuple(each for each in group.sync_state_set if each != request.broker_id)
    lost = f"broker {request.broker_id} lost the end of its log, which ends at {request.max_offset} now"
    if elsewhere:
        lost = f"broker {request.broker_id} runs on another directory than it had as a member of the sync-state set"
    if not remaining or group.master_epoch >= MAX_EPOCH:
        remark = f"{lost}; it stays in the sync-state set as its last member"
        return Decision(tuple(records), Reply(remark=remark))
    if request.others_have_all is False:
        # Left by one after the other, the set would be the one that came last, which may have the least.
        remark = f"{lost}; it stays in the sync-state set until a member that has lost nothing is there"
        return Decision(tuple(records), Reply(remark=remark))
    if group.master_broker_id == request.broker_id:
        records.append(MasterLost(group.broker_name, group.master_epoch + 1))
    records.append(SyncStateSetChanged(group.broker_name, remaining))
    return Decision(tuple(records), Reply(remark=f"{lost}; it left the sync-state set"))


def _alter_sync_state_set(state: ReplicasState, request: AlterSyncStateSet) -> Decided:
    group = state.groups.get(request.broker_name)
    proposed = set(request.proposed)
    failed = codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    if group is None:
        return refused(failed, f"no replica of {request.broker_name} is registered")
    if proposed == set(group.sync_state_set):
        return refused(failed, f"the sync-state set is {list(group.sync_state_set)} already")
    if group.master_broker_id is None or group.master_broker_id != request.master_broker_id:
        return refused(
            codes.CONTROLLER_INVALID_MASTER,
            f"broker {request.master_broker_id} is not the master, that is {group.master_broker_id or 'nobody'}",
        )
    if request.master_epoch != group.master_epoch:
        return refused(
            codes.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch is {group.master_epoch}, not {request.master_epoch}",
        )
    if request.sync_state_set_epoch != group.sync_state_set_epoch:
        return refused(
            codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the sync-state set's epoch is {group.sync_state_set_epoch}, not {request.sync_state_set_epoch}",
        )
    if unknown := sorted(proposed - set(group.replicas)):
        return refused(codes.CONTROLLER_INVALID_REPLICAS, f"brokers {unknown} are not registered")
    if dead := sorted(proposed & set(request.not_alive)):
        return refused(codes.CONTROLLER_BROKER_NOT_ALIVE, f"brokers {dead} send no heartbeats")
    alone = {each.broker_id for each in request.observed if not each.is_contested}
    if request.counts_lives and (unknown := sorted(proposed - set(group.sync_state_set) - alone)):
        # A member without a counted life is whoever is heard of it next, so also a process on a copy of its directory.
        return refused(
            codes.CONTROLLER_BROKER_NOT_ALIVE,
            f"of brokers {unknown} no process was heard that has its id alone, so no life of them could be counted",
        )
    if group.master_broker_id not in proposed:
        return refused(failed, f"the proposed set omits the master {group.master_broker_id}")
    return Decision((SyncStateSetChanged(group.broker_name, tuple(sorted(proposed))),))


def _elect_master(state: ReplicasState, request: ElectMaster) -> Decided:
    group = state.groups.get(request.broker_name)
    if (foreign := _other_cluster(group, request.cluster_name)) is not None:
        return foreign
    if group is None:
        return refused(
            codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, f"no replica of {request.broker_name} is registered"
        )
    if request.seen_master_epoch not in (None, group.master_epoch):
        return refused(codes.CONTROLLER_MASTER_STILL_EXIST, f"the master epoch is {group.master_epoch} by now")
    choice = choose_master(
        group,
        request.observed,
        request.broker_id if request.designate else None,
        request.unclean,
        suspects=request.keeps_members,
    )
    if choice.keep_master:
        return refused(codes.CONTROLLER_MASTER_STILL_EXIST, f"broker {group.master_broker_id} is the master and alive")
    if choice.broker_id is None:
        return _nobody(group, request)
    # Brokers may remember epochs that these controllers never gave out (after a loss of all controller data): go above those.
    claimed = max(each.epoch for each in request.observed if each.broker_id in group.replicas)
    epoch = max(group.master_epoch, group.epoch_floor, claimed) + 1
    if epoch > MAX_EPOCH:
        return refused(codes.CONTROLLER_ELECT_MASTER_FAILED, f"a replica claims epoch {claimed}: none is left above it")
    elected = next(each for each in request.observed if each.broker_id == choice.broker_id)
    unclean, remark = _price(group, elected, request, epoch)
    records: list[Record] = [MasterElected(group.broker_name, elected.broker_id, epoch, elected.incarnation, unclean)]
    members = members_after(group, elected, request.observed) if request.keeps_members else (elected.broker_id,)
    if len(members) > 1:
        records.append(SyncStateSetChanged(group.broker_name, members))
    return Decision(tuple(records), Reply(remark=remark))


def _price(
    group: Group, elected: Observation, request: ElectMaster, epoch: int
) -> tuple[UncleanElection | None, str | None]:
    """What an election costs, or may cost, and a sentence about it; nothing where the elected has all that was acknowledged."""
    if is_clean(group, elected):
        return None, None
    live = {each.broker_id: each for each in request.observed}
    if request.keeps_members and freshest_of_the_suspect(group, live) == elected.broker_id:
        return None, (
            f"broker {elected.broker_id} becomes master with a log that ends at {elected.max_offset}: every live member of "
            f"the sync-state set {list(group.sync_state_set)} may have lost the end of its log, and it has the most"
        )
    if request.keeps_members and in_place_of_the_last(group, live) == elected.broker_id:
        return None, (
            f"broker {elected.broker_id} becomes master with a log that ends at {elected.max_offset}: the last member of the "
            f"sync-state set, broker {group.sync_state_set[0]}, lost the end of its log and has no more than that"
        )
    unclean = _describe_unclean_election(group, elected, request, epoch)
    return unclean, unclean.sentence


def _describe_unclean_election(group: Group, elected: Observation, request: ElectMaster, epoch: int) -> UncleanElection:
    said = [each for each in (*request.observed, *request.last_known) if each.broker_id in group.sync_state_set]
    known = max(((each.epoch, each.max_offset) for each in said), default=(-1, -1))
    return UncleanElection(
        epoch, elected.broker_id, group.sync_state_set, elected.epoch, elected.max_offset, *known, request.at_ms
    )


def _nobody(group: Group, request: ElectMaster) -> Decided:
    reasons = explain_eligibility(group, request.observed, request.unclean)
    if request.designate:
        reasons = [each for each in reasons if each.broker_id == request.broker_id]
    remark = "; ".join(f"broker {each.broker_id}: {each.reason}" for each in reasons)
    if request.trigger is not Trigger.CONTROLLER or request.designate:
        if not reasons:
            remark = f"broker {request.broker_id} is not registered"
        return refused(codes.CONTROLLER_ELECT_MASTER_FAILED, f"nobody can be elected: {remark}")
    records: tuple[Record, ...] = ()
    if group.master_broker_id is not None and group.master_epoch < MAX_EPOCH:
        records = (MasterLost(group.broker_name, group.master_epoch + 1),)
    return Decision(records, Reply(codes.CONTROLLER_MASTER_NOT_AVAILABLE, f"nobody can be elected: {remark}"))


def _clean_broker(state: ReplicasState, request: CleanBroker) -> Decided:
    group = state.groups.get(request.broker_name)
    invalid = codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if group is None or (request.cluster_name and request.cluster_name != group.cluster_name):
        return refused(invalid, f"no replica of {request.broker_name} is registered in this cluster")
    if request.broker_ids is None:
        if not request.clean_living and group.master_broker_id is not None:
            return refused(
                invalid, f"broker {group.master_broker_id} is the master; say that living brokers may be cleaned"
            )
        return Decision((GroupRemoved(group.broker_name),))
    ids = set(request.broker_ids)
    if not request.clean_living and (living := sorted(ids & set(request.alive))):
        return refused(invalid, f"brokers {living} are alive; say that living brokers may be cleaned")
    known = tuple(sorted(ids & set(group.replicas)))
    return Decision((ReplicasRemoved(group.broker_name, known),) if known else ())


def _other_cluster(group: Group | None, cluster_name: str) -> Decided | None:
    if group is None or group.cluster_name == cluster_name:
        return None
    return refused(
        codes.CONTROLLER_INVALID_REQUEST,
        f"the broker name {group.broker_name} belongs to cluster {group.cluster_name}; choose another name",
    )
