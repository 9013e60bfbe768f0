"""The next messages of a queue, made ready for the tier in portions: their bytes as they stand, and entries that point into them.

The bytes are copied out of the log, so that no upload holds one of its files (storage.md 8.5, S-13), to memory that is used again
when they are in the tier. A helper thread does it, and looks at what it copied, wherever nothing is to be decided: sends go on
beside it. Otherwise a portion is what a turn of the loop may copy; a single message that is larger is one (S-1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from brokerd.store.store_reads import Run
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES
from brokerd.tiers.index.keys import Keys
from brokerd.tiers.upload.buffers import Buffer, Buffers
from remoting.checksum import crc32
from remoting.record.fields import store_timestamp_of
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment

_PORTION_MESSAGES: Final = 1024
_PORTION_BYTES: Final = 1 << 20
_ASIDE_MESSAGES: Final = 4096  # of a portion that a helper thread copies
_ASIDE_BYTES: Final = 4 << 20


class QueueReads(Protocol):
    """The local store, as far as it is read for the tier."""

    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, into: memoryview, place: int
    ) -> Run:
        """The next messages, copied to a buffer, at least one if there is one that has room; `place` is where the first one will
        be.

        Raises CorruptedFile when they begin with damage.
        """

    def run_aside(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> Callable[[memoryview, int], Run] | None:
        """What makes the same copy in a helper thread, once, or copies nothing; None where only `read_run` does it. Raises
        CorruptedFile."""


class Source(NamedTuple):
    """What batches are made of: messages, and what finds their keys."""

    reads: QueueReads
    keys: Keys


class Batch(NamedTuple):
    """Messages `[first, end)` of a queue, made ready: two objects, and what a segment says of them."""

    queue: Queue
    first: int
    end: int
    base: int
    messages: memoryview
    entries: list[bytes]
    message_bytes: int
    first_ms: int
    last_ms: int
    log_end: int
    crc: int
    entries_crc: int
    buffer: Buffer  # what the messages are in
    index_items: bytes  # by which its messages are found

    def segment(self, epoch: int, number: int) -> Segment:
        """What the batch is once it is stored under these."""
        size = self.message_bytes
        times = self.first_ms, self.last_ms
        names = epoch, number
        return Segment(
            self.first, self.end, self.base, size, size, *times, self.log_end, *names, self.crc, self.entries_crc
        )

    def follows(self, last: Segment) -> bool:
        """Whether nothing is between the segment and these."""
        return (self.first, self.base) == (last.end, last.message_end)

    def behind(self, last: Segment) -> Segment:
        """What the segment is once these, which follow it, are in its objects."""
        size = last.message_bytes + self.message_bytes
        entries_crc = last.entries_crc
        for piece in self.entries:
            entries_crc = crc32(piece, entries_crc)
        return last._replace(
            end=self.end,
            message_bytes=size,
            stored_bytes=size,
            last_ms=max(last.last_ms, self.last_ms),
            log_end=self.log_end,
            crc=crc32(self.messages, last.crc),
            entries_crc=entries_crc,
        )


class Portion(NamedTuple):
    """Messages that were copied, and what a batch says of them. Both checksums go on from those of what precedes."""

    run: Run
    message_bytes: int
    items: bytes
    crc: int
    entries_crc: int
    first_ms: int
    last_ms: int


class Builder:
    """Makes one batch of the queue's messages at these offsets, whose bytes begin at `base`: `step` until it is done, or, where
    `aside` has something for a helper thread, `took` what that gave."""

    def __init__(
        self, source: Source, buffers: Buffers, queue: Queue, offsets: range, base: int, max_bytes: int
    ) -> None:
        self._reads, self._keys = source
        self._free = buffers
        self._queue = queue
        self._first = self._next = offsets.start
        self._end = offsets.stop
        self._base = base
        self._max_bytes = max_bytes
        self._buffer: Buffer | None = None
        self._entries: list[bytes] = []
        self.bytes = 0  # of messages
        self._least = 0  # of the next message, when it had no room
        self._crc = self._entries_crc = 0
        self._items: list[bytes] = []
        self._times = (0, 0)
        self._log_end = 0

    def step(self) -> bool:
        """Copy a portion; whether there may be more. Raises CorruptedFile when the batch would begin with damage."""
        if self._is_done:
            return False
        into = self._room(_PORTION_BYTES)
        count = min(_PORTION_MESSAGES, self._end - self._next)
        run = self._reads.read_run(*self._queue, self._next, count, into, self._base + self.bytes)
        if run.entries:
            self._add(self._looked_at(run, into))
            return True
        if not run.units:
            return False
        _, size, _ = UNIT.unpack(run.units)
        return self._pass_blank() if size == BLANK_SIZE else self._make_room(size)

    def aside(self) -> Callable[[], Portion | None] | None:
        """The next portion as work for a helper thread, done before anything else is asked; None where `step` has to do it.
        Raises CorruptedFile when it begins with damage."""
        if self._is_done:
            return None
        count = min(_ASIDE_MESSAGES, self._end - self._next)
        copy = self._reads.run_aside(*self._queue, self._next, count)
        return None if copy is None else partial(self._copied, copy, self._room(_ASIDE_BYTES))

    def took(self, portion: Portion | None) -> bool:
        """The thread is done; whether there may be more."""
        if portion is None:
            return self.step()
        self._add(portion)
        return True

    @property
    def _is_done(self) -> bool:
        return self._next >= self._end or self.bytes >= self._max_bytes

    def _copied(self, copy: Callable[[memoryview, int], Run], into: memoryview) -> Portion | None:
        """A helper thread does this, and changes nothing here."""
        run = copy(into, self._base + self.bytes)
        return self._looked_at(run, into) if run.entries else None

    def _looked_at(self, run: Run, into: memoryview) -> Portion:
        last_place, last_size, _ = UNIT.unpack_from(run.entries, len(run.entries) - UNIT_BYTES)
        last = last_place - self._base - self.bytes
        portion, queue = into[: last + last_size], self._queue
        return Portion(
            run,
            len(portion),
            self._keys.items_of(queue.topic.encode(), queue.queue_id, self._next, portion),
            crc32(portion, self._crc),
            crc32(run.entries, self._entries_crc),
            store_timestamp_of(portion),
            store_timestamp_of(portion[last:]),
        )

    def _room(self, portion_bytes: int) -> memoryview:
        """What the next messages are copied to: no more than a portion may have, and than the batch may."""
        if self._buffer is None:
            self._buffer = self._free.take(self._max_bytes)
        end = min(self.bytes + max(portion_bytes, self._least), self._max_bytes)
        return memoryview(self._buffer)[self.bytes : end]

    def _make_room(self, size: int) -> bool:
        """The next message, which is so long, has no room; whether it has any."""
        if self.bytes and self.bytes + size > self._max_bytes:
            return False
        self._least = size
        if size > self._max_bytes:  # it is the first one
            self._give_back()
            self._max_bytes = size
        return True

    def _add(self, portion: Portion) -> None:
        run = portion.run
        last_position, last_size, _ = UNIT.unpack_from(run.units, len(run.units) - UNIT_BYTES)
        self._times = self._times[0] if self.bytes else portion.first_ms, portion.last_ms
        self._items.append(portion.items)
        self._entries.append(run.entries)
        self._crc, self._entries_crc = portion.crc, portion.entries_crc
        self.bytes += portion.message_bytes
        self._least = 0
        self._next += len(run.entries) // UNIT_BYTES
        self._log_end = last_position + last_size

    def _pass_blank(self) -> bool:
        """Nothing is there for this offset: a segment begins behind it."""
        if self.bytes:
            return False
        self._next += 1
        self._first = self._next
        return True

    def give_up(self) -> None:
        """There will be no batch."""
        self._give_back()
        self.bytes = 0

    def _give_back(self) -> None:
        if self._buffer is not None:
            self._free.give_back(self._buffer)
            self._buffer = None

    @property
    def passed(self) -> int:
        """Up to where there is nothing to upload, when `batch` is None."""
        return self._next

    def batch(self) -> Batch | None:
        """What was read; None when that is nothing."""
        if self._buffer is None or not self.bytes:
            self.give_up()
            return None
        range_ = self._queue, self._first, self._next, self._base
        objects = memoryview(self._buffer)[: self.bytes], self._entries, self.bytes
        checks = self._crc, self._entries_crc
        return Batch(*range_, *objects, *self._times, self._log_end, *checks, self._buffer, b"".join(self._items))
