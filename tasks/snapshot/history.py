"""The history from one look to the next: entries that begin, change and end (pure)

An entry is made once: its key follows from the group and the epoch of an election, or from whose fault it is and when it began,
and what is open in the snapshot before, or in the database, is continued. The snapshot keeps the newest; all of them go to the
database (`tasks.history`). Elections and faults have bounds of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from remoting.facts.cluster_view import ElectionView
from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import ClusterSnapshot, Controller, Group, Process
from remoting.facts.words import Cause, ControllerRole, GroupKind, HistoryKind
from tasks.snapshot import faults
from tasks.snapshot.faults import Fault
from tasks.snapshot.inputs import Leader, Look, Memory, told_elections
from tasks.snapshot.moments import milliseconds

UNWATCHED_MS: Final = 10_000  # looks that are further apart than this did not watch what was between
_MISSED_MS: Final = 3000  # an election is mostly over in less: its end was not seen by looks that are so far apart
ELECTIONS_KEPT: Final = 30
FAULTS_KEPT: Final = 30
OPEN_KEPT: Final = 200

Entries = dict[str, HistoryEntry]


def history(
    look: Look, memory: Memory, snapshot: ClusterSnapshot
) -> tuple[tuple[HistoryEntry, ...], Mapping[str, int], Leader | None]:
    """The entries, newest first; what is suspected since when; and the controllers' leader that was seen last."""
    previous = memory.snapshot
    entries = _continued(previous, look.kept.open)
    unwatched = _is_unwatched(previous, look.now_ms, UNWATCHED_MS)
    suspected = _begin(entries, look, memory, snapshot, unwatched)
    for entry in (
        *_exits(entries, look, previous, snapshot),
        *_elections(entries, look, memory, snapshot, unwatched),
    ):
        entries.setdefault(entry.key, entry)
    leader = _leader(snapshot) or memory.leader or _leader_of(previous)
    if (changed := _led_anew(entries, look, memory, snapshot, unwatched)) is not None:
        entries.setdefault(changed.key, changed)
    for entry in [each for each in entries.values() if each.ended_ms is None]:
        missed = unwatched or (entry.kind.is_election and _is_unwatched(previous, look.now_ms, _MISSED_MS))
        if (over := _end(entry, look, snapshot, missed)) is not None:
            entries[entry.key] = over
    return _newest(entries.values()), suspected, leader


# ---- what goes on and what ends


def _continued(previous: ClusterSnapshot | None, stored: Iterable[HistoryEntry]) -> Entries:
    """What the snapshot before and the database have: of two that are open and about the same, the older one goes on."""
    entries = {each.key: each for each in previous.history} if previous is not None else {}
    for each in stored:
        if each.key in entries:
            continue
        if not each.kind.is_election:
            newer = [key for key, other in entries.items() if other.whose == each.whose and other.ended_ms is None]
            for key in newer:
                del entries[key]
        entries[each.key] = each
    return entries


def _is_unwatched(previous: ClusterSnapshot | None, now_ms: int, longest_ms: int) -> bool:
    before_ms = milliseconds(previous.as_of) if previous is not None else None
    return before_ms is None or now_ms - before_ms > longest_ms


def _end(entry: HistoryEntry, look: Look, snapshot: ClusterSnapshot, unwatched: bool) -> HistoryEntry | None:
    """The entry as it is now that it is over; None while it is not."""
    if entry.kind.is_election:
        is_over, gone = _is_served(entry, look, snapshot), False
    else:
        is_over, gone = faults.is_over(entry, look, snapshot), faults.is_gone(entry, snapshot)
    if not is_over:
        return None
    cause = "; ".join(filter(None, (entry.cause, "it was taken out of the cluster" if gone else "")))
    # the clock may have been set back meanwhile
    return replace(entry, ended_ms=max(look.now_ms, entry.started_ms), end_unwatched=unwatched, cause=cause)


def _is_served(entry: HistoryEntry, look: Look, snapshot: ClusterSnapshot) -> bool:
    """Whether the elected master was seen to serve, or is master no more."""
    group = next((each for each in snapshot.groups if (each.cluster, each.name) == (entry.cluster, entry.group)), None)
    if group is None:
        return bool(look.views)
    if group.master_epoch is not None and entry.epoch is not None and group.master_epoch > entry.epoch:
        return True
    # only a broker that answered itself has a flushed offset: that the controllers name it says nothing about serving
    return group.serving is not None and group.serving.flushed_offset is not None


