"""Reading queues of the tier: at once what is in the cache; the rest is fetched, and the reader asks again (shell).

A read never waits. What is missing is fetched, once for all who ask for it, and who listens is told of the queue when it is there
or cannot be had; an error is kept for a moment, and given to who asks then. A fetch is a range of entries and one of messages, or
several side by side, each of which is given out when it is there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from brokerd.store.cold import ColdMiss, ColdRead
from brokerd.store.log.record_checks import FirstAstray, first_astray
from brokerd.tiers.objects.interface import NotThere, ObjectStore, ObjectStoreError
from brokerd.tiers.reading.cache import Cache, Piece
from brokerd.tiers.reading.fetch_line import FetchLine, Wanted
from brokerd.tiers.reading.message_bytes import MessageBytes
from brokerd.tiers.reading.pieces import MOST_BYTES, PART_BYTES, Range, parts_of, read_at_once, read_part
from brokerd.tiers.reading.places import Places
from brokerd.tiers.reading.windows import LEAST, Windows
from brokerd.tiers.upload.uploader import Loop
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Form, QueueSegments, Segment

log = logging.getLogger(__name__)

_FITTING: Final = 15, 16  # of such a part, so that messages a bit longer than others on average make no second one
_ERROR_S: Final = 1.0
_CACHE_PART: Final = 4  # of the cache, at most, for one fetch
_TOLD_AT_ONCE: Final = 64  # queues
_AHEAD: Final = 2  # the next window is fetched when so much of this part of the last one is read

Segments = Callable[[Queue], QueueSegments]
Work = Coroutine[Any, Any, None]


class Ahead(NamedTuple):
    """`most_bytes` are about the most that one fetch brings, unless one message has more. So many windows are fetched ahead of
    who reads on and on."""

    most_bytes: int
    windows: int


# as fast as it can be had: a window takes as long as two requests, whatever its size
AT_FULL_SPEED: Final = Ahead(MOST_BYTES, 2)


class ColdReads:
    """`store.store_reads.Cold`. `listeners` hear of queues in which more can be read than a moment ago, or never will.

    `first_astray` checks what was fetched, as `record_checks.first_astray` does; `counted` has the time counted that a fetch
    takes of the event loop, and `ahead` is how much is fetched now. `forsaken` counts fetches that waited for others until nobody
    waited for them any more, and were not made.
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
        self.ahead: Callable[[], Ahead] = lambda: AT_FULL_SPEED
        self._objects = objects
        self._messages = MessageBytes(objects, loop.aside)
        self._segments = segments
        self._loop = loop
        self._windows = Windows()
        self.cache = Cache(cache_bytes, self._dropped)
        self.hits = self.misses = self.messages_out = self.forsaken = 0
        self._in_flight = in_flight
        self._fetching: dict[Wanted, int] = {}  # up to which offset
        self._line = FetchLine()
        self._forsaken: dict[Queue, None] = {}  # of which somebody has to be told so
        self._errors: dict[Wanted, ObjectStoreError] = {}
        self._callbacks: dict[Wanted, dict[Callable[[], None], None]] = {}
        self._places = Places(self._record)

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        segments = self._segments(Queue(topic, queue_id))
        return segments.first, segments.end

    def run_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        segment = self._segments(Queue(topic, queue_id)).at(queue_offset)
        return queue_offset if segment is None or queue_offset < segment.first else segment.end

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
        found = self._found_at(wanted, end, max_count, max_bytes)
        if isinstance(found, ColdRead):
            return found
        last = min(end, found.end)
        next_offset, records = _select(found, queue_offset, last, max_count, max_bytes, tags_codes)
        self._was_read(
            wanted, found, next_offset, end, _asked(max_count, max_bytes, found.messages, len(found.content))
        )
        self.messages_out += len(records)
        return ColdRead(next_offset, records)

    def read_joined(
        self, topic: str, queue_id: int, queue_offset: int, end: int, max_count: int, max_bytes: int
    ) -> ColdRead:
        wanted = Wanted(Queue(topic, queue_id), queue_offset)
        found = self._found_at(wanted, end, max_count, max_bytes)
        if isinstance(found, ColdRead):
            return found
        last = min(end, found.end, queue_offset + max(1, max_count))
        next_offset = found.fitting(queue_offset, last, max_bytes)
        self._was_read(
            wanted, found, next_offset, end, _asked(max_count, max_bytes, found.messages, len(found.content))
        )
        self.messages_out += next_offset - queue_offset
        last_bytes = found.place(next_offset) - found.place(next_offset - 1)
        return ColdRead(next_offset, (), body=found.joined(queue_offset, next_offset), last_bytes=last_bytes)

    def _found_at(self, wanted: Wanted, end: int, max_count: int, max_bytes: int) -> Piece | ColdRead:
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
            self._miss(wanted, end, segment, _asked(max_count, max_bytes, segment.messages, segment.message_bytes))
            return ColdRead(queue_offset, [], is_coming=True)
        return piece

    def _miss(self, wanted: Wanted, end: int, segment: Segment, asked: int) -> None:
        """Have it fetched. Who comes newly and asks for many at once reads on, so what follows is fetched, too."""
        queue, first = wanted
        last = min(end, segment.end)
        if self._windows.is_known(queue, first) or asked <= LEAST:
            self._want(queue, first, last, segment, self._windows.at(queue, first))
        else:
            first = self._want(queue, first, last, segment, asked)
            self._have_up_to(queue, first, first + asked, end, asked)

    def _was_read(self, wanted: Wanted, piece: Piece, next_offset: int, end: int, asked: int) -> None:
        queue, queue_offset = wanted
        self.hits += 1
        self.cache.was_read(piece, next_offset, once=asked > LEAST)
        self._windows.read(queue, queue_offset, next_offset, asked, was_last=next_offset == piece.end)
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
            asked = Range(queue, queue_offset, queue_offset + 1, segment)
            piece = await self._piece(asked, await self._entries(asked))
        return piece.record(queue_offset)

    def _record(self, queue: Queue, segment: Segment, queue_offset: int) -> bytes:
        """One message of the segment. Raises ColdMiss, and RequestError when it cannot be had."""
        piece = self.cache.find(queue, queue_offset)
        if piece is not None:
            return piece.record(queue_offset)
        self._want(queue, queue_offset, segment.end, segment, self._windows.at(queue, queue_offset))
        waiting = self._callbacks.setdefault(Wanted(queue, queue_offset), {})

        def when_fetched(callback: Callable[[], None]) -> Callable[[], None]:
            waiting[callback] = None
            return partial(waiting.pop, callback, None)

        raise ColdMiss(f"message {queue_offset} of {queue.topic}", when_fetched)

    # ---- fetching

    def _want(self, queue: Queue, first: int, end: int, segment: Segment, window: int) -> int:
        """Have it fetched, as soon as no more than so many others are; who listens is told. Up to which offset it is:
        no more than the window, and of many no more than there is room for. Raises RequestError when it was not to be had a
        moment ago, or too many fetches wait."""
        wanted = Wanted(queue, first)
        error = self._errors.get(wanted)
        if error is not None:
            raise RequestError(
                codes.SYSTEM_ERROR, f"message {first} of {queue.topic} cannot be read from the tier: {error}"
            )
        if wanted in self._fetching:
            return self._fetching[wanted]
        standing_end = self._line.ask(wanted, self._loop.scheduler.time())
        if standing_end is not None:
            return standing_end
        room = min(self.ahead().most_bytes, self.cache.max_bytes // _CACHE_PART)
        count = min(window, max(LEAST, room * segment.messages // max(1, segment.message_bytes)))
        end = self.cache.room_behind(queue, first, min(end, first + count))
        self._line.add(wanted, end, segment, self._loop.scheduler.time())
        self._go_on()
        return end

    def _go_on(self) -> None:
        now_s = self._loop.scheduler.time()
        while self._line and len(self._fetching) < self._in_flight:
            standing = self._line.take()
            if standing.is_forsaken(now_s):
                self._forsake(standing.wanted)
            else:
                self._begin(standing.wanted, standing.end, standing.segment)

    def _forsake(self, wanted: Wanted) -> None:
        """It is not fetched. Who still waits for it after all is told, and asks again."""
        self.forsaken += 1
        if not self._forsaken:
            self._loop.scheduler.call_soon(self._tell_forsaken)
        self._forsaken[wanted.queue] = None
        self._call_back(wanted)

    def _tell_forsaken(self) -> None:
        """Of some queues in each turn of the loop."""
        for queue in list(islice(self._forsaken, _TOLD_AT_ONCE)):
            del self._forsaken[queue]
            self._tell(queue)
        if self._forsaken:
            self._loop.scheduler.call_soon(self._tell_forsaken)

    def _tell(self, queue: Queue) -> None:
        for listener in self.listeners:
            listener(*queue)

    def _call_back(self, wanted: Wanted) -> None:
        for callback in self._callbacks.pop(wanted, ()):
            self._loop.scheduler.call_soon(callback)

    def _begin(self, wanted: Wanted, end: int, segment: Segment, entries: bytes = b"") -> None:
        self._fetching[wanted] = end
        what = f"fetch {wanted.queue.topic}/{wanted.queue.queue_id} from the tier"
        self._loop.spawn(self.counted(partial(self._fetch, wanted, end, segment, entries)), what)

    def _read_ahead(self, queue: Queue, piece: Piece, next_offset: int, end: int) -> None:
        """Have what follows fetched while the reader is still busy with what he has."""
        window = self._windows.at(queue, next_offset)
        if piece.end - next_offset > window // _AHEAD or piece.end >= end:
            return
        ahead = window * self.ahead().windows if window > LEAST else window
        self._have_up_to(queue, piece.end, next_offset + ahead, end, window)

    def _have_up_to(self, queue: Queue, first: int, up_to: int, end: int, window: int) -> None:
        """Have all from there on fetched, in windows, the last of which begins before `up_to`; half of what may be on its way is
        for this."""
        while first < min(up_to, end) and len(self._fetching) * 2 < self._in_flight:
            first = self._have(queue, first, end, window)

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

    async def _fetch(self, wanted: Wanted, end: int, segment: Segment, entries: bytes = b"") -> None:
        """With `entries` that were fetched already, all of that is one part."""
        queue, first = wanted
        try:
            await self._bring(wanted, end, segment, entries)
        except ObjectStoreError as error:
            log.warning("messages of %s/%d from %d on cannot be read from the tier: %s", *queue, first, error)
            self._errors[wanted] = error
            self._loop.scheduler.call_later(_ERROR_S, self._errors.pop, wanted, None)
        finally:
            self._fetching.pop(wanted, None)
            self._go_on()
            self._tell(queue)
            self._call_back(wanted)

    async def _bring(self, wanted: Wanted, end: int, segment: Segment, entries: bytes) -> None:
        """Fetch it to the cache. What is not there any more may have been merged, so look again once. Raises ObjectStoreError."""
        queue, first = wanted
        try:
            piece = await self._first_part(wanted, end, segment, entries)
        except NotThere:
            now = self._segments(queue).at(first)
            if now is None or now == segment or first < now.first:
                raise
            segment = now
            piece = await self._first_part(wanted, min(end, now.end), now, b"")
        named = self._segments(queue).at(first)
        if named is not None and segment.is_part_of(named):
            self.cache.add(piece)

    async def _first_part(self, wanted: Wanted, end: int, segment: Segment, entries: bytes) -> Piece:
        """The others are fetched beside it."""
        queue, first = wanted
        asked = Range(queue, first, end, segment)
        if entries:
            return await self._piece(asked, entries)
        at_once = self._read_at_once(asked)
        if at_once is not None:
            (entries, *others), content = await at_once
            self._fetch_others(asked, entries, others)
            return Piece(queue, first, entries, content)
        entries, *others = parts_of(await self._entries(asked))
        self._fetch_others(asked, entries, others)
        return await self._piece(asked, entries)

    def _read_at_once(self, asked: Range) -> Awaitable[tuple[list[bytes], Bytes]] | None:
        """All of it by one helper thread. None where others wait for more than a disk, and of what is long: there the parts are
        read side by side."""
        segment = asked.segment
        is_long = (asked.end - asked.first) * segment.message_bytes > PART_BYTES * segment.messages
        if is_long or segment.form is not Form.RAW:
            return None
        return self._objects.read_in_thread(partial(read_at_once, asked, self._first_astray))

    def _fetch_others(self, asked: Range, entries: bytes, others: Sequence[bytes]) -> None:
        """The parts behind the first one, whose entries these are."""
        begin = asked.first + len(entries) // ENTRY_BYTES
        self._fetching[Wanted(asked.queue, asked.first)] = begin
        for other in others:
            begin = self._fetch_beside(Wanted(asked.queue, begin), asked.segment, other)

    def _fetch_beside(self, wanted: Wanted, segment: Segment, entries: bytes) -> int:
        """Where that part ends. It is not fetched when it is there, or on its way."""
        end = wanted.first + len(entries) // ENTRY_BYTES
        if wanted not in self._fetching and self.cache.find(*wanted) is None:
            self._line.remove(wanted)
            self._begin(wanted, end, segment, entries)
        return end

    async def _entries(self, asked: Range) -> bytes:
        """Of as many messages as are fetched at once. Raises ObjectStoreError, also when they cannot be right."""
        return asked.whole_entries(await self._objects.get(asked.entries_name, *asked.entries_place))

    async def _piece(self, asked: Range, entries: bytes) -> Piece:
        """Raises ObjectStoreError, also when what is there is not what was stored."""
        return Piece(asked.queue, asked.first, entries, await self._checked(asked, entries))

    async def _checked(self, asked: Range, entries: bytes) -> Bytes:
        """The entries' messages, which a thread looked at: who reads what is in files does not wait for a piece of megabytes."""
        if asked.segment.form is Form.RAW:
            at_once = self._objects.read_in_thread(partial(read_part, asked, entries, self._first_astray))
            if at_once is not None:
                return await at_once
        content = await self._messages.read(asked.queue, asked.segment, *asked.messages_place(entries))
        await self._loop.aside(partial(asked.check, self._first_astray, content, entries))
        return content

    def _dropped(self, piece: Piece) -> None:
        self._windows.dropped(piece.queue, piece.read_to)


def _asked(max_count: int, max_bytes: int, messages: int, message_bytes: int) -> int:
    """About how many messages have room in an answer and in a part of a fetch, where so many have so many bytes."""
    of, parts = _FITTING
    return max(1, min(max_count, min(max_bytes, PART_BYTES) * of // parts * messages // max(1, message_bytes)))


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
