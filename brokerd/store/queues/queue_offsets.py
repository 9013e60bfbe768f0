"""The next queue offset of every (topic, queue id): what an append numbers its messages with.

Owned by the event loop's thread, written by the store alone. A number is taken only by a message that is in the log: who lays out
records takes numbers from a view (`TakenOffsets`), and the store stores the view back with `advance` when they are appended, so a
failed append leaves no hole. After a start or a role change the table is rebuilt from the consume queues and the part of the log
that is not dispatched yet (those numbers are taken too).

The numbers are in rows of an array, so that C takes them from there for thousands of queues (`brokerd/native/send.c`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Protocol

from brokerd.store.log.derive import Entry

QueueKey = tuple[str, int]


class TakenInC(Protocol):
    """Numbers that C took for a run."""

    def numbers(self) -> Mapping[QueueKey, int]:
        """What comes next in each queue behind what it took."""

    def store(self, offsets: QueueOffsets) -> None:
        """The run is in the log: these are the next numbers."""


class TakenOffsets(dict[QueueKey, int]):
    """What comes next in the queues, with numbers taken that are not stored yet: those are the items, `offsets` has the others.

    `taken[key]` is the next number, `taken[key] = number + 1` takes it. What C took later is in `in_c` until `settle`, which
    comes before anything else is asked.
    """

    __slots__ = ("in_c", "offsets")

    def __init__(self, offsets: QueueOffsets | Mapping[QueueKey, int]) -> None:
        self.offsets = offsets if isinstance(offsets, QueueOffsets) else QueueOffsets(offsets)
        self.in_c: list[TakenInC] = []

    def __missing__(self, key: QueueKey) -> int:
        return self.offsets.get(key)

    def next_of(self, keys: Iterable[QueueKey]) -> list[int]:
        """`self[key]` of each."""
        return [self[key] for key in keys]

    def settle(self) -> None:
        """What C took is among the items."""
        for taken in self.in_c:
            self.update(taken.numbers())
        self.in_c.clear()


class QueueOffsets:
    """What comes next in each queue: `numbers` by row. `holder` is another one when rows are not those of the same queues any
    more."""

    __slots__ = ("_free", "_rows", "holder", "numbers")

    def __init__(self, table: Mapping[QueueKey, int] | None = None) -> None:
        self.rebuild(table or {})

    @property
    def table(self) -> dict[QueueKey, int]:
        """Those that are not at 0."""
        return {key: number for key, row in self._rows.items() if (number := self.numbers[row])}

    def get(self, key: QueueKey) -> int:
        row = self._rows.get(key)
        return 0 if row is None else self.numbers[row]

    def next(self, topic: str, queue_id: int) -> int:
        return self.get((topic, queue_id))

    def row_of(self, key: QueueKey) -> int:
        """The row of a queue, which gets one."""
        row = self._rows.get(key)
        if row is None:
            if self._free:
                row = self._free.pop()
            else:
                row = len(self.numbers)
                self.numbers.append(0)
            self._rows[key] = row
        return row

    def taking(self) -> TakenOffsets:
        """A view to take numbers from, for `advance` or to be dropped."""
        return TakenOffsets(self)

    def advance(self, next_offsets: Mapping[QueueKey, int]) -> None:
        """Store what comes next in the queues that an append wrote to."""
        for key, number in next_offsets.items():
            self.numbers[self.row_of(key)] = number
        if isinstance(next_offsets, TakenOffsets):
            for taken in next_offsets.in_c:
                taken.store(self)

    def rebuild(self, max_offsets: Mapping[QueueKey, int]) -> None:
        """Start over from the ends of the consume queues; then `take` what the log holds behind them."""
        self._rows = {key: row for row, key in enumerate(max_offsets)}
        self.numbers = array("q", max_offsets.values())
        self._free: list[int] = []
        self.holder = object()

    def take(self, entries: Iterable[Entry]) -> None:
        """Count entries of the log, in log order. Offset 0 starts a queue again: its topic was deleted before."""
        for topic, queue_id, queue_offset, _, _, _, _, count in entries:
            row = self.row_of((topic, queue_id))
            self.numbers[row] = max(self.numbers[row], queue_offset + count) if queue_offset else count

    def forget(self, topic: str) -> None:
        """The topic is deleted: its queues start at 0 again."""
        gone = [key for key in self._rows if key[0] == topic]
        for key in gone:
            row = self._rows.pop(key)
            self.numbers[row] = 0
            self._free.append(row)
        if gone:
            self.holder = object()
