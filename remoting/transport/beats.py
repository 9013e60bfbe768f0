"""Periodic work at common moments, so that a process wakes up once for all of it and not for each.

An idle process costs little more than its wake-ups. Processes of one machine have the moments in common, too: what they say to
one another then arrives while the others are awake anyway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

CALM_MS: Final = 250
"""The longest period of work that could be done less often while nothing is under way: what one says regularly comes as often."""


def next_beat_s(now_s: float, period_ms: int) -> float:
    """The first moment after now that all work of this period, or of a divisor or multiple, has in common (pure)."""
    period_s = period_ms / 1000
    return (math.floor(now_s / period_s + 1e-6) + 1) * period_s


@dataclass(frozen=True, slots=True)
class Beat:
    """A call that comes at a common moment, of the loop's clock."""

    at_s: float
    handle: asyncio.Handle

    def cancel(self) -> None:
        """It does not come."""
        self.handle.cancel()


def on_next_beat(period_ms: int, call: Callable[[], None]) -> Beat:
    """Call once, at the next common moment, which is at most `period_ms` away."""
    loop = asyncio.get_running_loop()
    at_s = next_beat_s(loop.time(), period_ms)
    return Beat(at_s, loop.call_at(at_s, call))
