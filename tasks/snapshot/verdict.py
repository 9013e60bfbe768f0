"""Healthy, degraded or down, and why (pure)

`down`: no broker group can take messages. `degraded`: messages flow, but something that protects them or restores them is
missing. Each reason says what it means for the person who reads it; the worst come first. What was and is over is told beside
the reasons, for a while (`tasks.snapshot.recent`).

How much consumers are behind is no reason: whether a lag is trouble is known to who runs the consumer (a batch job that comes
once a night has one all day), and the cluster is no less whole for it. The page shows it beside the verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from remoting.facts.snapshot import Controller, Group, MissingCopy, Process, Reason, Replica, Scrub, Verdict
from remoting.facts.words import ControllerRole, GroupKind, Health, Severity
from tasks.snapshot.inputs import Look

CRITICAL, WARNING = Severity.CRITICAL, Severity.WARNING
_OVERRULED_MS = 3_600_000  # for so long it is told that files went which topics wanted
CUT_OFF_MS = 5000  # a change of the leader, or of the master, cuts everybody off for a moment
_TROUBLED = {"backing-off": "keeps ending and is started again", "failed": "cannot be started"}


def verdict(
    look: Look, controllers: Sequence[Controller], groups: Sequence[Group], processes: Sequence[Process]
) -> Verdict:
    """The status and its reasons."""
    reasons = [
        *_about_controllers(look, controllers),
        *(reason for group in groups for reason in _about_group(look, group)),
        *_about_processes(processes),
        *_about_history(look),
    ]
    if not groups:
        reasons.append(
            _reason("no-brokers", CRITICAL, "No broker has registered yet: there is nowhere to send to.", None)
        )
    status = Health.DEGRADED if reasons else Health.HEALTHY
    if all(group.serving is None for group in groups):
        status = Health.DOWN
    return Verdict(status=status, reasons=tuple(sorted(reasons, key=lambda reason: reason.severity is not CRITICAL)))


def _reason(code: str, severity: Severity, text: str, link: str | None) -> Reason:
    return Reason(code=code, severity=severity, text=text, link=link)


def _about_controllers(look: Look, controllers: Sequence[Controller]) -> Iterator[Reason]:
    link = "/#controllers"
    silent = [each.id for each in controllers if each.role is ControllerRole.UNREACHABLE]
    if not look.views:
        text = "No controller answers: messages go on, but a master that fails now would not be replaced."
        yield _reason("controllers-unreachable", CRITICAL, text, link)
        return
    if not any(each.role is ControllerRole.LEADER for each in controllers):
        text = "The controllers have no leader: messages go on, but a master that fails now would not be replaced."
        yield _reason("controllers-leaderless", CRITICAL, text, link)
    if silent:
        verb = "does" if len(silent) == 1 else "do"
        more = (len(controllers) - 1) // 2 - len(silent)
        rest = f"{more} more may fail." if more > 0 else "No further one may fail."
        text = f"Controller {', '.join(silent)} {verb} not answer. {rest}"
        yield _reason("controller-unreachable", WARNING, text, link)


def _about_group(look: Look, group: Group) -> Iterator[Reason]:
    name, replicas = group.name, group.replicas
    link = f"/#group-{group.cluster}-{name}"
    explained = {each.broker_id for each in group.quorum.missing} if group.quorum is not None else set()
    if _is_switched_off(look, group):
        text = f"{name} is switched off: `manage.py group up {name}` starts its brokers, and `mount` serves what its tier has."
        yield _reason("group-off", WARNING, text, "/#switched")
        return
    if group.master_id is None:
        until = "until it is back" if group.kind is GroupKind.FIXED else "until one is elected"
        text = f"{name} has no master: sends to it are refused {until}."
        yield _reason("no-master", CRITICAL, text, link)
    elif group.serving is None:
        text = f"{name}: its master, {group.label(group.master_id)}, does not serve at the moment."
        yield _reason("master-not-serving", CRITICAL, text, link)
    for replica in replicas:
        if look.views and replica.alive is False:
            text = f"{name}: {replica.label} does not answer its controllers."
            yield _reason("replica-dead", WARNING, text, link)
        elif look.views and _is_behind(replica) and replica.id not in explained and group.master_id is not None:
            gap = "" if replica.gap_bytes is None else f"; it lacks {_bytes(replica.gap_bytes)}"
            text = f"{name}: {replica.label} is not in the sync-state set{gap}."
            yield _reason("replica-out-of-sync", WARNING, text, link)
    yield from _about_quorum(group, link)
    yield from _about_tier(group, link)
    for replica in replicas:
        state = look.states.get(replica.address) if replica.address is not None else None
        if state is not None and state.last_error:
            text = f"{name}: {replica.label} reports: {state.last_error}"
            yield _reason("broker-error", WARNING, text[:500], link)
        if replica.scrub is not None and replica.scrub.unrepaired:
            yield _reason("data-damaged", WARNING, _damage(name, replica, replica.scrub), link)
        if (sentence := _overruled(look, name, replica)) is not None:
            yield _reason("retention-overruled", WARNING, sentence, link)
        if replica.claimed_by is not None:
            text = (
                f"{name}: two processes have the identity of {replica.label}: one at {replica.address}, and one at "
                f"{replica.claimed_by}, which is refused. Stop the one that runs on a copy of the data directory."
            )
            yield _reason("identity-copied", WARNING, text, link)
        if replica.cut_off_since_ms is not None and look.now_ms - replica.cut_off_since_ms >= CUT_OFF_MS:
            text = f"{name}: {replica.label} cannot learn its role: {replica.stale_view or replica.controllers_error}"
            yield _reason("broker-cut-off", WARNING, text[:500], link)


def _is_switched_off(look: Look, group: Group) -> bool:
    """Whether the appliance has all its brokers, and somebody had them stopped."""
    processes = look.supervisor.processes if look.supervisor is not None else ()
    own = [each.state for each in processes if each.group == group.name]
    return group.serving is None and bool(own) and set(own) == {"held"}


def _about_tier(group: Group, link: str) -> Iterator[Reason]:
    """Why nothing is uploaded, and what went because of that."""
    tier, name = group.tier, group.name
    if tier is None:
        return
    if tier.trouble is not None:
        since = "" if tier.trouble_since_ms is None else f" since {_time(tier.trouble_since_ms)}"
        text = f"{name} uploads nothing to its tier{since}, and goes on otherwise: {tier.trouble}"
        yield _reason("tier-trouble", WARNING, text[:500], link)
    if tier.gone_log_bytes:
        text = (
            f"{name} was short of disk space, and removed {_bytes(tier.gone_log_bytes)} of its log before the tier had them: "
            "consumers that were not there yet miss these messages."
        )
        yield _reason("tier-gap", WARNING, text, link)


def _overruled(look: Look, name: str, replica: Replica) -> str | None:
    """That files went lately which topics want kept."""
    told = replica.retention
    if told is None or told.overruled_ms is None or look.now_ms - told.overruled_ms >= _OVERRULED_MS:
        return None
    return (
        f"{name}: the disk of {replica.label} is too full for what topics want: it removed files with messages that they want "
        f"kept, the last one at {_time(told.overruled_ms)}, which {told.overruled_topic} wanted. Add room, or have topics want "
        "less."
    )


def _damage(name: str, replica: Replica, scrub: Scrub) -> str:
    """What of a replica's log is damaged and not repaired, the first part of it with its reason."""
    first, more = scrub.unrepaired[0], len(scrub.unrepaired) - 1
    others = f" and {more} other parts" if more else ""
    text = (
        f"{name}: the log of {replica.label} is damaged from offset {first.start_offset} to {first.end_offset}{others}"
    )
    return f"{text}; no other replica could give what belongs there: {first.reason}"[:500]


