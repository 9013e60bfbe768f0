"""Periodic work of a process at common moments, so that it wakes up once for all of it and not for each.

An idle process costs little more than its wake-ups. The moments of processes on one machine are apart from each other.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from typing import Final

_APART_MS: Final = 7  # processes that are started together have successive ids


def next_beat_s(now_s: float, period_ms: int, process: int) -> float:
    """The first moment after now that all work of this period, or of a divisor or multiple, has in common (pure)."""
    offset_s, period_s = process * _APART_MS / 1000, period_ms / 1000
    return (math.floor((now_s - offset_s) / period_s + 1e-6) + 1) * period_s + offset_s


def on_next_beat(period_ms: int, call: Callable[[], None]) -> asyncio.TimerHandle:
    """Call once, at the next common moment, which is at most `period_ms` away."""
    loop = asyncio.get_running_loop()
    return loop.call_at(next_beat_s(loop.time(), period_ms, os.getpid()), call)
