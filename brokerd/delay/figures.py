"""What people see of the delayed messages: the state of each level, and totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from remoting.facts.broker_state import LevelState, ScheduleState


class LevelFigures(NamedTuple):
    """A level. `late_ms` is how late its last message was delivered, -1 when none was since the start.

    `overdue_ms` is for how long its first waiting message could have been delivered already.
    """

    level: int
    delay_ms: int
    waiting: int
    late_ms: int
    overdue_ms: int = 0


class ScheduleCounters:
    """Running totals since the start."""

    __slots__ = ("delivered", "failures", "last_at_ms", "last_late_ms", "lost")

    def __init__(self) -> None:
        self.last_at_ms = 0  # when the last delivery was, of whichever level (steady time)
        self.last_late_ms = -1  # how late that was; -1 before the first
        self.delivered = 0
        self.failures = 0  # attempts; they are repeated
        self.lost = 0  # their topic or group was removed while they waited, or they are gone from the log

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("delivered", "failures", "lost")}


def schedule_state(levels: Sequence[LevelFigures], counters: ScheduleCounters, now_ms: int) -> ScheduleState:
    """The part of the broker's state that shows it."""
    was_delivering = counters.last_late_ms >= 0
    return ScheduleState(
        levels=tuple(
            LevelState(level=each.level, delay_ms=each.delay_ms, waiting=each.waiting, late_ms=each.late_ms)
            for each in levels
        ),
        last_late_ms=counters.last_late_ms,
        last_ago_ms=max(0, now_ms - counters.last_at_ms) if was_delivering else -1,
        overdue_ms=max((each.overdue_ms for each in levels), default=0),
        **counters.as_dict(),
    )
