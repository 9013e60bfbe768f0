"""Which faults begin and which are over by one look at the cluster (pure)

Both are said for certain only: what a look cannot tell, because nobody answers who would know, neither begins nor ends a fault.
While the appliance starts or stops nothing is a fault. A fault that must last is one after it has been seen for so long: what a
moment's silence or an election looks like is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import ClusterSnapshot, Controller, Group, Process, Replica
from remoting.facts.words import BrokerRole, Cause, ControllerRole, GroupKind, HistoryKind
from tasks.snapshot.inputs import Look, told_elections
from tasks.snapshot.moments import milliseconds

EXIT_FRESH_MS: Final = 15_000
NO_MASTER_LASTS_MS: Final = 1500  # less is told by the election
SILENCE_LASTS_MS: Final = 2000  # of those that the collector itself asks
NEVER_HEARD_LASTS_MS: Final = 5000  # brokers find a controller that started a moment ago
FORGOTTEN_MS: Final = 24 * 3600 * 1000
_FIXED: Final = "fixed "
QUIET: Final = frozenset({"starting", "stopping", "stopped"})
_SAID: Final = {
    Cause.CLOSED: "its connection to the controllers closed",
    Cause.SILENT: "its heartbeats stopped",
    Cause.NEVER_HEARD: "the leading controller never heard it",
    Cause.RESTARTED: "it restarted",
    Cause.LOST_TAIL: "it restarted without the end of its log",
    Cause.NO_ROOM: "its disk took no message, and another one's did",
    Cause.DISK_STANDS: "its disk stood still, and another one's did not",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`name` says within its kind and group whose it is; `since_ms` when it began, if that is known better than by looking."""

    kind: HistoryKind
    cluster: str = ""
    group: str = ""
    name: str = ""
    subject: str
    text: str
    cause: str = ""
    since_ms: int | None = None
    must_last_ms: int = 0

    @property
    def whose(self) -> str:
        return f"{self.kind}/{self.cluster}/{self.group}/{self.name}"


def faults(look: Look, previous: ClusterSnapshot | None, snapshot: ClusterSnapshot) -> Iterator[Fault]:
    """What is wrong now, as far as it begins to be seen by this look."""
    if look.supervisor is not None and look.supervisor.state in QUIET:
        return
    yield from _of_controllers(look, snapshot)
    if look.views:
        before = {(each.cluster, each.name): each for each in previous.groups} if previous is not None else {}
        for group in snapshot.groups:
            yield from _of_group(look, before.get((group.cluster, group.name)), group, snapshot)
        for group in before.values():
            yield from _gone_of_fixed(group, snapshot)
    members = {each.address for each in snapshot.controllers} | {each.address for each in _replicas(snapshot)}
    for process in snapshot.processes:
        if is_down(process) and process.address not in members:
            yield process_fault(process, look.now_ms)


def is_over(entry: HistoryEntry, look: Look, snapshot: ClusterSnapshot) -> bool:
    """Whether this look shows that a fault is over."""
    name = entry.key.split("/")[3]
    match entry.kind:
        case HistoryKind.LEADERLESS:
            return _leads(snapshot)
        case HistoryKind.CONTROLLER_DOWN:
            roles = [each.role for each in snapshot.controllers if each.address == name]
            return bool(look.views) and ControllerRole.UNREACHABLE not in roles
        case HistoryKind.PROCESS_DOWN:
            return look.supervisor is not None and not any(
                is_down(each) for each in snapshot.processes if each.name == name
            )
    if not look.views:
        return False
    group = next((each for each in snapshot.groups if (each.cluster, each.name) == (entry.cluster, entry.group)), None)
    if group is None:
        return _forgotten(entry, look.now_ms) if name.startswith(_FIXED) else _leads(snapshot)
    return _is_over_in(group, name, entry, look, snapshot)


def is_gone(entry: HistoryEntry, snapshot: ClusterSnapshot) -> bool:
    """Whether the group or replica of a fault that is over was taken out of the cluster."""
    if not entry.group:
        return False
    group = next((each for each in snapshot.groups if (each.cluster, each.name) == (entry.cluster, entry.group)), None)
    name = entry.key.split("/")[3].removeprefix(_FIXED)
    return group is None or (name.isdecimal() and group.replica(int(name)) is None)


