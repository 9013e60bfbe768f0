"""The time by which timers are kept (pure).

A timer is due by the wall clock, as its sender asked; but somebody may set that clock, or start a machine whose clock is wrong,
and what is delivered early cannot be taken back. So the wall clock counts as far as the steady one agrees: the time is no later
than the wall clock's when this process last believed it, plus the steady time since, plus a little that time synchronization may
correct at once. Who becomes the master believes its wall clock as far as witnesses agree: the log's last store time, and the
clocks of controllers on other machines. A wall clock that is further ahead is doubted:

- It is believed as soon as a controller on another machine says the same; after `PATIENCE_MS` when none of them says anything,
  or about the same, since it was wrong before, or the machine slept; and after `DISPUTE_MS` in which nobody set either right,
  when they say something else. Until then the time goes on from what was believed, or is what they say, if that is later.
- Where no other machine tells the time, who becomes the master believes its own clock.
- One that is set back makes timers late by that step, and no more. When it has stayed so for `PATIENCE_MS` it is believed.
- What one master announced as due by its clock, the next one delivers, though its own clock is behind.

While it is not settled what time it is, it may be one of two: `later_ms` is the later one, for delays (`rules.asked_ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

SLACK_MS: Final = 2000
PATIENCE_MS: Final = 60_000
DISPUTE_MS: Final = 3_600_000  # as retention has it (`loop.believed_clock`)
AGREES_MS: Final = 60_000  # clocks of one cluster differ by less


class TimerClock:
    """Asked at any times; steady ones are of any origin."""

    __slots__ = ("_ahead_ms", "_behind_since_ms", "_doubted_ms", "_doubted_since_ms")

    def __init__(self, wall_ms: int, steady_ms: int) -> None:
        self._ahead_ms = wall_ms - steady_ms  # of the wall clock that is believed
        self._doubted_ms = 0  # the same of one that is not
        self._doubted_since_ms: int | None = None
        self._behind_since_ms: int | None = None  # when the wall clock was set back

    @property
    def is_doubting(self) -> bool:
        """Whether the wall clock was ahead of what is believed when it was looked at last."""
        return self._doubted_since_ms is not None

    def begin(self, wall_ms: int, steady_ms: int, others_ms: Sequence[int] | None, stored_ms: int) -> None:
        """This broker becomes the master. `others_ms` is what clocks of other machines say now, None where none does; `stored_ms`
        the store time of the log's last message, 0 without one."""
        witnessed_ms = max((stored_ms, *others_ms)) if others_ms is not None else 0
        if 0 < witnessed_ms < min(wall_ms, self._ahead_ms + steady_ms) - AGREES_MS:
            self._ahead_ms = witnessed_ms - steady_ms
            self._doubted_since_ms = self._behind_since_ms = None

    def now_ms(self, wall_ms: int, steady_ms: int, others_ms: Callable[[], Sequence[int] | None] = lambda: None) -> int:
        """What time it is when the clocks say so; `others_ms` as for `begin`, asked when that is in doubt."""
        ahead_ms = wall_ms - steady_ms
        if ahead_ms <= self._ahead_ms + SLACK_MS:
            self._doubted_since_ms = None
            self._follow_back(ahead_ms, steady_ms)
            return wall_ms
        self._behind_since_ms = None
        if self._doubted_since_ms is None or ahead_ms > self._doubted_ms + SLACK_MS:  # it was set forward once more
            self._doubted_ms, self._doubted_since_ms = ahead_ms, steady_ms
        said_ms = max(others_ms() or (), default=None)
        is_agreed = said_ms is not None and said_ms >= wall_ms - SLACK_MS
        is_disputed = said_ms is not None and said_ms < wall_ms - AGREES_MS
        if is_agreed or steady_ms - self._doubted_since_ms >= (DISPUTE_MS if is_disputed else PATIENCE_MS):
            self._ahead_ms = ahead_ms
            self._doubted_since_ms = None
            return wall_ms
        if said_ms is not None:
            self._ahead_ms = max(self._ahead_ms, said_ms - steady_ms - SLACK_MS)
        return self._ahead_ms + SLACK_MS + steady_ms

    def later_ms(self, wall_ms: int, steady_ms: int) -> int:
        """What time it may be instead, when that is later by more than a little: by a wall clock that is doubted, or by what was
        believed before one was set back. Else, and mostly, the wall clock's time."""
        believed_ms = self._ahead_ms + steady_ms
        return max(wall_ms, believed_ms) if abs(wall_ms - believed_ms) > SLACK_MS else wall_ms

    def _follow_back(self, ahead_ms: int, steady_ms: int) -> None:
        """Believe a wall clock that was set back when it has stayed so."""
        if ahead_ms >= self._ahead_ms - SLACK_MS:
            self._behind_since_ms = None
        elif self._behind_since_ms is None:
            self._behind_since_ms = steady_ms
        elif steady_ms - self._behind_since_ms >= PATIENCE_MS:
            self._ahead_ms = ahead_ms
            self._behind_since_ms = None
