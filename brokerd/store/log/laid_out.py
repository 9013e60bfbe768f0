"""Entries of what C laid out for the log: a sequence like any other, which stays in C's structs until somebody wants them.

Hardly anybody does: they go behind their queues in C (`store/queues/native_tails.py`), and who is told of them looks for topics.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, overload

from brokerd.store.log.derive import Entry

# `struct unit` of brokerd/native/units.h: topic, queue id, slot, queue offset, position, size, code, count
LAID_OUT: Final = struct.Struct("=iiqqqqqq")
# Of the numbers of 64 bits in such a struct
_NUMBERS: Final = LAID_OUT.size // 8
_SLOT_NUMBER: Final = 1

QueueKey = tuple[str, int]


class Tally(NamedTuple):
    """What was laid out for a topic."""

    topic: str
    messages: int
    size: int


class SlotNumbers:
    """By slot, which one of somebody's queues it is, -1 of one that he has not looked for. They are of that `holder`; another one
    forgets them."""

    __slots__ = ("_count", "_holder", "_numbers")

    def __init__(self, count: int) -> None:
        self._count = count
        self._holder: object = None
        self._numbers = array("q")

    def of(self, holder: object) -> array[int]:
        """The numbers of that holder's queues."""
        if self._holder is not holder:
            self._holder = holder
            self._numbers = array("q", [-1]) * self._count
        return self._numbers


class QueueSlots:
    """The queues that entries of C's name, by slot: `keys`; `names` are those of their topics. `tails` are the numbers of who has
    the queues, `rows` of who knows what comes next in them."""

    __slots__ = ("keys", "names", "rows", "tails")

    def __init__(self, names: Sequence[str], keys: Sequence[QueueKey]) -> None:
        self.names = names
        self.keys = keys
        self.tails, self.rows = SlotNumbers(len(keys)), SlotNumbers(len(keys))


class LaidOut(Sequence[Entry]):
    """`content` has a struct for each entry; `tallies` what they are together, for each topic."""

    __slots__ = ("_now_ms", "_tallies", "content", "slots")

    def __init__(self, content: bytes, slots: QueueSlots, now_ms: int, tallies: Sequence[Tally] | None = None) -> None:
        self.content = content
        self.slots = slots
        self._now_ms = now_ms
        self._tallies = tallies

    @property
    def tallies(self) -> Sequence[Tally]:
        if self._tallies is None:
            found: dict[str, tuple[int, int]] = {}
            for topic, _, _, _, size, _, _, count in self:
                messages, size_bytes = found.get(topic, (0, 0))
                found[topic] = messages + count, size_bytes + count * size
            self._tallies = [Tally(topic, *each) for topic, each in found.items()]
        return self._tallies

    def slot_of(self, index: int) -> int:
        """The slot of an entry's queue."""
        slot: int = LAID_OUT.unpack_from(self.content, index * LAID_OUT.size)[2]
        return slot

    def queues(self) -> Collection[QueueKey]:
        """Those of the entries, in the order in which they occur; no entry is made for that."""
        keys = self.slots.keys
        return [keys[slot] for slot in dict.fromkeys(array("q", self.content)[_SLOT_NUMBER::_NUMBERS])]

    def part(self, begin: int, end: int) -> LaidOut:
        """Some of the entries."""
        return LaidOut(self.content[begin * LAID_OUT.size : end * LAID_OUT.size], self.slots, self._now_ms)

    def __len__(self) -> int:
        return len(self.content) // LAID_OUT.size

    def __iter__(self) -> Iterator[Entry]:
        names, now_ms = self.slots.names, self._now_ms
        for target, queue_id, _, queue_offset, position, size, code, count in LAID_OUT.iter_unpack(self.content):
            yield names[target], queue_id, queue_offset, position, size, code, now_ms, count

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self.part(start, stop) if step == 1 else list(self)[index]
        at = range(len(self))[index] * LAID_OUT.size
        target, queue_id, _, queue_offset, position, size, code, count = LAID_OUT.unpack_from(self.content, at)
        return self.slots.names[target], queue_id, queue_offset, position, size, code, self._now_ms, count
