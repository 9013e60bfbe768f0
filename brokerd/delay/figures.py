"""What people see of the delayed messages: the state of each level, and totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class LevelState(NamedTuple):
    """A level. `late_ms` is how late its last message was delivered, -1 when none was since the start."""

    level: int
    delay_ms: int
    waiting: int
    late_ms: int


class ScheduleCounters:
    """Running totals since the start."""

    __slots__ = ("delivered", "failures", "lost")

    def __init__(self) -> None:
        self.delivered = 0
        self.failures = 0  # attempts; they are repeated
        self.lost = 0  # their topic or group was removed while they waited, or they are gone from the log

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


def document(levels: Sequence[LevelState], counters: ScheduleCounters) -> dict[str, Any]:
    """The part of the broker's state that shows it."""
    return {
        "levels": [
            {"level": each.level, "delayMs": each.delay_ms, "waiting": each.waiting, "lateMs": each.late_ms}
            for each in levels
        ],
        **counters.as_dict(),
    }
