"""What the verdict tells of the history: what is over, for `RECENT_MS` after its end (pure)

One thing is told once: of a master that was killed, the election, and not also that the replica was away and out of the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import Recent
from remoting.facts.words import HistoryKind
from tasks.snapshot.moments import length, timestamp

RECENT_MS: Final = 10 * 60 * 1000
MOST: Final = 4
_SAME_MS: Final = 15_000  # what began so close to another thing about the same group or replica is a part of it
_WHOLE: Final = frozenset({HistoryKind.ELECTION, HistoryKind.REPLICA_DOWN})


def recent(history: Sequence[HistoryEntry], now_ms: int) -> tuple[Recent, ...]:
    """The newest first."""
    over = [each for each in history if each.ended_ms is not None and abs(now_ms - each.ended_ms) <= RECENT_MS]
    told = [each for each in over if not _is_told_by_another(each, history)]
    return tuple(Recent(at=timestamp(each.started_ms), text=_sentence(each), link="/history/") for each in told[:MOST])


def _is_told_by_another(entry: HistoryEntry, history: Sequence[HistoryEntry]) -> bool:
    """Also by one that is not told any more: a part of it outlives it, and is nothing new."""
    if entry.kind is HistoryKind.ELECTION:
        return not entry.previous  # the first one of a group, or the end of a time without master, which is told itself
    at_once = [each for each in history if each.kind in _WHOLE and each is not entry and _at_once(entry, each)]
    elections = [each for each in at_once if each.kind is HistoryKind.ELECTION and each.previous]
    match entry.kind:
        case HistoryKind.NO_MASTER:
            return bool(elections)
        case HistoryKind.REPLICA_DOWN:
            return any(each.previous == entry.subject for each in elections)
        case HistoryKind.OUT_OF_SYNC:
            down = [each.subject for each in at_once if each.kind is HistoryKind.REPLICA_DOWN]
            # a new master begins with a set of its own, which the others join
            short = entry.duration_ms is not None and entry.duration_ms <= _SAME_MS
            return entry.subject in [*down, *(each.previous for each in elections)] or (short and bool(elections))
    return False


def _at_once(one: HistoryEntry, other: HistoryEntry) -> bool:
    same_group = (one.cluster, one.group) == (other.cluster, other.group)
    return same_group and abs(one.started_ms - other.started_ms) <= _SAME_MS


def _bound(entry: HistoryEntry) -> str:
    """What a length says of which a beginning or an end was not seen: it began, or ended, earlier than it was."""
    if entry.start_unwatched and entry.end_unwatched:
        return "about"
    return "at most" if entry.end_unwatched else "at least"


def _sentence(entry: HistoryEntry) -> str:
    cause = f": {entry.cause}" if entry.cause else ""
    if entry.kind is HistoryKind.LEADER:
        return f"{entry.text}{cause}"
    lasted = length(entry.duration_ms or 0)
    if entry.end_unwatched or entry.start_unwatched:
        lasted = f"{_bound(entry)} {lasted}"
    if entry.kind is HistoryKind.ELECTION:
        known = (
            f" for {lasted}" if entry.duration_ms else ""
        )  # of one that nobody saw serving, not even a bound is known
        return f"{entry.group} lost its master{known}{cause}; {entry.elected} is the master since"
    return f"{entry.text} for {lasted}{cause}"
