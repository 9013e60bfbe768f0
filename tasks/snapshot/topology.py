"""Controllers, broker groups and their replicas (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from remoting.facts.broker_state import BrokerState, QuorumState
from remoting.facts.cluster_view import GroupView, ReplicaView
from remoting.facts.snapshot import (
    ClusterSnapshot,
    Controller,
    DamagedPart,
    Group,
    MissingCopy,
    Process,
    Quorum,
    Replica,
    Scrub,
)
from remoting.facts.words import BrokerRole, ControllerRole, GroupKind
from tasks.snapshot.inputs import Look, known, shown
from tasks.snapshot.waiting import delays, index, timers, transactions

_SHOWN: Final = {BrokerRole.PROMOTING: BrokerRole.FENCED}  # until it serves, pages need no other word
_NOT_KNOWN: Final = "unknown: no controller answers"
MOST_RANGES: Final = 20  # damaged ranges that are shown of a replica


def controllers(look: Look) -> list[Controller]:
    """Every controller, by its own word if it was asked; one that does not answer is unreachable and its numbers unknown.

    Controllers that joined later are not among those that are asked: of them the leader tells. Those that left are left out.
    """
    view = look.view
    members = [each.address for each in view.controllers] if view is not None else []
    asked = [address for address in look.controllers if address in look.views or not members or address in members]
    found = []
    for number, address in enumerate([*asked, *(each for each in members if each not in look.controllers)]):
        own_view = look.views.get(address)
        own = own_view.controller(address) if own_view is not None else None
        named = view.controller(address) if view is not None else None
        if address not in look.controllers and named is not None and named.alive:
            own = named
        best = own or named
        controller = Controller(
            id=best.id if best is not None else f"n{number}",
            address=address,
            member=named.member if named is not None else "unknown",
            role=ControllerRole.UNREACHABLE,
        )
        if own is not None:
            controller = replace(
                controller,
                role=ControllerRole.CANDIDATE if own.role is ControllerRole.UNKNOWN else own.role,
                term=known(own.term),
                commit_index=known(own.commit_index),
                applied_index=known(own.applied_index),
            )
        found.append(controller)
    return found


def groups(look: Look, previous: ClusterSnapshot | None) -> list[Group]:
    """Every broker group. Without a controller's view the groups of the last snapshot, with what brokers say themselves."""
    view = look.view
    told = view.groups if view is not None else _remembered(previous)
    before = {(each.cluster, each.name): each for each in previous.groups} if previous is not None else {}
    found = (_group(each, look, before.get((each.cluster_name, each.broker_name))) for each in told)
    return sorted(found, key=lambda each: (each.cluster, each.name))


def state_of(look: Look, cluster: str, name: str, replica: ReplicaView | Replica) -> BrokerState | None:
    """A replica's own state, if the broker that answered at its address is that replica."""
    state = look.states.get(replica.address) if replica.address is not None else None
    broker_id = replica.id if isinstance(replica, Replica) else replica.broker_id
    if state is None or (state.cluster_name, state.broker_name, state.broker_id) != (cluster, name, broker_id):
        return None
    return state


def _group(group: GroupView, look: Look, before: Group | None) -> Group:
    cluster, name, master_id = group.cluster_name, group.broker_name, group.master_broker_id
    states = {
        each.broker_id: state for each in group.replicas if (state := state_of(look, cluster, name, each)) is not None
    }
    master = states.get(master_id) if master_id is not None else None
    in_sync = group.sync_state_set
    if group.kind is GroupKind.FIXED:
        # with fixed roles the set is the master's own, and only it tells
        in_sync = tuple(each for each in master.sync_state_set if each >= 0) if master is not None else ()
    replicas = [
        _dated(_replica(each, states.get(each.broker_id), in_sync, look.process_at(each.address)), look.now_ms, before)
        for each in sorted(group.replicas, key=lambda each: each.broker_id)
    ]
    processes = {each.id: each.process for each in replicas}
    return Group(
        cluster=cluster,
        name=name,
        kind=group.kind,
        master_id=known(master_id),
        master_epoch=known(group.master_epoch),
        sync_state_set=tuple(sorted(in_sync)),
        sync_state_set_epoch=known(group.sync_state_set_epoch),
        quorum=_quorum(master.quorum, processes) if master is not None and master.quorum is not None else None,
        weaknesses=tuple(sorted({each for state in states.values() for each in state.weaknesses})),
        transactions=transactions(master.transactions) if master is not None else None,
        delays=delays(master.schedule) if master is not None else None,
        timers=timers(master.timers) if master is not None else None,
        index=index(master.index_lag_bytes) if master is not None else None,
        tier=master.tier if master is not None else None,
        replicas=tuple(_with_gaps(replicas, master)),
    )


