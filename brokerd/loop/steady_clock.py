"""Wall time that does not jump: it follows the machine's clock, but makes up for a step of that clock only slowly.

Times that are compared over minutes (when a hidden message comes back) are written in wall time, so that another broker can go on
with them; when somebody sets the clock, they must not all be due at once, or hours late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_TOLERATED_MS: Final = 50.0  # ordinary disagreement of two clocks: follow the wall clock
_SLEW: Final = 1 / 16  # of the time that passed


class SteadyClock:
    """Call it for the time in milliseconds; it never goes back."""

    def __init__(self, wall_ms: Callable[[], int], monotonic_s: Callable[[], float]) -> None:
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._now_ms = float(wall_ms())
        self._last_s = monotonic_s()

    def __call__(self) -> int:
        now_s = self._monotonic_s()
        passed_ms = (now_s - self._last_s) * 1000
        self._last_s = now_s
        expected_ms = self._now_ms + passed_ms
        error_ms = self._wall_ms() - expected_ms
        if abs(error_ms) > _TOLERATED_MS:
            limit_ms = passed_ms * _SLEW
            error_ms = min(max(error_ms, -limit_ms), limit_ms)
        self._now_ms = max(self._now_ms, expected_ms + error_ms)
        return int(self._now_ms)
