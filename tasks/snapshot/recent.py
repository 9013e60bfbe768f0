"""What the verdict tells of the history: what is over, for `RECENT_MS` after its end (pure)

One thing is told once: of a master that was killed, the election, and not also that the replica was away and out of the set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from remoting.facts.history import HistoryEntry
from remoting.facts.snapshot import Recent
from remoting.facts.words import HistoryKind
from tasks.snapshot.moments import length, timestamp

RECENT_MS: Final = 10 * 60 * 1000
MOST: Final = 4
_SAME_MS: Final = 15_000  # what began so close to another thing about the same group or replica is a part of it
_OF_A_REPLICA: Final = frozenset({HistoryKind.REPLICA_DOWN, HistoryKind.OUT_OF_SYNC})


def recent(history: Sequence[HistoryEntry], now_ms: int) -> tuple[Recent, ...]:
    """The newest first."""
    over = [each for each in history if each.ended_ms is not None and abs(now_ms - each.ended_ms) <= RECENT_MS]
    return tuple(
        Recent(at=timestamp(each.started_ms), text=_sentence(each), link="/history/")
        for each in _without_parts(over)[:MOST]
    )


def _without_parts(over: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    elections = [each for each in over if each.kind is HistoryKind.ELECTION]
    down = [each for each in over if each.kind is HistoryKind.REPLICA_DOWN]
    return list(_told_alone(over, elections, down))


def _told_alone(
    over: Sequence[HistoryEntry], elections: Sequence[HistoryEntry], down: Sequence[HistoryEntry]
) -> Iterator[HistoryEntry]:
    for each in over:
        if each.kind is HistoryKind.ELECTION and not each.previous:
            continue  # the first one of a group, or the end of a time without a master, which is told itself
        if each.kind in _OF_A_REPLICA and any(
            other.previous == each.subject and _together(each, other) for other in elections
        ):
            continue
        if each.kind is HistoryKind.OUT_OF_SYNC and any(
            other.subject == each.subject and _together(each, other) for other in down
        ):
            continue
        if each.kind is HistoryKind.NO_MASTER and any(other.previous and _together(each, other) for other in elections):
            continue
        yield each


def _together(one: HistoryEntry, other: HistoryEntry) -> bool:
    same_group = (one.cluster, one.group) == (other.cluster, other.group)
    return same_group and abs(one.started_ms - other.started_ms) <= _SAME_MS


def _sentence(entry: HistoryEntry) -> str:
    cause = f": {entry.cause}" if entry.cause else ""
    if entry.kind is HistoryKind.LEADER:
        return f"{entry.text}{cause}"
    lasted = length(entry.duration_ms or 0)
    if entry.end_unwatched or entry.start_unwatched:
        lasted = f"about {lasted}"
    if entry.kind is HistoryKind.ELECTION:
        return f"{entry.group} lost its master for {lasted}{cause}; {entry.elected} is the master since"
    return f"{entry.text} for {lasted}{cause}"