# ---- faults that begin


def _begin(
    entries: Entries, look: Look, memory: Memory, snapshot: ClusterSnapshot, unwatched: bool
) -> Mapping[str, int]:
    """Open what has lasted long enough, and note the rest."""
    open_now = {each.whose: each for each in entries.values() if each.ended_ms is None}
    over_ms: dict[str, int] = {}
    for each in entries.values():
        if each.ended_ms is not None:
            over_ms[each.whose] = max(each.ended_ms, over_ms.get(each.whose, each.ended_ms))
    suspected = {}
    for fault in faults.faults(look, memory.snapshot, snapshot):
        first_ms = min(memory.suspected.get(fault.whose, look.now_ms), look.now_ms)
        if (known := open_now.get(fault.whose)) is not None:
            entries[known.key] = _better_explained(known, fault)
        elif look.now_ms - first_ms >= fault.must_last_ms:
            if fault.since_ms is not None and fault.since_ms <= over_ms.get(fault.whose, 0) <= look.now_ms:
                fault = replace(fault, since_ms=None)  # that was the one before
            began = _begun(fault, first_ms, unwatched)
            entries.setdefault(began.key, began)
            open_now[fault.whose] = began
        else:
            suspected[fault.whose] = first_ms
    return suspected


def _begun(fault: Fault, first_ms: int, unwatched: bool) -> HistoryEntry:
    started_ms = first_ms if fault.since_ms is None else min(fault.since_ms, first_ms)
    return HistoryEntry(
        key=f"{fault.whose}/{started_ms}",
        kind=fault.kind,
        cluster=fault.cluster,
        group=fault.group,
        subject=fault.subject,
        text=fault.text,
        cause=fault.cause,
        started_ms=started_ms,
        start_unwatched=unwatched and fault.since_ms is None,
    )


def _better_explained(entry: HistoryEntry, fault: Fault) -> HistoryEntry:
    """With the cause that is known by now: how a process ended says more than that it is silent."""
    explained = "its process " in entry.cause and "its process " not in fault.cause
    # who answers again before there is a leader explains nothing
    if not fault.cause or explained or (entry.kind is HistoryKind.LEADERLESS and entry.cause):
        return entry
    return replace(entry, cause=fault.cause)


def _exits(
    entries: Entries, look: Look, previous: ClusterSnapshot | None, snapshot: ClusterSnapshot
) -> Iterator[HistoryEntry]:
    """Processes that ended and were back before anybody saw them missing."""
    if look.supervisor is not None and look.supervisor.state in faults.QUIET:
        return
    before = {each.name: each for each in previous.processes} if previous is not None else {}
    for process in snapshot.processes:
        was, ended_ms = before.get(process.name), faults.exit_ms(process, look.now_ms)
        if was is None or was.last_exit == process.last_exit or ended_ms is None or faults.is_down(process):
            continue
        fault = _fault_of(process, look, snapshot)
        if any(_covers(each, fault.whose, ended_ms) for each in entries.values()):
            continue
        back_ms = milliseconds(process.since) or look.now_ms
        began = _begun(replace(fault, since_ms=ended_ms), ended_ms, unwatched=False)
        yield replace(began, ended_ms=max(min(back_ms, look.now_ms), began.started_ms))


def _fault_of(process: Process, look: Look, snapshot: ClusterSnapshot) -> Fault:
    for controller in snapshot.controllers:
        if controller.address == process.address:
            return faults.controller_fault(controller, process, look.now_ms)
    for group in snapshot.groups:
        for replica in group.replicas:
            if replica.process == process.name:
                return faults.replica_fault(group, replica, faults.exit_cause(process, look.now_ms), None)
    return faults.process_fault(process, look.now_ms)


def _covers(entry: HistoryEntry, whose: str, at_ms: int) -> bool:
    until_ms = entry.ended_ms if entry.ended_ms is not None else at_ms
    return entry.whose == whose and entry.started_ms - UNWATCHED_MS <= at_ms <= until_ms


# ---- elections