def _quorum(told: QuorumState, processes: Mapping[int, str | None]) -> Quorum:
    missing = tuple(
        shown(MissingCopy, each, process=processes.get(each.broker_id)) for each in told.missing if each.broker_id >= 0
    )
    return shown(Quorum, told, missing=missing)


def _replica(told: ReplicaView, state: BrokerState | None, in_sync: Sequence[int], process: Process | None) -> Replica:
    """A broker's own word first; a controller's word about one that does not answer us."""
    found = Replica(
        id=told.broker_id,
        process=process.name if process is not None else None,
        pid=process.pid if process is not None else None,
        address=told.address,
        grpc_address=told.grpc_address,
        ha_address=told.ha_address,
        alive=told.alive,
        absence=told.absence if told.alive is False else None,
        role=_SHOWN.get(told.role, told.role) if told.alive else BrokerRole.UNREACHABLE,
        in_sync=told.in_sync if told.in_sync is not None else told.broker_id in in_sync,
        epoch=known(told.epoch),
        max_offset=known(told.max_offset),
        confirm_offset=known(told.confirm_offset),
        eligible=told.eligible,
        eligibility_reason=told.eligibility_reason or _NOT_KNOWN,
        last_heartbeat_ms=known(told.last_heartbeat_ms),
        claimed_by=told.claimed_by,
    )
    if state is None:
        return found
    return replace(
        found,
        alive=True if told.alive is None else told.alive,
        role=_SHOWN.get(state.role, state.role),
        learner=state.learner,
        epoch=_first(state.master_epoch, told.epoch),
        max_offset=_first(state.end_offset, told.max_offset),
        flushed_offset=known(state.flushed_offset),
        confirm_offset=_first(state.confirm_offset, told.confirm_offset),
        epochs=state.epochs,
        controllers_error=state.controllers_error,
        stale_view=state.stale_view,
        scrub=_scrub(state),
        retention=state.retention,
    )


def _scrub(state: BrokerState) -> Scrub | None:
    told = state.scrub
    if told is None:
        return None
    length, done = told.limit_offset - max(0, state.min_offset), told.checked_offset - max(0, state.min_offset)
    is_over = told.round_ended_ms >= 0
    percent = (
        None if told.round_began_ms < 0 else 100 if is_over or length <= 0 else max(0, min(99, 100 * done // length))
    )
    return shown(
        Scrub,
        told,
        percent=percent,
        unrepaired=tuple(shown(DamagedPart, each) for each in told.unrepaired[:MOST_RANGES]),
    )


def _dated(replica: Replica, now_ms: int, group_before: Group | None) -> Replica:
    """Since when it is cut off from those who tell it its role: since the first look that found it so."""
    if not (replica.controllers_error or replica.stale_view):
        return replica
    before = group_before.replica(replica.id) if group_before is not None else None
    since_ms = before.cut_off_since_ms if before is not None else None
    return replace(replica, cut_off_since_ms=now_ms if since_ms is None else min(since_ms, now_ms))


def _with_gaps(replicas: Sequence[Replica], master: BrokerState | None) -> list[Replica]:
    """How many bytes of its master's log each replica has not acknowledged, by the master's own count.

    Unknown without that word: the ends that two brokers tell are of different moments, and their difference is no length.
    """
    if master is None or master.role is not BrokerRole.MASTER:
        return list(replicas)
    gaps = {peer.broker_id: peer.gap_bytes for peer in master.channel.replicas} | {master.broker_id: 0}
    return [replace(each, gap_bytes=known(gaps.get(each.id))) for each in replicas]


def _first(*values: int | None) -> int | None:
    return next((value for value in values if known(value) is not None), None)


def _remembered(previous: ClusterSnapshot | None) -> list[GroupView]:
    """The groups of an earlier snapshot in the controllers' words; what only controllers know now is unknown."""
    return [
        GroupView(
            cluster_name=group.cluster,
            broker_name=group.name,
            kind=group.kind,
            master_broker_id=group.master_id,
            master_epoch=group.master_epoch,
            sync_state_set=group.sync_state_set,
            sync_state_set_epoch=group.sync_state_set_epoch,
            replicas=tuple(
                ReplicaView(
                    broker_id=each.id,
                    address=each.address,
                    ha_address=each.ha_address,
                    grpc_address=each.grpc_address,
                )
                for each in group.replicas
            ),
        )
        for group in (previous.groups if previous is not None else ())
    ]
