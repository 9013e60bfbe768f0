"""Timers as their broker tells of them: how many wait and until when, single ones, and what became of a recall (pure)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MINUTE_MS: Final = 60_000
# Where the columns of the horizon end, in minutes from the beginning of the present one; behind the last there is one more.
HORIZON_MINUTES: Final = (1, 5, 15, 30, 60, 180, 720, 1440, 2880, 7 * 1440, 30 * 1440, 90 * 1440)


def column_of(ahead_minutes: int) -> int:
    """The column of the horizon for what is due in that minute, the present one being 0."""
    return bisect_right(HORIZON_MINUTES, ahead_minutes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTimers:
    """The timers for one topic: how many wait, how many of them since a minute or longer, and how many are due in each column of
    the horizon (`HORIZON_MINUTES`) from the minute `since_ms` on. `topic` is "" for those that are counted together."""

    topic: str
    waiting: int
    overdue: int = 0
    since_ms: int = 0
    ahead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsideTimer:
    """A timer that cannot be read or stored now, by the queue offset of its record, and why; "" when that is not known yet."""

    offset: int
    reason: str = ""


class TimerStanding(StrEnum):
    """What a record of the timer topic is now. WAITING: its message waits by it. OVER: it was delivered, dropped, or appended
    again. RECALLED: its message is not delivered. MARKER: it takes another one back."""

    WAITING = "waiting"
    OVER = "over"
    RECALLED = "recalled"
    ASIDE = "aside"
    MARKER = "marker"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerItem:
    """A record of the timer topic. `place` is the queue offset of its message's first record, `offset` its own. `leg_ms`: when it
    is appended again, which is before `due_ms`; `rolls`: how often it was. `recalled_by` is what a marker says. `is_in_tier`: the
    record is in the object store, and no longer in the log."""

    offset: int
    place: int
    standing: TimerStanding
    topic: str
    queue_id: int
    unique_key: str
    due_ms: int
    stored_ms: int
    born_ms: int
    size: int
    keys: str = ""
    tag: str = ""
    leg_ms: int | None = None
    rolls: int = 0
    recalled_by: str | None = None
    is_in_tier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerPage:
    """Timers that were asked for, in the order in which the broker comes to them. `next` goes on behind them, None when that was
    all; `looked` entries were looked at, and `unread` of the newest were not, as they are still being filed. Of those in the tier
    `unread_in_tier`, or fewer, may be among them, and could not be looked at: `problem` says why."""

    items: tuple[TimerItem, ...]
    next: str | None = None
    looked: int = 0
    unread: int = 0
    unread_in_tier: int = 0
    problem: str = ""


class RecallOutcome(StrEnum):
    """What became of the recall of one timer. UNKNOWN: it is written, and nobody knows whether that stays."""

    RECALLED = "recalled"
    RECALLED_BEFORE = "recalled-before"
    DELIVERED = "delivered"
    MISSING = "missing"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """A timer that somebody recalls, as a `TimerItem` names it."""

    topic: str
    unique_key: str
    place: int
    due_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequests:
    timers: tuple[RecallRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """What became of one, by its place."""

    place: int
    outcome: RecallOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalls:
    timers: tuple[Recall, ...]


def columns(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sums of several rows of columns."""
    return tuple(map(sum, zip(*counts, strict=True))) if counts else (0,) * (len(HORIZON_MINUTES) + 1)