def replica_fault(group: Group, replica: Replica, cause: str, since_ms: int | None, must_last_ms: int = 0) -> Fault:
    """A replica that does not answer."""
    prefix = _FIXED if group.kind is GroupKind.FIXED else ""
    return Fault(
        kind=HistoryKind.REPLICA_DOWN,
        cluster=group.cluster,
        group=group.name,
        name=f"{prefix}{replica.id}",
        subject=replica.label,
        text=f"{group.name}: {replica.label} did not answer",
        cause=cause,
        since_ms=since_ms,
        must_last_ms=must_last_ms,
    )


def controller_fault(controller: Controller, process: Process | None, now_ms: int) -> Fault:
    """A controller that does not answer."""
    return Fault(
        kind=HistoryKind.CONTROLLER_DOWN,
        name=controller.address,
        subject=f"controller {controller.id}",
        text=f"controller {controller.id} did not answer",
        cause=exit_cause(process, now_ms),
        since_ms=exit_ms(process, now_ms),
        must_last_ms=SILENCE_LASTS_MS,
    )


def process_fault(process: Process, now_ms: int) -> Fault:
    """A process of the appliance that is neither a broker nor a controller of the cluster."""
    return Fault(
        kind=HistoryKind.PROCESS_DOWN,
        name=process.name,
        subject=process.name,
        text=f"the process {process.name} was down",
        cause=exit_cause(process, now_ms),
        since_ms=exit_ms(process, now_ms),
    )


def is_down(process: Process) -> bool:
    """It ended by itself, and is not back."""
    return process.state in ("backing-off", "failed") or (process.state == "starting" and process.last_exit is not None)


def exit_ms(process: Process | None, now_ms: int) -> int | None:
    """When it ended last, if that was a moment ago."""
    at_ms = milliseconds(process.last_exit.at) if process is not None and process.last_exit is not None else None
    return at_ms if at_ms is not None and 0 <= now_ms - at_ms <= EXIT_FRESH_MS else None


def exit_cause(process: Process | None, now_ms: int) -> str:
    """How it ended, if that was a moment ago."""
    if process is None or process.last_exit is None or exit_ms(process, now_ms) is None:
        return ""
    return "it was switched off" if process.state == "held" else f"its process {process.last_exit.text}"


def absence(replica: Replica, snapshot: ClusterSnapshot, now_ms: int) -> str:
    """Why it does not answer: how its process ended, or what the controllers say."""
    told = exit_cause(_ended(replica, snapshot), now_ms)
    return told or said(replica.absence)


def missing_since_ms(replica: Replica, snapshot: ClusterSnapshot, now_ms: int) -> int | None:
    """When its process ended, if that is why it does not answer."""
    return exit_ms(_ended(replica, snapshot), now_ms)


def said(cause: Cause | None) -> str:
    """What speaks against a broker; empty when nothing is known."""
    return _SAID.get(cause, "") if cause is not None else ""


def process_of(member: Replica | Controller, snapshot: ClusterSnapshot) -> Process | None:
    """The appliance's process of a broker or controller: of two with its address the one that runs."""
    found = [each for each in snapshot.processes if each.address and each.address == member.address]
    return max(found, key=lambda each: each.pid is not None, default=None)


def _ended(replica: Replica, snapshot: ClusterSnapshot) -> Process | None:
    """Its process, if how that ended can explain an absence: one that is silent on an open connection lives."""
    process = process_of(replica, snapshot)
    lives = process is not None and not is_down(process) and replica.absence is Cause.SILENT
    return None if lives else process


def _of_controllers(look: Look, snapshot: ClusterSnapshot) -> Iterator[Fault]:
    answering = sum(each.role is not ControllerRole.UNREACHABLE for each in snapshot.controllers)
    if not _leads(snapshot):
        yield Fault(
            kind=HistoryKind.LEADERLESS,
            subject="the controllers",
            text="the controllers had no leader",
            cause=f"{answering} of {len(snapshot.controllers)} controllers answered" if look.views else "none answered",
            must_last_ms=SILENCE_LASTS_MS,
        )
    for each in snapshot.controllers:
        if each.role is ControllerRole.UNREACHABLE:
            yield controller_fault(each, process_of(each, snapshot), look.now_ms)


