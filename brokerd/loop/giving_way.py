"""Who was answered gets the processor, where he waits for the one that the event loop has.

Linux wakes who is on this machine, and waits for an answer, on the processor of the thread that sends it: it expects that one to
wait soon. An event loop that has more to do goes on instead, and he stands there until it waits for the next event. So behind an
answer the loop stands aside for a moment. Whoever else is ready on that processor comes first then, too, for as long as the
system thinks fit: so the loop does so for a fifth of the time at most.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

_LEAST_S: Final = 0.0003  # between two times
_REST: Final = 4  # times as long as the last one


class GivingWay:
    """Of one thread. `stand_aside` lets others have its processor, and returns when it has it again."""

    def __init__(self, clock_s: Callable[[], float], stand_aside: Callable[[], None] = os.sched_yield) -> None:
        self._clock_s = clock_s
        self._stand_aside = stand_aside
        self._not_before_s = 0.0

    def __call__(self) -> None:
        """Somebody was answered just now."""
        now_s = self._clock_s()
        if now_s < self._not_before_s:
            return
        self._stand_aside()
        back_s = self._clock_s()
        self._not_before_s = back_s + max(_LEAST_S, _REST * (back_s - now_s))
