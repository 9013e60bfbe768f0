"""Periodic work at common moments, so that a process wakes up once for all of it and not for each.

An idle process costs little more than its wake-ups. Processes of one machine have the moments in common, too: what they say to
one another then arrives while the others are awake anyway.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

CALM_MS: Final = 250
"""The longest period of work that could be done less often while nothing is under way: what one says regularly comes as often."""


def next_beat_s(now_s: float, period_ms: int) -> float:
    """The first moment after now that all work of this period, or of a divisor or multiple, has in common (pure)."""
    period_s = period_ms / 1000
    return (math.floor(now_s / period_s + 1e-6) + 1) * period_s


def on_next_beat(period_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
    """Call once, at the next common moment, which is at most `period_ms` away."""
    loop = asyncio.get_running_loop()
    return loop.call_at(next_beat_s(loop.time(), period_ms), call)
