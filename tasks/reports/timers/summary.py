"""What the report says of itself: what it found, what that was measured from, and what it cannot see (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

TOPICS_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Coverage:
    """Where the report looked: deliveries that were stored from `start_ms` until before `end_ms`, in so many queues of these
    topics.

    `trimmed_queues`: retention has removed messages of theirs that may have been in the range. `whole_from_ms`: from when on all
    messages of a broker group are there. `silent_groups` had no master, for as long as that was waited for.
    """

    start_ms: int
    end_ms: int
    topics: Sequence[str]
    queues: int = 0
    trimmed_queues: int = 0
    whole_from_ms: Mapping[str, int] = field(default_factory=dict)
    silent_groups: Sequence[str] = ()
    known_topics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of it. `expected` of all messages and records were there when the report began, `read` were read."""

    delivered: int = 0
    early: int = 0
    duplicates: int = 0
    overdue: int = 0
    gone: int = 0
    pending: int = 0
    p99_ms: int | None = None
    max_ms: int | None = None
    expected: int = 0
    read: int = 0
    timer_records: int = 0
    rows: int = 0
    rows_kept: int = 0


def summary(coverage: Coverage, counted: Counted) -> list[str]:
    """The sentences for a person, the most important first."""
    if not coverage.topics:
        return ["There are no topics but the system's own, so there was nothing to measure.", *_silent(coverage)]
    return [
        _delivered(counted),
        *_broken(counted),
        *_waiting(counted),
        f"It was measured from the messages that were stored {_times(coverage)}, in {_count(coverage.queues, 'queue')} of "
        f"{_topics(coverage.topics)}, and from all {counted.timer_records:,} records of the timer topic that were kept then. A "
        "timer is late by the time from when it was due until the master, by its own clock, stored its message for consumers; "
        "their own waiting is not in it.",
        *_blind(coverage, counted),
        *_silent(coverage),
    ]


def _delivered(counted: Counted) -> str:
    if not counted.delivered:
        return "No timers were delivered in this range."
    told = f"{_count(counted.delivered, 'timer')} delivered"
    if counted.max_ms is None:
        return told + "."
    return f"{told}, 99 of 100 at most {_late(counted.p99_ms)} late and the latest {_late(counted.max_ms)}."


def _broken(counted: Counted) -> list[str]:
    """What must not be, or only after a switch of the master."""
    sentences = []
    if counted.early:
        sentences.append(
            f"{_count(counted.early, 'timer')} came early, by the master's clock: that was set back, or it is a fault of Logboom."
        )
    if counted.duplicates:
        sentences.append(f"{_count(counted.duplicates, 'delivery', 'deliveries')} repeated an earlier one.")
    return sentences


def _waiting(counted: Counted) -> list[str]:
    sentences = []
    if counted.overdue:
        sentences.append(
            f"{_count(counted.overdue, 'timer')} came due in the range and had not been delivered at its end: late, or set aside."
        )
    if counted.gone:
        sentences.append(
            f"{_count(counted.gone, 'timer')} came due for no topic that there is, and were dropped or set aside."
        )
    if counted.pending:
        sentences.append(f"{_count(counted.pending, 'timer')} more waited for a later time.")
    return sentences


def _blind(coverage: Coverage, counted: Counted) -> list[str]:
    sentences = ["What came due before the range is seen if it was delivered in it, and not if it was not."]
    if coverage.trimmed_queues:
        from_ms = max(coverage.whole_from_ms.values(), default=coverage.end_ms)
        sentences.append(
            f"Retention had removed the oldest messages of {coverage.trimmed_queues:,} of {_count(coverage.queues, 'queue')}: "
            f"what was delivered before {_moment(from_ms)} UTC is counted as far as it is left, and nothing that came due before "
            "is called overdue."
        )
    if counted.read < counted.expected:
        sentences.append(
            f"{counted.expected - counted.read:,} messages were removed by retention while the report ran; timers that were "
            "delivered with them may be among the overdue ones."
        )
    if counted.rows_kept < counted.rows:
        sentences.append(
            f"The page keeps the newest {counted.rows_kept:,} of {counted.rows:,} hours; the Parquet file has them all."
        )
    return sentences


def _silent(coverage: Coverage) -> list[str]:
    if not coverage.silent_groups:
        return []
    groups = "broker group" if len(coverage.silent_groups) == 1 else "broker groups"
    return [f"The {groups} {', '.join(coverage.silent_groups)} had no master: what only it has is missing."]


def _times(coverage: Coverage) -> str:
    return f"from {_moment(coverage.start_ms)} until {_moment(coverage.end_ms)} UTC"


def _topics(topics: Sequence[str]) -> str:
    named = ", ".join(topics[:TOPICS_NAMED])
    others = len(topics) - TOPICS_NAMED
    return f"{_count(len(topics), 'topic')} ({named}" + (f" and {others:,} more)" if others > 0 else ")")


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _late(late_ms: int | None) -> str:
    if late_ms is None:
        return "an unknown time"
    return f"{late_ms:,} ms" if late_ms < 10_000 else f"{late_ms / 1000:,.1f} s"


def _moment(at_ms: int) -> str:
    """To the second, or finer where that is not all."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at_ms % 1000:03}" if at_ms % 1000 else "")
