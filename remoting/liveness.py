"""How long a peer may be silent before it counts as dead, learned from how regularly it speaks (pure)

Used wherever one process watches another: controllers watch brokers, a master its replicas. Times are monotonic milliseconds.

A peer promises to say something every `interval_ms`. The detector keeps the gaps of the last half minute and takes silence for
death when a gap of that length has a probability below 10^-phi among them (phi-accrual: a normal tail over mean and deviation),
but never before the floor and always at the ceiling. Pauses are rarer and longer than a normal tail says; so the worst gap of
the last ten to twenty minutes counts beside it, twice over. On a calm machine the floor decides, on a harried one the limit rises
towards the ceiling, which is what bounds the time until a real death is noticed.

What the watching process slept through itself is no silence of others: `Awake` tells how much that was, and `discount_pause`
takes it off.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from remoting.facts.loop import LoopState

DEFAULT_PHI: Final = 8.0
_WINDOW: Final = 120  # gaps in mean and deviation
_LEAST_SAMPLES: Final = 8  # with fewer the ceiling holds
_WORST_SAMPLES: Final = 2400  # after so many the worst gap of the time before is forgotten
_WORST_FACTOR: Final = 2.0
_HIGHEST_PHI: Final = 99.0


def deviations(phi: float) -> float:
    """How many standard deviations above the mean a gap lies whose probability to be exceeded is 10^-phi."""
    return -NormalDist().inv_cdf(10.0**-phi)


def _tail(z: float) -> float:
    """The probability of more than `z` deviations above the mean."""
    return 0.5 * math.erfc(z / math.sqrt(2))


@dataclass(frozen=True, slots=True)
class Patience:
    """What is known beforehand about a peer: its promise, and the bounds of every limit."""

    interval_ms: int
    floor_ms: int
    ceiling_ms: int
    deviations: float = deviations(DEFAULT_PHI)


class Silence:
    """The gaps of one peer. `limit_ms` is how long it may be silent now."""

    def __init__(self, patience: Patience, now_ms: int) -> None:
        """The peer spoke for the first time just now."""
        self.heard_ms = now_ms
        self.limit_ms = patience.ceiling_ms
        self._patience = patience
        self._gaps: deque[int] = deque()
        self._sum = self._squares = 0
        self._sampled_ms = now_ms
        self._longest_ms = 0  # since the last sample
        self._samples = 0
        self._worst_ms = self._earlier_worst_ms = 0

    @property
    def patience(self) -> Patience:
        return self._patience

    @property
    def worst_ms(self) -> int:
        """The longest gap that is remembered."""
        return max(self._worst_ms, self._earlier_worst_ms)

    def heard(self, now_ms: int) -> None:
        """The peer said something, whatever it was. Cheap: it is called for every acknowledgement."""
        gap_ms = now_ms - self.heard_ms
        self.heard_ms = now_ms
        if gap_ms > self._longest_ms:
            if gap_ms > self._patience.ceiling_ms:  # it was dead: that says nothing about how it speaks while it lives
                self._sampled_ms = now_ms
                return
            self._longest_ms = gap_ms
        if now_ms - self._sampled_ms >= self._patience.interval_ms:
            self._sampled_ms = now_ms
            self._sample(self._longest_ms)
            self._longest_ms = 0

    def silent_ms(self, now_ms: int) -> int:
        return now_ms - self.heard_ms

    def is_dead(self, now_ms: int) -> bool:
        """Silent for longer than can be explained."""
        return now_ms - self.heard_ms > self.limit_ms

    def suspicion(self, now_ms: int) -> float:
        """Phi: the present silence would be exceeded by chance once in 10^phi gaps (for people; `limit_ms` decides)."""
        if not self._gaps:
            return 0.0
        mean, deviation = self._moments()
        tail = _tail((self.silent_ms(now_ms) - mean) / max(deviation, 1.0))
        return min(_HIGHEST_PHI, -math.log10(tail)) if tail > 0 else _HIGHEST_PHI

    def discount_pause(self, pause_ms: int, now_ms: int) -> None:
        """The watching process stood still for `pause_ms` until now."""
        self.heard_ms = min(now_ms, self.heard_ms + pause_ms)
        self._sampled_ms = min(now_ms, self._sampled_ms + pause_ms)

    def _sample(self, gap_ms: int) -> None:
        # At most one sample an interval, and none below it: a peer that talks all the time is not expected to go on with that.
        gap_ms = max(gap_ms, self._patience.interval_ms)
        self._gaps.append(gap_ms)
        self._sum += gap_ms
        self._squares += gap_ms * gap_ms
        if len(self._gaps) > _WINDOW:
            oldest_ms = self._gaps.popleft()
            self._sum -= oldest_ms
            self._squares -= oldest_ms * oldest_ms
        self._samples += 1
        if self._samples % _WORST_SAMPLES == 0:
            self._earlier_worst_ms, self._worst_ms = self._worst_ms, 0
        if gap_ms > self._worst_ms:
            self._worst_ms = gap_ms
        self.limit_ms = self._limit()

    def _limit(self) -> int:
        patience = self._patience
        if len(self._gaps) < _LEAST_SAMPLES:
            return patience.ceiling_ms
        mean, deviation = self._moments()
        limit = max(mean + patience.deviations * deviation, _WORST_FACTOR * self.worst_ms)
        return min(max(int(limit), patience.floor_ms), patience.ceiling_ms)

    def _moments(self) -> tuple[float, float]:
        count = len(self._gaps)
        mean = self._sum / count
        return mean, math.sqrt(max(0.0, self._squares / count - mean * mean))


class Awake:
    """Whether this process itself ran all the time: a tick that is late means that nobody could be heard meanwhile.

    A stopped process, one that got no processor, and a long turn of the event loop all look the same here, and to others.
    """

    def __init__(self, tolerated_ms: int) -> None:
        """Up to `tolerated_ms` of delay is not worth mentioning."""
        self._tolerated_ms = tolerated_ms
        self._ticked_ms: int | None = None
        self.pauses = 0
        self.longest_pause_ms = 0
        self.delay_ms = 0  # of the last tick
        self._worst_ms = self._earlier_worst_ms = 0
        self._since_ms = 0

    @property
    def worst_delay_ms(self) -> int:
        """The longest delay of a tick in the last one to two minutes."""
        return max(self._worst_ms, self._earlier_worst_ms)

    def tick(self, now_ms: int, interval_ms: int) -> int:
        """Called every `interval_ms`. How long this process stood still since the tick before; 0 when it did not."""
        before_ms, self._ticked_ms = self._ticked_ms, now_ms
        if before_ms is None:
            self._since_ms = now_ms
            return 0
        self.delay_ms = max(0, now_ms - before_ms - interval_ms)
        if now_ms - self._since_ms >= 60_000:
            self._since_ms = now_ms
            self._earlier_worst_ms, self._worst_ms = self._worst_ms, 0
        self._worst_ms = max(self._worst_ms, self.delay_ms)
        if self.delay_ms <= self._tolerated_ms:
            return 0
        self.pauses += 1
        self.longest_pause_ms = max(self.longest_pause_ms, self.delay_ms)
        return self.delay_ms

    def state(self) -> LoopState:
        return LoopState(
            delay_ms=self.delay_ms,
            worst_delay_ms=self.worst_delay_ms,
            pauses=self.pauses,
            longest_pause_ms=self.longest_pause_ms,
        )
