"""Which groups need an election without anybody asking; shared by the daemon's scanner and the simulator (pure)"""

from __future__ import annotations

from collections.abc import Iterable

from controllerd.replicas.decide import decide
from controllerd.replicas.elect import is_incumbent
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.lives import lives_to_count
from controllerd.replicas.records import MasterElected, SyncStateSetChanged
from controllerd.replicas.requests import CountLives, ElectMaster, Observation, Trigger
from controllerd.replicas.room import successor_with_room
from controllerd.replicas.standing_disks import successor_with_working_disk
from controllerd.replicas.state import Group, ReplicasState


def due_elections(
    state: ReplicasState,
    table: HeartbeatTable,
    now_ms: int,
    *,
    unclean: bool,
    names: Iterable[str] | None = None,
    at_ms: int = 0,
) -> list[ElectMaster]:
    """The elections to propose now, over all groups or the named ones; only those that would change something.

    `at_ms` is the wall clock, for the record of an unclean election. A master that is merely silent is deposed in favour of a
    successor, never in favour of nobody: should it live, it goes on. Who would be left alone in the set must be heard after the
    others went.
    """
    due = []
    for name in state.groups if names is None else names:
        group = state.groups.get(name)
        if group is None:
            continue
        is_headless = needs_election(group, table, now_ms)
        successor = None if is_headless else _successor(group, table, now_ms)
        if not is_headless and successor is None:
            continue
        request = ElectMaster(
            group.cluster_name,
            group.broker_name,
            Trigger.CONTROLLER,
            table.observe(group, now_ms),
            successor,
            designate=successor is not None,
            unclean=unclean,
            seen_master_epoch=group.master_epoch,
            last_known=table.last_words(group, now_ms) if unclean else (),
            at_ms=at_ms,
            keeps_members=True,
        )
        records = decide(state, request).records
        if not records:
            continue
        if isinstance(records[0], MasterElected):
            stays_alone = not any(isinstance(each, SyncStateSetChanged) for each in records)
            is_due = not stays_alone or not _is_in_doubt(group, records[0].broker_id, table, now_ms)
        else:
            is_due = _is_gone(group, table, now_ms)
        if is_due:
            due.append(request)
    return due


def _successor(group: Group, table: HeartbeatTable, now_ms: int) -> int | None:
    """Who is to lead instead of a living master whose disk is full or stands still; None when it keeps the lead."""
    working = successor_with_working_disk(group, table, now_ms)
    return successor_with_room(group, table, now_ms) if working is None else working


def due_counts(
    state: ReplicasState, table: HeartbeatTable, now_ms: int, names: Iterable[str] | None = None
) -> list[CountLives]:
    """What to ask for groups that have members of which no life is counted, as when all controllers have just learned to."""
    due = []
    for name in state.groups if names is None else names:
        group = state.groups.get(name)
        if group is None or len(group.lives) == len(group.sync_state_set):
            continue
        uncounted = tuple(each for each in table.observe(group, now_ms) if each.broker_id not in group.lives)
        if lives_to_count(state, name, (), uncounted):
            due.append(CountLives(name, uncounted))
    return due


def needs_election(group: Group, table: HeartbeatTable, now_ms: int) -> bool:
    """Whether a group that once had a master has none now, a dead one, or a restarted one."""
    if not group.had_master:
        return False
    if group.master_broker_id is None or table.is_dead(group, group.master_broker_id, now_ms):
        return True
    live = {each.broker_id: each for each in table.observe(group, now_ms)}
    return group.master_broker_id in live and not is_incumbent(group, live)


def _is_gone(group: Group, table: HeartbeatTable, now_ms: int) -> bool:
    """More than silent: the recorded master's connection closed, or it was not heard since this controller began to listen."""
    if group.master_broker_id is None:
        return True
    beat = table.get(group, group.master_broker_id)
    return table.is_dead(group, group.master_broker_id, now_ms) if beat is None else beat.is_closed


def _is_in_doubt(group: Group, left_id: int, table: HeartbeatTable, now_ms: int) -> bool:
    """Whether the only one who is left of the set was not heard since the others were heard last, or their connections closed.

    What took them may have taken it, too; and should it not come back, its election would have shut the others out of the set.
    """
    left = table.get(group, left_id)
    gone = [
        table.get(group, each)
        for each in group.sync_state_set
        if each != left_id and not table.is_alive(group, each, now_ms)
    ]
    return left is not None and any(
        each is not None and left.received_ms < (each.closed_ms if each.is_closed else each.received_ms)
        for each in gone
    )


def observe_for_request(group: Group, table: HeartbeatTable, now_ms: int) -> tuple[Observation, ...]:
    """What an election that somebody asks for goes by: a master that may yet be heard has the benefit of the doubt."""
    observed = table.observe(group, now_ms)
    master_id = group.master_broker_id
    if master_id is None or any(each.broker_id == master_id for each in observed):
        return observed
    if table.is_dead(group, master_id, now_ms):
        return observed
    return (*observed, Observation(master_id, -1, -1, 0, group.master_incarnation))