def _of_group(look: Look, before: Group | None, group: Group, snapshot: ClusterSnapshot) -> Iterator[Fault]:
    if group.serving is None and group.master_epoch:
        yield _no_master(look, before, group, snapshot)
    if group.quorum is not None and group.quorum.refused:
        yield Fault(
            kind=HistoryKind.REFUSED,
            cluster=group.cluster,
            group=group.name,
            subject=group.name,
            text=f"{group.name} refused messages",
            cause="; ".join(f"{each.label}: {each.reason}" for each in group.quorum.missing)
            or "too few replicas in sync",
        )
    now_ms = look.now_ms
    for replica in group.replicas:
        process = process_of(replica, snapshot)
        down = process is not None and is_down(process)
        if replica.alive is False or down:
            cause, since_ms = absence(replica, snapshot, now_ms), missing_since_ms(replica, snapshot, now_ms)
            unheard = replica.absence is Cause.NEVER_HEARD and not down
            yield replica_fault(group, replica, cause, since_ms, NEVER_HEARD_LASTS_MS if unheard else 0)
        was = before.replica(replica.id) if before is not None else None
        if was is not None and was.in_sync and not replica.in_sync and not replica.learner and _tells_set(group):
            yield _out_of_sync(look, group, replica, snapshot)


def _no_master(look: Look, before: Group | None, group: Group, snapshot: ClusterSnapshot) -> Fault:
    told = next((each for each in reversed(told_elections(look, group)) if each.broker_id is None), None)
    since_ms, cause = None, ""
    master = group.replica(group.master_id) or (before.replica(before.master_id) if before is not None else None)
    if group.master_id is None and told is not None and told.master_epoch == group.master_epoch:
        since_ms = told.at_ms - told.unheard_ms
        master = group.replica(told.previous_id) or master
        cause = said(told.cause)
    if master is not None:
        cause = absence(master, snapshot, look.now_ms) or cause
        cause = f"{master.label}: {cause}" if cause else f"{master.label} does not serve"
    return Fault(
        kind=HistoryKind.NO_MASTER,
        cluster=group.cluster,
        group=group.name,
        subject=group.name,
        text=f"{group.name} had no master",
        cause=cause,
        since_ms=since_ms,
        must_last_ms=NO_MASTER_LASTS_MS,
    )


def _out_of_sync(look: Look, group: Group, replica: Replica, snapshot: ClusterSnapshot) -> Fault:
    missing = group.quorum.missing if group.quorum is not None else ()
    told = next((each for each in missing if each.broker_id == replica.id), None)
    return Fault(
        kind=HistoryKind.OUT_OF_SYNC,
        cluster=group.cluster,
        group=group.name,
        name=str(replica.id),
        subject=replica.label,
        text=f"{group.name}: {replica.label} was out of the sync-state set",
        cause=absence(replica, snapshot, look.now_ms) or (told.reason if told is not None else ""),
    )


def _gone_of_fixed(before: Group, snapshot: ClusterSnapshot) -> Iterator[Fault]:
    """Who is not registered any more: the name server knows no more of a group with fixed roles."""
    if before.kind is not GroupKind.FIXED:
        return
    group = next((each for each in snapshot.groups if (each.cluster, each.name) == (before.cluster, before.name)), None)
    for replica in before.replicas:
        if group is None or group.replica(replica.id) is None:
            yield replica_fault(before, replica, "it is not registered any more", None)


def _is_over_in(group: Group, name: str, entry: HistoryEntry, look: Look, snapshot: ClusterSnapshot) -> bool:
    if entry.kind is HistoryKind.NO_MASTER:
        return group.serving is not None
    if entry.kind is HistoryKind.REFUSED:
        return group.quorum is not None and not group.quorum.refused
    replica = group.replica(int(name.removeprefix(_FIXED)))
    if replica is None:
        return not name.startswith(_FIXED) or _forgotten(entry, look.now_ms)
    if entry.kind is HistoryKind.OUT_OF_SYNC:
        return (replica.in_sync and _tells_set(group)) or bool(replica.learner)
    process = process_of(replica, snapshot)
    return replica.alive is True and replica.role is not BrokerRole.UNREACHABLE and not (process and is_down(process))


def _tells_set(group: Group) -> bool:
    """Whether this look told who is in the sync-state set; with fixed roles that is for the master to say."""
    return group.kind is not GroupKind.FIXED or group.quorum is not None


def _forgotten(entry: HistoryEntry, now_ms: int) -> bool:
    return now_ms - entry.started_ms > FORGOTTEN_MS


def _leads(snapshot: ClusterSnapshot) -> bool:
    return any(each.role is ControllerRole.LEADER for each in snapshot.controllers)


def _replicas(snapshot: ClusterSnapshot) -> Iterator[Replica]:
    for group in snapshot.groups:
        yield from group.replicas
