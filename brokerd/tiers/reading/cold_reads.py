"""Reading queues of the tier: at once what is in the cache; the rest is fetched, and the reader asks again (shell).

A read never waits. What is missing is fetched, once for all who ask for it, and who listens is told of the queue when it is there
or cannot be had; an error is kept for a moment, and given to who asks then. A fetch is a range of entries and one of messages.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from brokerd.store.log.record_checks import FirstAstray, first_astray
from brokerd.store.store_reads import ColdMiss, ColdRead
from brokerd.store.unit import UNIT
from brokerd.tiers.objects.interface import NotThere, ObjectStore, ObjectStoreError
from brokerd.tiers.reading.cache import Cache, Piece
from brokerd.tiers.reading.message_bytes import MessageBytes
from brokerd.tiers.reading.places import Places
from brokerd.tiers.reading.windows import LEAST, Windows
from brokerd.tiers.upload.uploader import Loop
from remoting import codes
from remoting.errors import RequestError
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import QueueSegments, Segment

log = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
_ERROR_S: Final = 1.0
_AHEAD: Final = 2  # the next window is fetched when so much of this part of the last one is read
_PIECES_AHEAD: Final = 2  # of who reads on and on: each takes as long as two requests, whatever its size

Segments = Callable[[Queue], QueueSegments]
Work = Coroutine[Any, Any, None]


class Wanted(NamedTuple):
    """Messages from `first` on that somebody asked for."""

    queue: Queue
    first: int


class ColdReads:
    """`store.store_reads.Cold`. `listeners` hear of queues in which more can be read than a moment ago, or never will.

    `first_astray` checks what was fetched, as `record_checks.first_astray` does; `counted` has the time counted that a fetch
    takes of the event loop, and `most_bytes` are about the most that one brings, unless one message has more.
    """

    def __init__(
        self,
        objects: ObjectStore,
        segments: Segments,
        loop: Loop,
        cache_bytes: int,
        in_flight: int,
        first_astray: FirstAstray = first_astray,
    ) -> None:
        self.listeners: list[Callable[[str, int], None]] = []
        self._first_astray = first_astray
        self.counted: Callable[[Callable[[], Work]], Work] = lambda work: work()
        self.most_bytes: Callable[[], int] = lambda: MOST_BYTES
        self._objects = objects
        self._messages = MessageBytes(objects, loop.aside_of_reads)
        self._segments = segments
        self._loop = loop
        self._windows = Windows()
        self.cache = Cache(cache_bytes, self._dropped)
        self.hits = self.misses = self.messages_out = 0
        self._in_flight = in_flight
        self._fetching: dict[Wanted, int] = {}  # up to which offset
        self._line: OrderedDict[Wanted, tuple[int, Segment]] = OrderedDict()  # up to which offset, and of what
        self._errors: dict[Wanted, ObjectStoreError] = {}
        self._callbacks: dict[Wanted, list[Callable[[], None]]] = {}
        self._places = Places(self._record)

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        segments = self._segments(Queue(topic, queue_id))
        return segments.first, segments.end

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        end: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None,
    ) -> ColdRead:
        wanted = Wanted(Queue(topic, queue_id), queue_offset)
        found = self._found_at(wanted, end, max_count)
        if isinstance(found, ColdRead):
            return found
        last = min(end, found.end)
        next_offset, records = _select(found, queue_offset, last, max_count, max_bytes, tags_codes)
        self._was_read(wanted, found, next_offset, max_count, end)
        self.messages_out += len(records)
        return ColdRead(next_offset, records)

    def read_joined(
        self, topic: str, queue_id: int, queue_offset: int, end: int, max_count: int, max_bytes: int
    ) -> ColdRead:
        wanted = Wanted(Queue(topic, queue_id), queue_offset)
        found = self._found_at(wanted, end, max_count)
        if isinstance(found, ColdRead):
            return found
        last = min(end, found.end, queue_offset + max(1, max_count))
        next_offset = found.fitting(queue_offset, last, max_bytes)
        self._was_read(wanted, found, next_offset, max_count, end)
        self.messages_out += next_offset - queue_offset
        last_bytes = found.place(next_offset) - found.place(next_offset - 1)
        return ColdRead(next_offset, (), body=found.joined(queue_offset, next_offset), last_bytes=last_bytes)

    def _found_at(self, wanted: Wanted, end: int, max_count: int) -> Piece | ColdRead:
        """The piece that has the message, or why there is none; then it may have been asked for."""
        queue, queue_offset = wanted
        segment = self._segments(queue).at(queue_offset)
        if segment is None or segment.first >= end:
            return ColdRead(end, [], is_missing=True)
        if queue_offset < segment.first:
            return ColdRead(segment.first, [], is_missing=True)
        piece = self.cache.find(queue, queue_offset)
        if piece is None:
            self.misses += 1
            self._want(queue, queue_offset, min(end, segment.end), segment, max_count)
            return ColdRead(queue_offset, [], is_coming=True)
        return piece

    def _was_read(self, wanted: Wanted, piece: Piece, next_offset: int, max_count: int, end: int) -> None:
        queue, queue_offset = wanted
        self.hits += 1
        piece.read_to = max(piece.read_to, next_offset)
        self._windows.read(queue, queue_offset, next_offset, max_count, was_last=next_offset == piece.end)
        self._read_ahead(queue, piece, next_offset, end)

    def record(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        queue = Queue(topic, queue_id)
        segment = self._segments(queue).at(queue_offset)
        if segment is None or queue_offset < segment.first:
            return None
        return self._record(queue, segment, queue_offset)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        queue = Queue(topic, queue_id)
        segment = self._segments(queue).at(queue_offset)
        if segment is None or queue_offset < segment.first:
            return -1
        return self._places.store_timestamp(queue, segment, queue_offset)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, end: int) -> int | None:
        queue = Queue(topic, queue_id)
        segment = self._segments(queue).since(timestamp_ms)
        if segment is None or segment.first >= end:
            return None
        found = self._places.first_since(queue, segment, timestamp_ms, end)
        return found if found < end else None

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int, end: int) -> int | None:
        queue = Queue(topic, queue_id)
        segment = self._segments(queue).over(physical_offset)
        if segment is None or segment.first >= end:
            return None
        return self._places.at_position(queue, segment, physical_offset)

    def last_before(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        return self._segments(Queue(topic, queue_id)).last_before(queue_offset)

    async def fetched_record(self, queue: Queue, queue_offset: int) -> bytes | None:
        """One message, for who can wait; None when it is not there. Raises ObjectStoreError."""
        segment = self._segments(queue).at(queue_offset)
        if segment is None or queue_offset < segment.first:
            return None
        piece = self.cache.find(queue, queue_offset)
        if piece is None:
            piece = await self._piece(queue, queue_offset, queue_offset + 1, segment)
        return piece.record(queue_offset)

    def _record(self, queue: Queue, segment: Segment, queue_offset: int) -> bytes:
        """One message of the segment. Raises ColdMiss, and RequestError when it cannot be had."""
        piece = self.cache.find(queue, queue_offset)
        if piece is not None:
            return piece.record(queue_offset)
        self._want(queue, queue_offset, segment.end, segment, 1)
        waiting = self._callbacks.setdefault(Wanted(queue, queue_offset), [])
        raise ColdMiss(f"message {queue_offset} of {queue.topic}", waiting.append)

    # ---- fetching

    def _want(self, queue: Queue, first: int, end: int, segment: Segment, asked: int) -> int:
        """Have it fetched, as soon as no more than so many others are; who listens is told. Up to which offset it is."""
        wanted = Wanted(queue, first)
        error = self._errors.get(wanted)
        if error is not None:
            raise RequestError(
                codes.SYSTEM_ERROR, f"message {first} of {queue.topic} cannot be read from the tier: {error}"
            )
        if wanted in self._fetching:
            return self._fetching[wanted]
        if wanted in self._line:
            return self._line[wanted][0]
        fitting = self.most_bytes() * segment.messages // max(1, segment.message_bytes)
        count = max(asked, min(self._windows.at(queue, first), fitting))
        end = self.cache.room_behind(queue, first, min(end, first + count))
        self._line[wanted] = end, segment
        self._go_on()
        return end

    def _go_on(self) -> None:
        while self._line and len(self._fetching) < self._in_flight:
            wanted, (end, segment) = self._line.popitem(last=False)
            self._fetching[wanted] = end
            what = f"fetch {wanted.queue.topic}/{wanted.queue.queue_id} from the tier"
            self._loop.spawn(self.counted(partial(self._fetch, wanted, end, segment)), what)

    def _read_ahead(self, queue: Queue, piece: Piece, next_offset: int, end: int) -> None:
        """Have what follows fetched while the reader is still busy with what he has."""
        window = self._windows.at(queue, next_offset)
        if piece.end - next_offset > window // _AHEAD or piece.end >= end:
            return
        first, pieces = piece.end, _PIECES_AHEAD if window > LEAST else 1
        while pieces and first < end and len(self._fetching) * 2 < self._in_flight:
            first, pieces = self._have(queue, first, end, window), pieces - 1

    def _have(self, queue: Queue, first: int, end: int, window: int) -> int:
        """Have a piece from there on fetched, unless it is there or on its way: where the next one begins, the end when it is not
        known."""
        piece = self.cache.find(queue, first)
        if piece is not None:
            return piece.end
        segment = self._segments(queue).at(first)
        if segment is None or segment.first > first or Wanted(queue, first) in self._errors:
            return end
        return self._want(queue, first, min(end, segment.end), segment, window)

    async def _fetch(self, wanted: Wanted, end: int, segment: Segment) -> None:
        queue, first = wanted
        try:
            found, piece = await self._found(queue, first, end, segment)
            if self._segments(queue).at(first) == found:
                self.cache.add(piece)
        except ObjectStoreError as error:
            log.warning("messages of %s/%d from %d on cannot be read from the tier: %s", *queue, first, error)
            self._errors[wanted] = error
            self._loop.scheduler.call_later(_ERROR_S, self._errors.pop, wanted, None)
        finally:
            self._fetching.pop(wanted, None)
            self._go_on()
            for listener in self.listeners:
                listener(*queue)
            for callback in self._callbacks.pop(wanted, ()):
                self._loop.scheduler.call_soon(callback)

    async def _found(self, queue: Queue, first: int, end: int, segment: Segment) -> tuple[Segment, Piece]:
        """And where it was: what is not there any more may have been merged, so look again, once. Raises ObjectStoreError."""
        try:
            return segment, await self._piece(queue, first, end, segment)
        except NotThere:
            now = self._segments(queue).at(first)
            if now is None or now == segment or first < now.first:
                raise
            return now, await self._piece(queue, first, min(end, now.end), now)

    async def _piece(self, queue: Queue, first: int, end: int, segment: Segment) -> Piece:
        """Raises ObjectStoreError, also when what is there is not what was stored."""
        start = (first - segment.first) * ENTRY_BYTES
        entries = bytes(await self._objects.get(segment.entries_name(*queue), start, (end - first) * ENTRY_BYTES))
        count = _count_of(entries, segment)
        if not count:
            raise NotThere(f"the entries of {segment.entries_name(*queue)} are not what was stored")
        entries = entries[: count * ENTRY_BYTES]
        begin = UNIT.unpack_from(entries)[0]
        last_place, last_size, _ = UNIT.unpack_from(entries, len(entries) - ENTRY_BYTES)
        content = await self._messages.read(queue, segment, begin - segment.base, last_place + last_size - begin)
        # by a helper thread: who reads what is in files does not wait for a piece of megabytes
        if await self._loop.aside_of_reads(partial(self._first_astray, content, begin, entries)) is not None:
            raise NotThere(f"messages in {segment.messages_name(*queue)} are not what was stored")
        return Piece(queue, first, entries, content)

    def _dropped(self, piece: Piece) -> None:
        self._windows.dropped(piece.queue, piece.read_to)


def _count_of(entries: bytes, segment: Segment) -> int:
    """How many messages from the first one on are fetched at once; 0 when the entries cannot be right."""
    count = len(entries) // ENTRY_BYTES
    begin = UNIT.unpack_from(entries)[0]

    def length_of(number: int) -> int:
        place, size, _ = UNIT.unpack_from(entries, number * ENTRY_BYTES)
        length: int = place + size - begin
        return length

    if length_of(count - 1) > MOST_BYTES:
        count = max(1, bisect_right(range(count), MOST_BYTES, key=length_of))
    is_right = segment.base <= begin and 0 < length_of(count - 1) <= segment.message_end - begin
    return count if is_right else 0


def _select(
    piece: Piece, first: int, end: int, max_count: int, max_bytes: int, tags_codes: Collection[int] | None
) -> tuple[int, Sequence[bytes]]:
    """Where to go on, and the records of the messages that are wanted: at least one if there is one."""
    records: list[bytes] = []
    offset = first
    while offset < end and len(records) < max_count:
        if tags_codes is None or piece.code(offset) in tags_codes:
            record = piece.record(offset)
            max_bytes -= len(record)
            if max_bytes < 0 and records:
                break
            records.append(record)
        offset += 1
    return offset, records
