"""The time by which timers are kept (pure).

A timer is due by the wall clock, as its sender asked; but somebody may set that clock, and what is delivered early cannot be
taken back. So the wall clock counts as far as the steady one agrees: the time is no later than the wall clock's when this process
last believed it, plus the steady time since, plus a little that time synchronization may correct at once. What is promised:

- A wall clock that is set forward makes nothing early while that lasts less than `PATIENCE_MS`; then it is believed, since it was
  wrong before, or the machine slept.
- One that is set back makes timers late by that step, and no more: the time goes on from there.
- What one master announced as due by its clock, the next one delivers, though its own clock is behind.
- Relative delays are counted from this clock when their message comes, not from the wall's.
"""

from __future__ import annotations

from typing import Final

SLACK_MS: Final = 2000
PATIENCE_MS: Final = 60_000


class TimerClock:
    """Asked at any times; steady ones are of any origin."""

    __slots__ = ("_ahead_ms", "_doubted_ms", "_doubted_since_ms")

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self._ahead_ms = wall_ms - steady_ms  # of the wall clock that is believed
        self._doubted_ms = 0  # the same of one that is not
        self._doubted_since_ms: int | None = None

    def now_ms(self, wall_ms: int, steady_ms: int) -> int:
        """What time it is when the clocks say so."""
        ahead_ms = wall_ms - steady_ms
        if ahead_ms <= self._ahead_ms + SLACK_MS:
            self._doubted_since_ms = None
            return wall_ms
        if self._doubted_since_ms is None or ahead_ms > self._doubted_ms + SLACK_MS:  # it was set forward once more
            self._doubted_ms, self._doubted_since_ms = ahead_ms, steady_ms
        elif steady_ms - self._doubted_since_ms >= PATIENCE_MS:
            self._ahead_ms = ahead_ms
            self._doubted_since_ms = None
            return wall_ms
        return self._ahead_ms + SLACK_MS + steady_ms