def _elections(
    entries: Entries, look: Look, memory: Memory, snapshot: ClusterSnapshot, unwatched: bool
) -> Iterator[HistoryEntry]:
    previous = memory.snapshot
    before = {(each.cluster, each.name): each for each in previous.groups} if previous is not None else {}
    for group in snapshot.groups:
        if group.kind is not GroupKind.FIXED and group.master_epoch:
            was = before.get((group.cluster, group.name))
            without_ms = _since_ms(f"{HistoryKind.NO_MASTER}/{group.cluster}/{group.name}/", entries, look, memory)
            yield from _elections_of(look, was, group, snapshot, without_ms, unwatched)


def _since_ms(whose: str, entries: Entries, look: Look, memory: Memory) -> int:
    """Since when a fault is suspected or open; now, if it is not."""
    began = [each.started_ms for each in entries.values() if each.whose == whose and each.ended_ms is None]
    return min([look.now_ms, *began, *filter(None, [memory.suspected.get(whose)])])


def _elections_of(
    look: Look, was: Group | None, group: Group, snapshot: ClusterSnapshot, without_ms: int, unwatched: bool
) -> Iterator[HistoryEntry]:
    """Those above the epoch that was known: each that the controllers tell of, and the last one if they do not know it.

    `without_ms`: since when the group was seen without a master; now, if it was not.
    """
    assert group.master_epoch is not None
    known = was.master_epoch if was is not None and was.master_epoch is not None else 0
    told = [each for each in told_elections(look, group) if known < each.master_epoch <= group.master_epoch]
    lost: ElectionView | None = None
    for each in told_elections(look, group):
        if each.broker_id is not None and each in told:
            known_loss = lost if lost is not None and lost.master_epoch == each.master_epoch - 1 else None
            yield _told_entry(each, known_loss, look, group, snapshot)
        lost = each if each.broker_id is None else None
    missed = group.master_epoch > max([known, *(each.master_epoch for each in told)])
    # a group that is seen for the first time has a master for long, for all that anybody knows
    if missed and was is not None and group.master_id is not None:
        yield replace(_inferred_entry(look, was, group, snapshot, without_ms), start_unwatched=unwatched)


def _told_entry(
    told: ElectionView, lost: ElectionView | None, look: Look, group: Group, snapshot: ClusterSnapshot
) -> HistoryEntry:
    """`lost`: the group had lost its master before, and nobody could be elected then."""
    assert told.broker_id is not None
    decided_ms = min(told.at_ms, look.now_ms) if told.at_ms > 0 else look.now_ms
    why = lost if lost is not None and told.previous_id is None else told
    entry = _entry(group, told.master_epoch, told.broker_id, why.previous_id, decided_ms - max(0, told.unheard_ms))
    cause = _why(why.cause, why.previous_id, look, group, snapshot)
    if why is lost:
        cause += "; nobody could be elected at once"
    # of one that is past, or long ago, nobody saw when it served
    is_past = group.master_epoch is not None and told.master_epoch < group.master_epoch
    is_old = look.now_ms - decided_ms > UNWATCHED_MS
    return replace(entry, cause=cause, ended_ms=decided_ms if is_past or is_old else None)


def _inferred_entry(look: Look, was: Group, group: Group, snapshot: ClusterSnapshot, without_ms: int) -> HistoryEntry:
    """One that happened before the present leader of the controllers led, or one of a controller that does not tell."""
    assert group.master_epoch is not None
    assert group.master_id is not None
    passed = group.master_epoch - (was.master_epoch or 0) - 1
    master, cause, started_ms = group.replica(was.master_id), "", without_ms
    if master is not None and master.id != group.master_id:
        cause = faults.absence(master, snapshot, look.now_ms)
        missing_ms = faults.missing_since_ms(master, snapshot, look.now_ms)
        started_ms = without_ms if missing_ms is None else min(without_ms, missing_ms)
    entry = _entry(group, group.master_epoch, group.master_id, was.master_id, started_ms)
    told = [f"{master.label}: {cause}" if master is not None and cause else "the cause is not known"]
    if passed > 0:
        told.append(f"{passed} more {'epoch' if passed == 1 else 'epochs'} passed unseen")
    return replace(entry, cause="; ".join(told))


