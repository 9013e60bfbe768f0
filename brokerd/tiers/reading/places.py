"""Where in a segment something is: by store time, and by position in the log. Both ascend along a queue.

A search looks at some messages of the segment, each of which may have to be fetched; so what was learnt of a message is kept, and
a search that is begun again after a fetch goes on where it was, also when the message itself had to go from the cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from remoting.record.fields import physical_offset_of, store_timestamp_of
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment

_MOST_KNOWN: Final = 1 << 16

Record = Callable[[Queue, Segment, int], bytes]


class Place(NamedTuple):
    """When and where in the log a message was stored."""

    timestamp_ms: int
    physical_offset: int


class Places:
    """Searches. Each may raise what `record` raises, `ColdMiss` among that; then it is begun again later."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._known: OrderedDict[tuple[int, int, int], Place] = OrderedDict()  # a segment's names, and an offset of it

    def store_timestamp(self, queue: Queue, segment: Segment, queue_offset: int) -> int:
        """Of a message of the segment."""
        if queue_offset == segment.first:
            return segment.first_ms
        if queue_offset == segment.end - 1:
            return segment.last_ms
        return self._place(queue, segment, queue_offset).timestamp_ms

    def first_since(self, queue: Queue, segment: Segment, timestamp_ms: int, end: int) -> int:
        """The first message that was stored then or later; the segment has one. `end`, or what is behind it, when none is before
        that."""
        if segment.first_ms >= timestamp_ms:
            return segment.first
        before, behind = segment.first, min(segment.end - 1, end)
        while behind - before > 1:
            middle = (before + behind) // 2
            if self._place(queue, segment, middle).timestamp_ms >= timestamp_ms:
                behind = middle
            else:
                before = middle
        return behind

    def at_position(self, queue: Queue, segment: Segment, physical_offset: int) -> int | None:
        """The message that began there in the log; None without one."""
        first, end = segment.first, segment.end
        while first < end:
            middle = (first + end) // 2
            found = self._place(queue, segment, middle).physical_offset
            if found == physical_offset:
                return middle
            if found < physical_offset:
                first = middle + 1
            else:
                end = middle
        return None

    def _place(self, queue: Queue, segment: Segment, queue_offset: int) -> Place:
        key = segment.epoch, segment.number, queue_offset
        place = self._known.get(key)
        if place is None:
            record = self._record(queue, segment, queue_offset)
            place = self._known[key] = Place(store_timestamp_of(record), physical_offset_of(record))
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        return place
