"""Far timers by the timer topic's queue itself: its entries are read where it is known that one may be due then (pure).

For each 4096 entries it keeps when the first and the last of them are due, 16 bytes. What is asked for is looked up in slices, a
few thousand entries in a turn of the loop; nothing is written. A look finds more than was asked for, and keeps it for the
questions that follow: else each few thousand of a million that are due together cost a look at all of them. It is simple and
always right, and what the files are held against; with millions of timers the files are faster.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.store.unit import Unit
from brokerd.timers.codes import MAX_DUE_MS, Key, due_of, key_of
from brokerd.timers.done import Done
from brokerd.timers.due_entries import PAIR, DueEntries, PythonDueEntries, Span
from brokerd.timers.far import Found

CHUNK: Final = 4096
CHUNKS_IN_A_TURN: Final = 2
CHUNKS_IN_C_IN_A_TURN: Final = 32  # about a millisecond
KEPT: Final = 1 << 15  # entries that are found at once: twice as many for a moment, 16 bytes each

_NOTHING: Final = MAX_DUE_MS + 1
_LAST_OFFSET: Final = 1 << 62


@dataclass(slots=True)
class _Search:
    """Entries behind `after`, up to `end`: all that lie below the offset `at`, of a queue that began at `low`. They are in order
    when it `is_done`."""

    after: Key
    end: Key
    most: int
    low: int
    at: int = 0
    found: array[int] = field(default_factory=lambda: array("q"))  # as `DueEntries` has them
    is_done: bool = False

    def add(self, found: array[int], entries: DueEntries) -> None:
        """More of them."""
        self.found += found
        if len(self.found) > 2 * self.most * PAIR:
            entries.sort(self.found)
            del self.found[self.most * PAIR :]
            self.end = key_of(*self.found[-PAIR:])

    def first(self, after: Key, until_ms: int, limit: int) -> list[Found]:
        """The first ones behind that key that are due before that time."""
        low, high = self._place(after), self._place(Key(until_ms - 1, _LAST_OFFSET))
        high = min(high, low + limit)
        codes, offsets = self.found[low * PAIR : high * PAIR : PAIR], self.found[low * PAIR + 1 : high * PAIR : PAIR]
        return list(zip(codes, offsets, strict=True))

    def _place(self, key: Key) -> int:
        """How many are not behind that key."""
        found = self.found
        numbers = range(len(found) // PAIR)
        return bisect_right(numbers, key, key=lambda n: key_of(found[PAIR * n], found[PAIR * n + 1]))


class QueueFar:
    """A `far.Far`; `queue_range` is that of the timer topic's queue, and `read_units` reads it."""

    def __init__(
        self,
        queue_range: Callable[[], tuple[int, int]],
        read_units: Callable[[int, int], Sequence[Unit]],
        entries: DueEntries | None = None,
    ) -> None:
        """`entries` are those of the same queue; None: found by Python."""
        self._queue_range = queue_range
        self._read_units = read_units
        self._entries = PythonDueEntries(read_units) if entries is None else entries
        self._in_a_turn = CHUNKS_IN_A_TURN if entries is None else CHUNKS_IN_C_IN_A_TURN
        self._scanned = self._held = 0
        # by chunk, when the first and the last of its entries are due
        self._first = array("q")
        self._last = array("q")
        self._search: _Search | None = None

    # ---- far.Far

    @property
    def applied(self) -> int:
        return self._scanned

    def between(self, after: Key, until_ms: int, limit: int) -> Sequence[Found] | None:
        low, high = self._queue_range()
        if self._scanned < high:
            self.step()
            return None
        end = Key(until_ms - 1, _LAST_OFFSET)
        search = self._search
        if search is None or after < search.after or search.low < low:  # what was found may be gone with its file
            search = self._search = _Search(after, end, max(limit, KEPT), low)
        if not self._look(search):
            return None
        found = search.first(after, until_ms, limit)
        if len(found) < limit and search.end < end:
            self._search = _Search(after, end, max(limit, KEPT), low)
            return None
        return found

    def held_queue_offset(self, done: Done) -> int:
        held = max(self._held, self._queue_range()[0])
        while held < self._scanned:
            chunk = held // CHUNK
            stop = min((chunk + 1) * CHUNK, self._scanned)
            # a second may have millions, and all of them are delivered
            if Key(self._last[chunk], stop - 1) > done.cursor:
                codes = [code for _, _, code in self._read(held, stop)]
                pending = (offset for offset, code in enumerate(codes, held) if not done.has(key_of(code, offset)))
                held = next(pending, stop)
                if held < stop:
                    break
            held = stop
        self._held = held
        return held

    def arrived(self, end: int, codes: Sequence[int]) -> None:
        begin = end - len(codes)
        if begin == self._scanned:
            self._note(begin, codes)

    def truncated(self, end: int) -> None:
        """What is known of the chunk that is cut stays: it may say too much."""
        self._scanned = min(self._scanned, end)
        chunks = -(-self._scanned // CHUNK)
        del self._first[chunks:], self._last[chunks:]
        self._held = 0
        self._search = None

    def rebuild(self) -> None:
        self.truncated(0)

    def step(self) -> bool:
        low, end = self._queue_range()
        if self._scanned < low:
            self._pad(low)
        for _ in range(self._in_a_turn):
            if self._scanned >= end:
                return False
            stop = min((self._scanned // CHUNK + 1) * CHUNK, end)
            span = self._entries.span(self._scanned, stop)
            if span.entries:
                self._note_span(self._scanned, span)
            self._scanned += span.entries
        return self._scanned < end

    # ---- inside

    def _read(self, start: int, stop: int) -> list[Unit]:
        units: list[Unit] = []
        while start < stop:
            read = self._read_units(start, stop - start)
            if not read:
                break
            units += read
            start += len(read)
        return units

    def _pad(self, offset: int) -> None:
        """The entries below that offset are not there any more."""
        missing = -(-offset // CHUNK) - len(self._first)
        self._first.extend([_NOTHING] * missing)
        self._last.extend([-1] * missing)
        self._scanned = offset

    def _note(self, offset: int, codes: Sequence[int]) -> None:
        """The entries from there on have these codes."""
        done = 0
        while done < len(codes):
            part = codes[done : done + CHUNK - (offset + done) % CHUNK]
            self._note_span(offset + done, Span(len(part), min(part), max(part)))
            done += len(part)
        self._scanned = offset + len(codes)

    def _note_span(self, offset: int, span: Span) -> None:
        """The entries from there on, which are of one chunk, have such codes."""
        chunk = offset // CHUNK
        if chunk == len(self._first):
            self._first.append(_NOTHING)
            self._last.append(-1)
        self._first[chunk] = min(self._first[chunk], due_of(span.least))
        self._last[chunk] = max(self._last[chunk], due_of(span.largest))

    def _look(self, search: _Search) -> bool:
        """Go on in the chunks that can hold some of it; whether all were looked at."""
        at = max(search.at, self._queue_range()[0])
        left = self._in_a_turn
        while at < self._scanned and left:
            chunk = at // CHUNK
            stop = min((chunk + 1) * CHUNK, self._scanned)
            if (self._last[chunk], stop - 1) > search.after and self._first[chunk] <= search.end.due_ms:
                left -= 1
                search.add(self._entries.select(at, stop, search.after, search.end), self._entries)
                search.is_done = False
            at = stop
        search.at = at
        if at < self._scanned:
            return False
        if not search.is_done:  # what was dispatched meanwhile was looked at, too
            self._entries.sort(search.found)
            search.is_done = True
        return True
