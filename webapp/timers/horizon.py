"""The horizon of timers as pages and REST show it: how many wait, and until when, over broker groups and topics (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remoting.facts.snapshot import Group, Timers
from remoting.facts.timers import HORIZON_MINUTES, MINUTE_MS, TopicTimers, columns

OTHER_TOPICS: Final = "(other topics)"

_DAY: Final = 1440
_BEGINS: Final = (0, *HORIZON_MINUTES)


def _in_words(minutes: int) -> str:
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 2 * _DAY:
        return f"{minutes // 60} h"
    return f"{minutes // _DAY} d"


def _label(number: int) -> str:
    if number == 0:
        return "this minute"
    begin = _BEGINS[number]
    return f"from {_in_words(begin)}" if number == len(HORIZON_MINUTES) else f"to {_in_words(HORIZON_MINUTES[number])}"


LABELS: Final = tuple(map(_label, range(len(_BEGINS))))


@dataclass(frozen=True, slots=True)
class HorizonColumn:
    """How many are due in `[from_ms, to_ms)`; `to_ms` is None for the last column, and both are before there is any."""

    label: str
    from_ms: int | None
    to_ms: int | None
    count: int


@dataclass(frozen=True, slots=True)
class OfTopic:
    """What waits for one topic, in all broker groups that were looked at."""

    name: str
    waiting: int
    overdue: int
    next_hour: int


@dataclass(frozen=True, slots=True)
class Horizon:
    """Of the broker groups whose masters tell. `oldest_late_ms`: how late the oldest of them is; None without a word of any."""

    waiting: int
    overdue: int
    oldest_late_ms: int | None
    uncounted: int
    columns: Sequence[HorizonColumn]
    topics: Sequence[OfTopic]

    @property
    def most(self) -> int:
        """The largest column."""
        return max((each.count for each in self.columns), default=0)


def horizon(groups: Iterable[Group], topic: str = "") -> Horizon:
    """The sums over broker groups, of one topic or of all."""
    told = [each.timers for each in groups if each.timers is not None]
    rows = [row for each in told for row in each.topics if topic in ("", row.topic) and row.ahead]
    since_ms = max((row.since_ms for row in rows), default=0)
    return Horizon(
        waiting=sum(row.waiting for row in rows),
        overdue=sum(row.overdue for row in rows),
        oldest_late_ms=max((each.overdue_ms or 0 for each in told), default=None),
        uncounted=sum(each.uncounted or 0 for each in told),
        columns=_columns(rows, since_ms),
        topics=_of_topics(rows),
    )


def _columns(rows: Sequence[TopicTimers], since_ms: int) -> list[HorizonColumn]:
    counts = columns([row.ahead for row in rows if len(row.ahead) == len(_BEGINS)])
    ends = (*HORIZON_MINUTES, None)
    return [
        HorizonColumn(
            label,
            since_ms + begin * MINUTE_MS if since_ms else None,
            since_ms + end * MINUTE_MS if since_ms and end is not None else None,
            count,
        )
        for label, begin, end, count in zip(LABELS, _BEGINS, ends, counts, strict=True)
    ]


def _of_topics(rows: Sequence[TopicTimers]) -> list[OfTopic]:
    by_name: dict[str, list[TopicTimers]] = {}
    for row in rows:
        by_name.setdefault(row.topic, []).append(row)
    hour = HORIZON_MINUTES.index(60) + 1
    return [
        OfTopic(
            name or OTHER_TOPICS,
            sum(each.waiting for each in of_name),
            sum(each.overdue for each in of_name),
            sum(sum(each.ahead[:hour]) for each in of_name),
        )
        for name, of_name in sorted(by_name.items())
    ]


def waiting_by_topic(groups: Iterable[Group]) -> Mapping[str, int]:
    """How many wait for each topic."""
    found: dict[str, int] = {}
    for group in groups:
        for each in group.timers.topics if group.timers is not None else ():
            found[each.topic] = found.get(each.topic, 0) + each.waiting
    return found


@dataclass(frozen=True, slots=True)
class Lateness:
    """How many were delivered not later than `bound_ms`, but later than the bound before; None: later than all."""

    bound_ms: int | None
    count: int
    percent: float


def lateness(groups: Iterable[Group]) -> list[Lateness]:
    """Of all that was delivered since the masters started; empty when nothing was."""
    told: list[Timers] = [each.timers for each in groups if each.timers is not None and each.timers.late_counts]
    bounds = max((each.late_bounds_ms for each in told), key=len, default=())
    counts = [
        sum(column)
        for column in zip(*(each.late_counts for each in told if each.late_bounds_ms == bounds), strict=True)
    ]
    total = sum(counts)
    if not total:
        return []
    return [
        Lateness(bound, count, 100 * count / total)
        for bound, count in zip((*bounds, None), counts, strict=True)
        if count
    ]
