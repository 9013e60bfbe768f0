"""Timers that are due soon, in memory, in order of their keys (pure).

One packed row for each millisecond in which something is due. What comes later stands behind in the queue, so a row is in order
as it grows, and nothing is ever sorted. An entry takes 8 bytes, a millisecond some 200 more.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush

from brokerd.timers.codes import Key, due_of, encode_code, kind_of

_KIND_BITS = 2
_KIND_MASK = (1 << _KIND_BITS) - 1


class Near:
    """Entries (code, queue offset). They are added in order of their offsets within a millisecond."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[int, array[int]] = {}  # by when they are due: offset << 2 | kind
        self._times: list[int] = []  # the keys of the rows, a heap
        self._taken = 0  # of the first row

    def add(self, code: int, offset: int) -> None:
        due_ms = due_of(code)
        row = self._rows.get(due_ms)
        if row is None:
            if self._times and due_ms < self._times[0]:
                self._drop_taken()
            row = self._rows[due_ms] = array("q")
            heappush(self._times, due_ms)
        assert not row or row[-1] >> _KIND_BITS < offset, "entries of a millisecond come in their order"
        row.append(offset << _KIND_BITS | kind_of(code))
        self.count += 1

    @property
    def first_due_ms(self) -> int | None:
        """When the first one is due."""
        return self._times[0] if self._times else None

    def first(self, until_ms: int, limit: int) -> list[tuple[int, int]]:
        """Up to `limit` entries that are due before `until_ms`, from the first on; they stay."""
        found: list[tuple[int, int]] = []
        skip = self._taken
        heap = self._times
        later: list[int] = []
        while heap and heap[0] < until_ms and len(found) < limit:
            due_ms = heap[0]
            code = encode_code(due_ms, 0)
            row = self._rows[due_ms][skip : skip + limit - len(found)]
            found += [(code | each & _KIND_MASK, each >> _KIND_BITS) for each in row]
            skip = 0
            later.append(heappop(heap))
        for due_ms in later:
            heappush(heap, due_ms)
        return found

    def drop(self, count: int) -> None:
        """Take the first ones away."""
        assert count <= self.count
        self.count -= count
        while count:
            due_ms = self._times[0]
            left = len(self._rows[due_ms]) - self._taken
            if count < left:
                self._taken += count
                return
            count -= left
            self._taken = 0
            heappop(self._times)
            del self._rows[due_ms]

    def shrink(self, limit: int) -> Key:
        """Let the last ones go, so that at most `limit` (at least one) are left; the key of the last that stays."""
        assert 0 < limit <= self.count
        self._drop_taken()
        times = sorted(self._times)
        while self.count > limit:
            row = self._rows[times[-1]]
            surplus = self.count - limit
            if surplus < len(row):
                del row[len(row) - surplus :]
                self.count -= surplus
            else:
                self.count -= len(row)
                del self._rows[times.pop()]
        self._times = times  # in order, so it is a heap
        return Key(times[-1], self._rows[times[-1]][-1] >> _KIND_BITS)

    def clear(self) -> None:
        self.count = self._taken = 0
        self._rows.clear()
        self._times.clear()

    def _drop_taken(self) -> None:
        if self._taken:
            del self._rows[self._times[0]][: self._taken]
            self._taken = 0
