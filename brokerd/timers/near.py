"""Timers that are due soon, in memory, in order of their keys (pure).

One packed row for each millisecond in which something is due. What comes later stands behind in the queue, so a row is in order
as it grows, and nothing is ever sorted. An entry takes 8 bytes, a millisecond some 200 more.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter

from brokerd.timers.codes import RECALL, Key, due_of, encode_code, kind_of

_KIND_BITS = 2
_KIND_MASK = (1 << _KIND_BITS) - 1


class Near:
    """Entries (code, queue offset). They are added in order of their offsets within a millisecond."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[int, array[int]] = {}  # by when they are due: offset << 2 | kind
        self._times: list[int] = []  # the keys of the rows, a heap
        self._taken = 0  # of the first row
        self._recalls: list[tuple[int, int]] = []  # when delete markers are due, and their queue offsets; a heap

    def add(self, code: int, offset: int) -> None:
        due_ms = due_of(code)
        row = self._rows.get(due_ms)
        if row is None:
            if self._times and due_ms < self._times[0]:
                self._drop_taken()
            row = self._rows[due_ms] = array("q")
            heappush(self._times, due_ms)
        assert not row or row[-1] >> _KIND_BITS < offset, "entries of a millisecond come in their order"
        kind = kind_of(code)
        row.append(offset << _KIND_BITS | kind)
        self.count += 1
        if kind == RECALL:
            heappush(self._recalls, (due_ms, offset))

    def add_all(self, entries: Sequence[tuple[int, int]]) -> None:
        """Add entries that are in order of their keys."""
        for code, same in groupby(entries, itemgetter(0)):
            self.add(code, next(same)[1])
            if kind_of(code) == RECALL:
                for _, offset in same:
                    self.add(code, offset)
            elif more := [offset << _KIND_BITS | code & _KIND_MASK for _, offset in same]:
                row = self._rows[due_of(code)]
                assert row[-1] < more[0], "entries of a millisecond come in their order"
                row.extend(more)
                self.count += len(more)

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

    def count_at(self, due_ms: int) -> int:
        """How many are due then; of the first millisecond, what was taken away counts, too."""
        return len(self._rows.get(due_ms, ()))

    def recalls(self, until_ms: int) -> list[int]:
        """The queue offsets of the delete markers that are due before `until_ms`."""
        return [offset for due_ms, offset in self._recalls if due_ms < until_ms]

    def split(self, until_ms: int) -> Near:
        """Take those away that are due before `until_ms`; they are returned."""
        other = Near()
        if not self._times or self._times[0] >= until_ms:
            return other
        times, recalls = self._times, self._recalls
        other._times, self._times = [t for t in times if t < until_ms], [t for t in times if t >= until_ms]
        other._recalls = [each for each in recalls if each[0] < until_ms]
        self._recalls = [each for each in recalls if each[0] >= until_ms]
        for near in (self, other):
            heapify(near._times)
            heapify(near._recalls)
        other._rows = {due_ms: self._rows.pop(due_ms) for due_ms in other._times}
        other._taken, self._taken = self._taken, 0
        other.count = sum(map(len, other._rows.values())) - other._taken
        self.count -= other.count
        return other

    def drop(self, count: int) -> None:
        """Take the first ones away."""
        self._drop(count)
        while self._recalls and not self._is_there(*self._recalls[0]):
            heappop(self._recalls)

    def _is_there(self, due_ms: int, offset: int) -> bool:
        """Whether an entry that was added is not in front of the first one."""
        first_ms = self._times[0] if self._times else None
        if first_ms is None or due_ms != first_ms:
            return first_ms is not None and due_ms > first_ms
        return offset >= self._rows[first_ms][self._taken] >> _KIND_BITS

    def _drop(self, count: int) -> None:
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
        last = Key(times[-1], self._rows[times[-1]][-1] >> _KIND_BITS)
        self._recalls = sorted(each for each in self._recalls if each <= last)
        return last

    def clear(self) -> None:
        self.count = self._taken = 0
        self._rows.clear()
        self._times.clear()
        self._recalls.clear()

    def _drop_taken(self) -> None:
        if self._taken:
            del self._rows[self._times[0]][: self._taken]
            self._taken = 0
