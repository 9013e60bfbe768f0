"""The next messages of a queue, made ready for the tier in portions: their bytes as they stand, and entries that point into them.

The bytes are copied out of the log, so that no upload holds one of its files (storage.md 8.5, S-13). A portion is what a turn of
the loop may read; a single message that is larger is one (S-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol

from brokerd.store.unit import BLANK_SIZE, UNIT, Unit
from brokerd.tiers.index.keys import Keys
from remoting.checksum import crc32
from remoting.record.fields import store_timestamp_of
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment

_PORTION_MESSAGES: Final = 1024
_PORTION_BYTES: Final = 1 << 20


class QueueReads(Protocol):
    """The local store, as far as it is read for the tier."""

    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, max_bytes: int
    ) -> tuple[list[Unit], list[bytes]]:
        """The next messages, at least one if there is one: units, and records. Blank units come alone, without records.

        Raises CorruptedFile when they begin with damage.
        """


class Source(NamedTuple):
    """What batches are made of: messages, and what finds their keys."""

    reads: QueueReads
    keys: Keys


class Batch(NamedTuple):
    """Messages `[first, end)` of a queue, made ready: two objects, in pieces, and what a segment says of them."""

    queue: Queue
    first: int
    end: int
    base: int
    messages: list[bytes]
    entries: list[bytes]
    message_bytes: int
    first_ms: int
    last_ms: int
    log_end: int
    crc: int
    entries_crc: int
    index_items: bytes  # by which its messages are found

    def segment(self, epoch: int, number: int) -> Segment:
        """What the batch is once it is stored under these."""
        size = self.message_bytes
        times = self.first_ms, self.last_ms
        names = epoch, number
        return Segment(
            self.first, self.end, self.base, size, size, *times, self.log_end, *names, self.crc, self.entries_crc
        )


class Builder:
    """Makes one batch of the queue's messages `[first, end)`, whose bytes begin at `base`; `step` until it is done."""

    def __init__(self, source: Source, queue: Queue, first: int, end: int, base: int, max_bytes: int) -> None:
        self._reads, self._keys = source
        self._queue = queue
        self._first = self._next = first
        self._end = end
        self._base = base
        self._max_bytes = max_bytes
        self._messages: list[bytes] = []
        self._entries: list[bytes] = []
        self._bytes = 0
        self._crc = self._entries_crc = 0
        self._items: list[bytes] = []
        self._times = (0, 0)
        self._log_end = 0

    def step(self) -> bool:
        """Read a portion; whether there may be more. Raises CorruptedFile when the batch would begin with damage."""
        room = self._max_bytes - self._bytes
        if self._next >= self._end or (room <= 0 and self._messages):
            return False
        count = min(_PORTION_MESSAGES, self._end - self._next)
        units, records = self._reads.read_run(*self._queue, self._next, count, min(_PORTION_BYTES, max(room, 1)))
        if not units:
            return False
        if units[0][1] == BLANK_SIZE:
            return self._pass_blanks(len(units))
        portion = b"".join(records)
        if self._messages and len(portion) > room:
            return False
        queue, first = self._queue, self._next
        self._items.append(self._keys.items_of(queue.topic.encode(), queue.queue_id, first, portion))
        self._add(units, portion, store_timestamp_of(records[0]), store_timestamp_of(records[-1]))
        return True

    def _add(self, units: Sequence[Unit], portion: bytes, first_ms: int, last_ms: int) -> None:
        sizes = [size for _, size, _ in units]
        places = accumulate(sizes[:-1], initial=self._base + self._bytes)
        entries = b"".join(map(UNIT.pack, places, sizes, [code for _, _, code in units]))
        self._times = (self._times[0] if self._messages else first_ms, last_ms)
        self._messages.append(portion)
        self._entries.append(entries)
        self._crc, self._entries_crc = crc32(portion, self._crc), crc32(entries, self._entries_crc)
        self._bytes += len(portion)
        self._next += len(units)
        last_position, last_size, _ = units[-1]
        self._log_end = last_position + last_size

    def _pass_blanks(self, count: int) -> bool:
        """Nothing is there for these offsets: a segment begins behind them."""
        if self._messages:
            return False
        self._next += count
        self._first = self._next
        return True

    @property
    def passed(self) -> int:
        """Up to where there is nothing to upload, when `batch` is None."""
        return self._next

    def batch(self) -> Batch | None:
        """What was read; None when that is nothing."""
        if not self._messages:
            return None
        range_ = self._queue, self._first, self._next, self._base
        objects = self._messages, self._entries, self._bytes
        checks = self._crc, self._entries_crc
        return Batch(*range_, *objects, *self._times, self._log_end, *checks, b"".join(self._items))
