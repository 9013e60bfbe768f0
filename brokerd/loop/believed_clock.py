"""Wall time as far as what cannot be undone may go by it: one clock that is wrong does not make anything old.

Witnesses are the machine's own clock, the clocks of others right now, and what earlier runs of this broker left behind: the store
time of the log's last message, and when its files were last written. A witness of the past says that it was at least that late,
and is itself not believed when it lies in the future of the own clock.

- While others say the time, the lower middle of all clocks counts: of two that differ the earlier one.
- A start begins where the last run ended. The time since then was a pause, or the clock is wrong: after an hour in which nobody
  set it right it is believed. Others that agree make it ten minutes: they may have been started with it, even on its machine.
- Without others a step of the own clock later on is made up slowly, as `SteadyClock` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

TRIAL_MS: Final = 3_600_000  # machines that ask for the time have it long before
AGREED_TRIAL_MS: Final = 600_000
AGREES_MS: Final = 600_000  # a pause between two runs that is too short to matter
_TOLERATED_MS: Final = 50.0  # ordinary disagreement of two clocks: follow the own one
_SLEW: Final = 1 / 16  # of the time that passed


class BelievedClock:
    """Call it for the time in milliseconds. It may go back when others say that it is earlier."""

    def __init__(
        self,
        wall_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        others_ms: Callable[[], Sequence[int]],
        left_behind_ms: Iterable[int],
    ) -> None:
        """`others_ms` gives what clocks of other machines say now; `left_behind_ms` are times of earlier runs of this broker."""
        self._wall_ms = wall_ms
        self._monotonic_s = monotonic_s
        self._others_ms = others_ms
        self._last_s = monotonic_s()
        own_ms = wall_ms()
        past_ms = max((each for each in left_behind_ms if each <= own_ms), default=own_ms)
        is_short = own_ms - past_ms <= AGREES_MS
        self._now_ms = float(own_ms if is_short else past_ms)
        self._trial_left_ms = None if is_short else float(TRIAL_MS)  # None: the own clock is not on trial

    def __call__(self) -> int:
        now_s = self._monotonic_s()
        passed_ms = (now_s - self._last_s) * 1000
        self._last_s = now_s
        expected_ms = self._now_ms + passed_ms
        others_ms = self._others_ms()
        clocks = sorted((self._wall_ms(), *others_ms))
        witnessed_ms = clocks[(len(clocks) - 1) // 2]
        if self._trial_left_ms is not None:
            weight = TRIAL_MS / AGREED_TRIAL_MS if others_ms else 1.0
            self._now_ms = self._try(self._trial_left_ms - passed_ms * weight, witnessed_ms, expected_ms)
        elif others_ms:
            self._now_ms = float(witnessed_ms)
        else:
            self._now_ms = max(self._now_ms, expected_ms + _correction(witnessed_ms - expected_ms, passed_ms))
        return int(self._now_ms)

    def _try(self, left_ms: float, witnessed_ms: int, expected_ms: float) -> float:
        if left_ms <= 0 or witnessed_ms - expected_ms <= AGREES_MS:
            self._trial_left_ms = None
            return float(witnessed_ms)
        self._trial_left_ms = left_ms
        return expected_ms


def _correction(error_ms: float, passed_ms: float) -> float:
    if abs(error_ms) <= _TOLERATED_MS:
        return error_ms
    limit_ms = passed_ms * _SLEW
    return min(max(error_ms, -limit_ms), limit_ms)
