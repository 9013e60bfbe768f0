"""What the report says of itself: what it covered, what was gone before it came, and what its page leaves out (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

TOPICS_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Coverage:
    """Where the report looked: store times from `start_ms` until before `end_ms`, in so many queues of these topics.

    `trimmed_queues` are those whose oldest kept message is inside the range, or after it: what retention removed before that
    may have been in the range, and nobody knows any more. `silent_groups` had no master, for as long as that was waited for.
    """

    start_ms: int
    end_ms: int
    topics: Sequence[str]
    queues: int
    trimmed_queues: int
    silent_groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of it: `messages` of the `expected` ones, in `rows` of which the page keeps `rows_kept`; `keys` of at most
    `keys_wanted`."""

    expected: int
    messages: int
    rows: int = 0
    rows_kept: int = 0
    keys: int = 0
    keys_wanted: int = 0


def summary(coverage: Coverage, counted: Counted) -> list[str]:
    """The sentences for a person, the most important first."""
    if coverage.topics:
        sentences = _where(coverage, counted)
    else:
        sentences = ["There are no topics but the system's own, so there was nothing to count."]
    if coverage.silent_groups:
        groups = "broker group" if len(coverage.silent_groups) == 1 else "broker groups"
        sentences.append(
            f"The {groups} {', '.join(coverage.silent_groups)} had no master: topics and queues that only it has are missing."
        )
    if coverage.trimmed_queues:
        sentences.append(
            f"Retention had removed the oldest messages of {coverage.trimmed_queues:,} of {_count(coverage.queues, 'queue')} "
            "before; those of them that were stored in this range are not counted."
        )
    if counted.messages < counted.expected:
        sentences.append(
            f"{counted.expected - counted.messages:,} more were removed by retention while the report ran."
        )
    if counted.rows_kept < counted.rows:
        sentences.append(
            f"The page keeps the newest {counted.rows_kept:,} of {counted.rows:,} rows; the Parquet file has them all."
        )
    if counted.keys and counted.keys == counted.keys_wanted:
        sentences.append(f"Only the {counted.keys:,} most frequent keys are listed, as it was asked for.")
    return sentences


def _where(coverage: Coverage, counted: Counted) -> list[str]:
    times = f"from {_moment(coverage.start_ms)} until {_moment(coverage.end_ms)} UTC"
    places = f"in {_count(coverage.queues, 'queue')} of {_topics(coverage.topics)}"
    if not counted.expected:
        return ["There are no messages in this range.", f"It goes {times}, {places}."]
    return [f"{_count(counted.messages, 'message')} counted.", f"They were stored {times}, {places}."]


def _topics(topics: Sequence[str]) -> str:
    named = ", ".join(topics[:TOPICS_NAMED])
    others = len(topics) - TOPICS_NAMED
    return f"{_count(len(topics), 'topic')}: {named}" + (f" and {others:,} more" if others > 0 else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _moment(at_ms: int) -> str:
    """To the second, or finer where that is not all."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}" + (f".{at_ms % 1000:03}" if at_ms % 1000 else "")
