"""Entries that C derived: a sequence like any other, which stay in columns until somebody wants them one by one.

A start looks at millions of records and wants little of each: the last number of each queue, or what its file is to have. Such
questions are answered without making the entries.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Final, NamedTuple, overload

from brokerd.store.log.derive import Entry
from brokerd.store.log.laid_out import LaidOut, QueueKey
from brokerd.store.unit import UNIT_BYTES

# What walk.c writes of each entry, of each queue, and of each queue when its entries were gathered.
COLUMNS: Final = ("place", "group", "queue_offset", "size", "code", "timestamp_ms", "properties_at")
GROUP_NUMBERS: Final = 7
_GATHERED_NUMBERS: Final = 4


class QueueEntries(NamedTuple):
    """The entries of one queue, in their order."""

    key: QueueKey
    first: int  # queue offset
    is_dense: bool  # the queue offsets of the others follow it, one by one
    units: memoryview  # as the queue's file has them
    codes: list[int]
    last_physical: int


class EntryColumns(Sequence[Entry]):
    """`gather(gathered, units, codes)` is given the addresses of areas, and puts each queue's entries together there. `walk` is
    where C has them, with the bytes of their records, as long as `gather` is there; 0 where it has not."""

    __slots__ = ("_columns", "_count", "_gather", "_groups", "keys", "walk")

    def __init__(
        self,
        keys: Sequence[QueueKey],
        count: int,
        columns: Mapping[str, array[int]],
        groups: array[int],
        gather: Callable[[int, int, int], None],
        walk: int = 0,
    ) -> None:
        self.keys = keys  # in the order in which they occur
        self._count = count
        self._columns = columns
        self._groups = groups
        self._gather = gather
        self.walk = walk

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        columns, topics, queue_ids = self._columns, [key[0] for key in self.keys], [key[1] for key in self.keys]
        rows: Iterator[Entry] = zip(
            map(topics.__getitem__, columns["group"]),
            map(queue_ids.__getitem__, columns["group"]),
            columns["queue_offset"],
            columns["place"],
            columns["size"],
            columns["code"],
            columns["timestamp_ms"],
            repeat(1),
            strict=False,
        )
        return islice(rows, self._count)

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            return list(self)[index]
        n = range(self._count)[index]
        columns = self._columns
        key = self.keys[columns["group"][n]]
        place, size, code = columns["place"][n], columns["size"][n], columns["code"][n]
        return (*key, columns["queue_offset"][n], place, size, code, columns["timestamp_ms"][n], 1)

    def last_offsets(self) -> dict[QueueKey, int]:
        """The queue offset of each queue's last entry."""
        return dict(zip(self.keys, self._groups[4::GROUP_NUMBERS], strict=False))

    def by_queue(self) -> Iterator[QueueEntries]:
        """The same entries, each queue's together."""
        count = self._count
        gathered = array("q", bytes(8 * _GATHERED_NUMBERS * len(self.keys)))
        units, codes = array("b", bytes(UNIT_BYTES * count)), array("q", bytes(8 * count))
        self._gather(gathered.buffer_info()[0], units.buffer_info()[0], codes.buffer_info()[0])
        view, columns = memoryview(units), [gathered[n::_GATHERED_NUMBERS] for n in range(_GATHERED_NUMBERS)]
        for key, begin, length, first, is_dense in zip(self.keys, *columns, strict=True):
            end = begin + length
            last = int.from_bytes(view[(end - 1) * UNIT_BYTES : (end - 1) * UNIT_BYTES + 8], "big", signed=True)
            part = view[begin * UNIT_BYTES : end * UNIT_BYTES]
            yield QueueEntries(key, first, bool(is_dense), part, codes[begin:end].tolist(), last)


def of_topic(entries: Sequence[Entry], topic: str) -> Sequence[Entry]:
    """The entries of the topic."""
    if isinstance(entries, EntryColumns) and all(key[0] != topic for key in entries.keys):
        return ()
    if isinstance(entries, LaidOut) and all(tally.topic != topic for tally in entries.tallies):
        return ()
    return [entry for entry in entries if entry[0] == topic]


def last_offsets(entries: Sequence[Entry], before: int) -> dict[QueueKey, int]:
    """The queue offset of each queue's last entry, among those whose records begin before that offset of the log."""
    if isinstance(entries, EntryColumns) and entries:
        if entries[-1][3] < before:
            return entries.last_offsets()
        if entries[0][3] >= before:
            return {}
    return {entry[:2]: entry[2] for entry in entries if entry[3] < before}
