"""Which timers are done with: delivered, taken back, or set aside (pure).

Mostly one key says it, the cursor: all timers up to it are done. Two things are kept beside it, both as fences. While the cursor
is late, what is due newly is delivered ahead of it: a fence that is open says from where to where, and the cursor goes over that
when it comes there. And when the time by which timers are kept turns out to be earlier than what is delivered, the cursor goes
back; then fences keep what was said of the timers that there were. So whatever clocks say, no timer that is done becomes one that
is not.

And where files of the log are to go, the timers in them were appended again (`moving.py`): entries below `moved` are nobody's any
more, whatever became of their timers.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from brokerd.timers.codes import START, Key

MAX_FENCES: Final = 8
ALL: Final = 1 << 62  # above all queue offsets


class Fence(NamedTuple):
    """Timers with queue offsets below `before` and keys behind `after`, up to `key`, are done."""

    before: int
    key: Key
    after: Key = START

    @property
    def is_open(self) -> bool:
        """Whether it is about all timers: what is appended has to be due behind it."""
        return self.before == ALL

    def has(self, key: Key) -> bool:
        """Whether it says so of the timer with that key."""
        return key.offset < self.before and self.after < key <= self.key


class Done(NamedTuple):
    """All timers up to the cursor, and what the fences say, of which the cursor has passed none. The last ones may be open: they
    begin behind the cursor, and each where the one before ends, or later. Of entries with queue offsets below `moved`, those that
    were not done have later ones."""

    cursor: Key = START
    fences: tuple[Fence, ...] = ()
    moved: int = 0

    @property
    def front(self) -> Key:
        """Up to where timers are delivered, or left behind: what is appended has to be due later."""
        return next((fence.key for fence in reversed(self.fences) if fence.is_open), self.cursor)

    @property
    def gaps(self) -> tuple[tuple[Key, Key], ...]:
        """What is left behind, in order: from each of these keys to the other; what is behind the front is no gap."""
        opened = [fence for fence in self.fences if fence.is_open]
        begins = (self.cursor, *(fence.key for fence in opened))
        return tuple((begin, fence.after) for begin, fence in zip(begins, opened, strict=False))

    def has(self, key: Key) -> bool:
        """Whether nothing is to be done for the entry with that key, which was appended."""
        return key.offset < self.moved or self.is_over(key)

    def is_over(self, key: Key) -> bool:
        """Whether the timer with that key, which was appended, is done, wherever it waited last."""
        return key <= self.cursor or any(fence.has(key) for fence in self.fences)

    def went_back(self, since: Done) -> bool:
        """Whether the cursor was set back since it was so: timers may wait that are due before what had passed then."""
        closed = (fence for fence in self.fences if not fence.is_open)
        return self.front < since.front or any(fence not in since.fences for fence in closed)

    def passed(self, to: Key, after: Key | None = None) -> Done:
        """With a cursor there, if it was not further. With `after`, which is where the front is or behind it: those from there on
        alone are done, ahead of the cursor."""
        cursor, fences, moved = self
        if after is None:
            cursor = max(cursor, to)
        elif fences and fences[-1].is_open and fences[-1].key == after:
            fences = (*fences[:-1], fences[-1]._replace(key=to))
        else:
            fences = (*fences, Fence(ALL, to, after))
        if not fences:
            return Done(cursor, moved=moved)
        for fence in fences:
            if fence.is_open and fence.after <= cursor:
                cursor = max(cursor, fence.key)
        return Done(cursor, tuple(fence for fence in fences if fence.key > cursor), moved)

    def set_back(self, to: Key, before: int) -> Done:
        """With a cursor there, if it was further, and nothing ahead of it; `before` is the queue offset of the next timer that is
        appended."""
        fences = [fence for fence in self.fences if not fence.is_open]
        done = [fence._replace(before=before) for fence in self.fences if fence.is_open]
        if to < self.cursor:
            done.append(Fence(before, self.cursor))
        for each in done:
            if not any(
                fence.before >= before and fence.after <= each.after and each.key <= fence.key for fence in fences
            ):
                fences.append(each)
        return Done(min(self.cursor, to), tuple(fences), self.moved)