def _is_behind(replica: Replica) -> bool:
    return not replica.in_sync and not replica.learner


def _about_quorum(group: Group, link: str) -> Iterator[Reason]:
    """What an acknowledgement means less than it should, who is missing for it, why, and since when."""
    name, quorum = group.name, group.quorum
    for each in group.weaknesses:
        yield _reason("weak-settings", WARNING, f"{name}: {each}.", link)
    if quorum is None:
        return
    if quorum.refused:
        text = f"{name} refuses messages: {_count(quorum.copies)} in sync, and {quorum.min_copies} are required."
        yield _reason("too-few-replicas", CRITICAL, f"{text}{_who(quorum.missing)}", link)
    elif quorum.downgraded:
        text = f"{name}: an acknowledgement means {_count(quorum.copies)} instead of {quorum.wanted_copies}."
        yield _reason("downgraded", WARNING, f"{text}{_who(quorum.missing)}", link)
    stalling = [each for each in quorum.missing if each.stalls]
    if stalling and not quorum.refused:
        labels = ", ".join(each.label for each in stalling)
        verb = "is" if len(stalling) == 1 else "are"
        text = f"{name}: sends wait for {labels}, which {verb} still in the set.{_who(stalling)}"
        yield _reason("sends-stall", CRITICAL, text, link)


def _count(copies: int | None) -> str:
    return "1 copy" if copies == 1 else f"{'?' if copies is None else copies} copies"


def _who(missing: Iterable[MissingCopy]) -> str:
    """ " Replica 3: it is not connected, since 12:00:03 UTC." for each that is missing."""
    told = []
    for each in missing:
        since = "" if each.since_ms is None else f", since {_time(each.since_ms)}"
        told.append(f" R{each.label[1:]}: {each.reason}{since}.")
    return "".join(told)


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S} UTC"


def _about_processes(processes: Sequence[Process]) -> list[Reason]:
    return [
        _reason("process-down", WARNING, f"The process {each.name} {_TROUBLED[each.state]}.", "/#processes")
        for each in processes
        if each.state in _TROUBLED
    ]


def _about_history(look: Look) -> Iterator[Reason]:
    if look.kept.problem:
        text = f"The history is not written: {look.kept.problem}. What happens is kept until it can be."
        yield _reason("history-not-written", WARNING, text[:500], "/history/")


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
