"""Which timers are done with: delivered, taken back, or set aside (pure).

Mostly one key says it, the cursor: all timers up to it are done. When the time by which timers are kept turns out to be earlier
than the cursor, this goes back; then a fence keeps what it said of the timers that there were. So whatever clocks say, no timer
that is done becomes one that is not.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from brokerd.timers.codes import START, Key

MAX_FENCES: Final = 8


class Fence(NamedTuple):
    """Timers with queue offsets below `before` and keys up to `key` are done."""

    before: int
    key: Key


class Done(NamedTuple):
    """All timers up to the cursor, and what the fences say, of which the cursor has passed none: each later one has a higher
    offset and an earlier key."""

    cursor: Key = START
    fences: tuple[Fence, ...] = ()

    def has(self, key: Key) -> bool:
        """Whether the timer with that key, which was appended, is done."""
        return key <= self.cursor or any(key.offset < fence.before and key <= fence.key for fence in self.fences)

    def went_back(self, since: Done) -> bool:
        """Whether the cursor was set back since it was so: timers may wait that are due before what had passed then."""
        return self.cursor < since.cursor or (bool(self.fences) and self.fences[-1] not in since.fences)

    def passed(self, to: Key) -> Done:
        """With a cursor there, if it was not further."""
        cursor = max(self.cursor, to)
        return Done(cursor, tuple(fence for fence in self.fences if fence.key > cursor) if self.fences else ())

    def set_back(self, to: Key, before: int) -> Done:
        """With a cursor there, which is earlier; `before` is the queue offset of the next timer that is appended."""
        fences = self.fences
        if not fences or fences[-1].before < before:
            fences = (*fences, Fence(before, self.cursor))
        return Done(to, fences)
