"""An event loop's clock and queue moved by hand: callbacks run when a test says so, in order, at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Turn:
    """A scheduled callback."""

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._callback = callback
        self._args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self) -> None:
        if not self.cancelled:
            self._callback(*self._args)


class Turns:
    """`brokerd.loop.scheduler.Scheduler`. `wall_ms` follows the same clock, until somebody sets it."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = start_ms
        self._now_s = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Turn]] = []

    def time(self) -> float:
        return self._now_s

    def wall_ms(self) -> int:
        return self._start_ms + round(self._now_s * 1000)

    def set_wall_clock(self, by_ms: int) -> None:
        """Somebody sets the wall clock; the loop's own does not care."""
        self._start_ms += by_ms

    def monotonic_ms(self) -> int:
        return round(self._now_s * 1000)

    def pass_s(self, seconds: float) -> None:
        """The callback that runs now takes so long."""
        self._now_s += seconds

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Turn:
        return self.call_later(0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turn:
        assert delay >= 0
        turn = Turn(callback, args)
        self._count += 1
        heapq.heappush(self._due, (self._now_s + delay, self._count, turn))
        return turn

    @property
    def waiting(self) -> int:
        """How many timers are set."""
        return sum(not turn.cancelled for _, _, turn in self._due)

    @property
    def is_due(self) -> bool:
        """Whether something is to be run now."""
        return bool(self._due) and self._due[0][0] <= self._now_s

    def run_one(self) -> None:
        """What falls due next, if that is now."""
        if self.is_due:
            heapq.heappop(self._due)[2].run()

    def run(self, ms: float = 0) -> None:
        """Move the clock on and run everything that falls due on the way."""
        end_s = self._now_s + ms / 1000
        steps = 0
        while self._due and self._due[0][0] <= end_s + 1e-9:
            at_s, _, turn = heapq.heappop(self._due)
            self._now_s = max(self._now_s, at_s)
            turn.run()
            steps += 1
            assert steps < 100_000, "callbacks schedule each other without end"
        self._now_s = max(self._now_s, end_s)
