"""Periodic work at common moments, so that a process wakes up once for all of it and not for each.

An idle process costs little more than its wake-ups. Processes of one machine have the moments in common, too: what they say to
one another then arrives while the others are awake anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
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


def last_beat_s(now_s: float, within_ms: int) -> float:
    """The last moment within so long at which calm work is done anyway; where there is none, `next_beat_s` (pure)."""
    within_s, calm_s = within_ms / 1000, CALM_MS / 1000
    at_s = math.floor((now_s + within_s) / calm_s + 1e-6) * calm_s
    return at_s if at_s > now_s + 1e-6 else next_beat_s(now_s, within_ms)


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


async def until_last_beat(within_s: float, event: asyncio.Event | None = None) -> None:
    """Wait, for the event if there is one, at most so long, and as late as that needs no wake-up of its own."""
    loop = asyncio.get_running_loop()
    within_ms = max(1, int(within_s * 1000))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(last_beat_s(loop.time(), within_ms)):
            await (event or asyncio.Event()).wait()
