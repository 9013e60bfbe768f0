"""What is due soon, kept in memory: loaded from the far timers ahead of its time, and added to by what arrives.

It covers the keys up to `covered`: of these, it has all entries that are not done with. What is due later waits with the far
ones, and so does the rest of what does not fit. One that has an end is for what was left behind (`lanes.py`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.timers.codes import START, Key, due_of, key_of, last_of
from brokerd.timers.done import Done
from brokerd.timers.far import Far, Found
from brokerd.timers.near import Near

_ASKED_AT_ONCE: Final = 2000
_LOADED_AT_ONCE: Final = 1000


@dataclass(slots=True)
class _Found:
    """What is being loaded: entries in order, of which the first `loaded` are; with them, all up to `end` is there. `is_all`: of
    what was asked for, more is not there."""

    entries: list[Found]
    end: Key
    is_all: bool
    loaded: int = 0


def _key(found: Found) -> Key:
    return key_of(*found)


class Horizon:
    """For a master, from `begin` on; `near_ms` ahead, at most `near_max` entries."""

    def __init__(self, far: Far, near_ms: int, near_max: int) -> None:
        self._far = far
        self._near_ms = near_ms
        self._near_max = near_max
        self._near = Near()
        self._until_ms: int | None = None  # what is asked for
        self._limit = 0
        self._found: _Found | None = None
        self._after = START
        self.end: Key | None = None
        self.covered = START

    def begin(self, after: Key, end: Key | None = None) -> None:
        """Nothing is known yet of what is behind `after`; it is about what is not behind `end`, the last key of a millisecond."""
        self._near.clear()
        self._until_ms = None
        self._found = None
        self._after = self.covered = after
        self.end = end

    def split(self, end: Key) -> Horizon:
        """Go on behind `end`, the last key of a millisecond; what is for the part in front of it."""
        part = Horizon(self._far, self._near_ms, self._near_max)
        part.begin(self._after, end)
        part._near = self._near.split(end.due_ms + 1)
        if self.covered < end:
            part.covered = self.covered
            self.begin(end)
        else:
            part.covered = self._after = end
        return part

    def keep(self, limit: int) -> None:
        """Let the last ones go, so that at most `limit` are left; they are loaded again."""
        if self._near.count <= limit:
            return
        self._until_ms = self._found = None
        if limit > 0:
            self.covered = self._near.shrink(limit)
        else:
            self.begin(self._after, self.end)

    @property
    def is_drained(self) -> bool:
        """Whether all up to the end was here, and is done with."""
        return not self._near.count and self._found is None and self.end is not None and self.covered >= self.end

    @property
    def count(self) -> int:
        """Entries in memory."""
        return self._near.count

    @property
    def first_due_ms(self) -> int | None:
        """When the first of these is due; when all are done with that had an end, that one."""
        return self.end.due_ms if self.end is not None and self.is_drained else self._near.first_due_ms

    def late_end_ms(self, now_ms: int, late_ms: int, most: int) -> int | None:
        """If the first one is late by that much: up to which time entries are to be left behind, so that the rest of what is due,
        which is of the last `late_ms`, is no more than `most`. None also where that would leave no more than `most`."""
        first_ms = self._near.first_due_ms
        if first_ms is None or first_ms > now_ms - late_ms:
            return None
        end_ms = now_ms - late_ms
        if self.covered.due_ms >= now_ms:
            end_ms, left = now_ms, most - self._near.count_at(now_ms)
            while end_ms > now_ms - late_ms and left >= 0:
                end_ms -= 1
                left -= self._near.count_at(end_ms)
        return end_ms if len(self.first(end_ms + 1, most + 1)) > most else None

    def recalls(self, until_ms: int) -> list[int]:
        """The queue offsets of delete markers in memory that are due before `until_ms`."""
        return self._near.recalls(until_ms)

    def first(self, until_ms: int, limit: int) -> list[Found]:
        """Up to `limit` entries that are due before `until_ms`, in order; they stay."""
        return self._near.first(until_ms, limit)

    def drop(self, count: int) -> None:
        """The first ones are done with."""
        self._near.drop(count)

    def arrived(self, end: int, codes: Sequence[int], done: Done) -> None:
        """Entries were dispatched, the last at queue offset `end - 1`."""
        cursor, fences, _ = done
        covered, found, add = self.covered, self._found, self._near.add
        if due_of(min(codes)) > (covered if found is None else max(covered, found.end)).due_ms:
            return  # all are due later than what is here
        for offset, code in enumerate(codes, end - len(codes)):
            if (key := key_of(code, offset)) <= covered:
                if key > cursor and key > self._after and not (fences and done.has(key)):
                    add(code, offset)
            elif found is not None and key <= found.end:
                insort(found.entries, (code, offset), found.loaded, key=_key)
        if self._near.count > self._near_max:
            self.covered = self._near.shrink(max(1, self._near_max * 3 // 4))
            self._found = self._until_ms = None

    def wants_at_ms(self) -> int | None:
        """When more is to be loaded; None when there is no room now, or no more."""
        if self._near.count * 2 > self._near_max or (self.end is not None and self.covered >= self.end):
            return None
        return self.covered.due_ms - self._near_ms // 2

    def load(self, now_ms: int, done: Done) -> bool:
        """Load a portion of what is due within the time ahead; whether there is more, for further turns."""
        if self._found is not None:
            return self._load_found(self._found, done)
        if self._far.step():
            return True
        wants_ms = self.wants_at_ms()
        if wants_ms is None or wants_ms > now_ms:
            return False
        if self._until_ms is None:
            self._until_ms = now_ms + self._near_ms
            if self.end is not None:
                self._until_ms = min(self._until_ms, self.end.due_ms + 1)
            self._limit = min(_ASKED_AT_ONCE, self._near_max - self._near.count)
        found = self._far.between(self.covered, self._until_ms, self._limit)
        if found is None:
            return True
        is_all = len(found) < self._limit
        end = last_of(self._until_ms - 1) if is_all else key_of(*found[-1])
        self._until_ms = None
        self._found = _Found(list(found), max(end, self.covered), is_all)
        return True

    def _load_found(self, found: _Found, done: Done) -> bool:
        stop = min(found.loaded + _LOADED_AT_ONCE, len(found.entries))
        entries = found.entries[found.loaded : stop]
        if done.fences or done.moved:
            entries = [each for each in entries if not done.has(key_of(*each))]
        self._near.add_all(entries)
        found.loaded = stop
        if stop < len(found.entries):
            self.covered = key_of(*found.entries[stop - 1])
            return True
        self.covered, self._found = found.end, None
        return not found.is_all
