"""When the messages of one delay level may be delivered, whatever the clocks of the group's machines say (pure).

An entry of the schedule topic says by the wall clock of the broker that stored the message when it is due. Somebody may set that
clock, another broker's is off, and store times never go back, so after a clock was set back they stand still for a while. Taken
at its word, an entry may then be due too early, or hours late. So a broker that sees messages arrive remembers when, by its own
steady clock: a message is due its delay after it arrived here. Only where nothing was seen (it was there when this process began)
its entry is believed, and for no longer than the delay from then on.

A replica that catches up sees messages long after they were stored. It knows that by their age, compared with the smallest age it
has seen: those are due earlier, by as much as both their age and its wall clock allow.

All times are milliseconds; steady ones are of any origin. What is remembered is bounded: when there are too many arrivals,
neighbours are put together, and the entries decide in the span between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_ARRIVALS: Final = 1024
# A message that is this much older than others were when they came has waited for a replica to catch up.
CATCHING_UP_MS: Final = 10_000
_FOR_EVER_MS: Final = 1 << 42


class _Arrival(NamedTuple):
    """Messages below `end`, from the previous arrival's on, came between `first_ms` and `last_ms` (steady). Those that this
    broker stored itself cannot have waited before."""

    end: int
    first_ms: int
    last_ms: int
    stored_here: bool


class WaitingLevel:
    """The messages of one level that are not delivered: queue offsets `[position, end)`."""

    __slots__ = ("_arrivals", "_known_from", "_since_ms", "_youngest_ms", "delay_ms", "end", "position")

    def __init__(self, delay_ms: int, end: int, steady_ms: int) -> None:
        """`end`: the queue's end when this process began to look, at `steady_ms`."""
        self.delay_ms = delay_ms
        self.position = 0
        self.end = end
        self._known_from = end
        self._since_ms = steady_ms
        self._arrivals: list[_Arrival] = []
        self._youngest_ms: int | None = None

    @property
    def count(self) -> int:
        """How many messages wait."""
        return max(0, self.end - self.position)

    def loaded_at_start(self, end: int) -> None:
        """The messages up to queue offset `end` were in the log when this process began."""
        if not self._arrivals:
            self._known_from = max(self._known_from, end)
            self.end = max(self.end, end)

    def arrived(self, end: int, due_ms: int, steady_ms: int, *, stored_here: bool) -> None:
        """Messages came up to queue offset `end`; the last one's entry says `due_ms`. `stored_here`: by this broker itself."""
        if end <= self.end:
            return
        if not stored_here:
            age_ms = self._age_ms(due_ms, steady_ms)
            if self._youngest_ms is None or age_ms < self._youngest_ms:
                self._youngest_ms = age_ms
        self._arrivals.append(_Arrival(end, steady_ms, steady_ms, stored_here))
        self.end = end
        if len(self._arrivals) > MAX_ARRIVALS:
            self._make_room()

    def move(self, position: int) -> None:
        """Everything before the position is delivered."""
        self.position = position

    def cut(self, end: int) -> None:
        """The queue ends at `end` now, and may go on from there with other messages."""
        self.end = min(self.end, end)
        self.position = min(self.position, end)
        self._known_from = min(self._known_from, end)
        kept = self._arrivals[: self._index_of(end - 1) + 1] if end > self._known_from else []
        self._arrivals = [each._replace(end=min(each.end, end)) for each in kept]

    def release_ms(self, offset: int, due_ms: int, steady_ms: int, wall_ms: int) -> int:
        """The steady time from which the message with that entry may be delivered."""
        by_entry_ms = steady_ms + due_ms - wall_ms
        index = self._index_of(offset)
        if offset < self._known_from or index == len(self._arrivals):
            return min(by_entry_ms, self._since_ms + self.delay_ms)
        _, first_ms, last_ms, stored_here = self._arrivals[index]
        earliest_ms = first_ms + self.delay_ms
        if not stored_here and self._youngest_ms is not None:
            waited_ms = self._age_ms(due_ms, first_ms) - self._youngest_ms
            if waited_ms > CATCHING_UP_MS:
                earliest_ms -= waited_ms
        return min(max(by_entry_ms, earliest_ms), last_ms + self.delay_ms)

    def count_released(self, due_ms: Sequence[int], steady_ms: int, wall_ms: int) -> int:
        """How many of the first waiting messages may be delivered; `due_ms` is what their entries say."""
        for n in range(max(0, self._released_before(steady_ms) - self.position), len(due_ms)):
            if self.release_ms(self.position + n, due_ms[n], steady_ms, wall_ms) > steady_ms:
                return n
        return len(due_ms)

    def _released_before(self, steady_ms: int) -> int:
        """Messages below that queue offset may be delivered whatever their entries say: they came their delay ago."""
        index = bisect_right(self._arrivals, steady_ms - self.delay_ms, key=lambda arrival: arrival.last_ms)
        if index:
            return self._arrivals[index - 1].end
        return self._known_from if self._since_ms + self.delay_ms <= steady_ms else self.position

    def _age_ms(self, due_ms: int, steady_ms: int) -> int:
        """Of a message with that entry: steady time less store time, to be compared with those of others."""
        return steady_ms - (due_ms - self.delay_ms)

    def _index_of(self, offset: int) -> int:
        """The first arrival that ends behind the offset."""
        return bisect_right(self._arrivals, offset, key=lambda arrival: arrival.end)

    def _make_room(self) -> None:
        """Forget the arrivals of what is delivered; put neighbours together when that is not enough."""
        done = self._index_of(self.position)
        if done:
            self._known_from = max(self._known_from, self._arrivals[done - 1].end)
            del self._arrivals[:done]
        span_ms = max(1, 2 * self.delay_ms // MAX_ARRIVALS)  # what waits came within its delay, when it is not late
        while len(self._arrivals) > MAX_ARRIVALS * 3 // 4 and span_ms < _FOR_EVER_MS:
            self._arrivals = _merge_close(self._arrivals, span_ms)
            span_ms *= 2


def _merge_close(arrivals: list[_Arrival], span_ms: int) -> list[_Arrival]:
    """Neighbours that came within the span as one."""
    result = [arrivals[0]]
    for each in arrivals[1:]:
        before = result[-1]
        if each.last_ms - before.first_ms <= span_ms and each.stored_here == before.stored_here:
            result[-1] = each._replace(first_ms=before.first_ms)
        else:
            result.append(each)
    return result