def _entry(group: Group, epoch: int, master_id: int, previous_id: int | None, started_ms: int) -> HistoryEntry:
    elected = group.label(master_id)
    return HistoryEntry(
        key=f"{HistoryKind.ELECTION}/{group.cluster}/{group.name}/{epoch}",
        kind=HistoryKind.ELECTION,
        cluster=group.cluster,
        group=group.name,
        subject=group.name,
        text=f"{group.name}: {elected} was elected master in epoch {epoch}",
        previous=group.label(previous_id) if previous_id is not None else "",
        elected=elected,
        epoch=epoch,
        started_ms=started_ms,
    )


def _why(cause: Cause, previous_id: int | None, look: Look, group: Group, snapshot: ClusterSnapshot) -> str:
    match cause:
        case Cause.ASKED:
            return "a person asked for it"
        case Cause.FIRST_MASTER:
            return "the group never had a master"
        case Cause.CANDIDATE_CAME:
            return "it had none, and a replica that may lead came"
    master = group.replica(previous_id)
    ended = faults.process_of(master, snapshot) if master is not None and cause is not Cause.SILENT else None
    told = faults.exit_cause(ended, look.now_ms) or faults.said(cause)
    if not told:
        return "the cause is not known"
    return told if previous_id is None else f"{group.label(previous_id)}: {told}"


# ---- the leader of the controllers


def _led_anew(
    entries: Entries, look: Look, memory: Memory, snapshot: ClusterSnapshot, unwatched: bool
) -> HistoryEntry | None:
    previous = memory.snapshot
    before, now = memory.leader or _leader_of(previous), _leader(snapshot)
    if now is None or previous is None or (before is not None and now.term <= before.term):
        return None
    started_ms = _since_ms(f"{HistoryKind.LEADERLESS}///", entries, look, memory)
    return HistoryEntry(
        key=f"{HistoryKind.LEADER}//{now.id}/{now.term}",
        kind=HistoryKind.LEADER,
        subject="the controllers",
        text=f"controller {now.id} leads in term {now.term}",
        cause=_why_led_anew(before, look, snapshot),
        previous=f"controller {before.id}" if before is not None else "",
        elected=f"controller {now.id}",
        epoch=now.term,
        started_ms=started_ms,
        ended_ms=look.now_ms,
        start_unwatched=unwatched,
    )


def _why_led_anew(before: Leader | None, look: Look, snapshot: ClusterSnapshot) -> str:
    """What is known of the leader before: that it does not answer, or how its process ended."""
    was = next((each for each in snapshot.controllers if before is not None and each.id == before.id), None)
    if was is None:
        return ""
    told = faults.exit_cause(faults.process_of(was, snapshot), look.now_ms)
    if not told and was.role is ControllerRole.UNREACHABLE:
        told = "it does not answer"
    return f"controller {was.id}: {told}" if told else ""


def _leader(snapshot: ClusterSnapshot) -> Leader | None:
    found = (each for each in snapshot.controllers if each.role is ControllerRole.LEADER)
    return next((_as_leader(each) for each in found if each.term is not None), None)


def _as_leader(controller: Controller) -> Leader:
    assert controller.term is not None
    return Leader(controller.id, controller.term)


def _leader_of(previous: ClusterSnapshot | None) -> Leader | None:
    """The last that a stored snapshot knows of."""
    if previous is None:
        return None
    told = next((each for each in previous.history if each.kind is HistoryKind.LEADER and each.epoch is not None), None)
    by_entry = Leader(told.elected.removeprefix("controller "), told.epoch or 0) if told is not None else None
    return _leader(previous) or by_entry


# ---- what the snapshot keeps


def _newest(entries: Iterable[HistoryEntry]) -> tuple[HistoryEntry, ...]:
    by_age = sorted(entries, key=lambda each: -each.started_ms)
    elections = [each for each in by_age if each.kind.is_election][:ELECTIONS_KEPT]
    still_open = [each for each in by_age if not each.kind.is_election and each.ended_ms is None][:OPEN_KEPT]
    over = [each for each in by_age if not each.kind.is_election and each.ended_ms is not None][:FAULTS_KEPT]
    return tuple(sorted((*elections, *still_open, *over), key=lambda each: -each.started_ms))
