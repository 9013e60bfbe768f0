"""What of a queue is in the tier: its segments, in order (pure).

A segment is a pair of objects: message bytes, and the entries that point into them. Segments of a queue are disjoint and
ascending; there may be a gap between two, where local files went before they were uploaded. A table of them is kept in the
replicated log and in the manifest.

Where a store can append, the last segment of a queue may grow: its objects keep their names and get longer. So what is in an
object behind what the segment says of it is nothing, and nobody looks there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple

from remoting.tier.names import ENTRY_BYTES, Kind, object_name

MOST_OFFSET: Final = 1 << 58  # of a queue: its units have 20 bytes, and places in files are numbers of 63 bits
_MOST_NUMBER: Final = 1 << 62
# Of a segment; who reads what is compressed reads an index of 1/65536 of that at once
_MOST_MESSAGE_BYTES: Final = 1 << 40


class Form(IntEnum):
    """How a segment's message bytes are stored."""

    RAW = 0
    BLOCKS = 1  # compressed, with an index of its blocks behind them


class Segment(NamedTuple):
    """Queue offsets `[first, end)`, whose records are the `message_bytes` bytes of the queue from `base` on.

    An entry of the segment points to `base` or behind. `stored_bytes` are those of the object of messages, which are others
    when that is not `RAW`. `first_ms` and `last_ms` are the store times of the first and the last record; `log_end` is
    where the last record ended in the log, and `crc`, `entries_crc` are CRC-32 of the two objects as far as they are its own.
    """

    first: int
    end: int
    base: int
    message_bytes: int
    stored_bytes: int
    first_ms: int
    last_ms: int
    log_end: int
    epoch: int  # of the master that uploaded it, and
    number: int  # its number: they are part of the objects' names
    crc: int
    entries_crc: int
    form: Form = Form.RAW

    @property
    def messages(self) -> int:
        """How many there are."""
        return self.end - self.first

    @property
    def message_end(self) -> int:
        """Where the bytes of the next segment begin."""
        return self.base + self.message_bytes

    @property
    def object_bytes(self) -> int:
        """Of both objects."""
        return self.stored_bytes + self.messages * ENTRY_BYTES

    def is_part_of(self, other: Segment) -> bool:
        """Whether the other one is the same, or what it became when it grew."""
        mine, its = ((each.first, each.base, each.epoch, each.number, each.form) for each in (self, other))
        return mine == its and self.end <= other.end and self.message_bytes <= other.message_bytes

    def names(self, topic: str, queue_id: int) -> tuple[str, str]:
        """Of both objects."""
        return self.messages_name(topic, queue_id), self.entries_name(topic, queue_id)

    def messages_name(self, topic: str, queue_id: int) -> str:
        return object_name(topic, queue_id, Kind.MESSAGES, self.base, self.epoch, self.number)

    def entries_name(self, topic: str, queue_id: int) -> str:
        return object_name(topic, queue_id, Kind.ENTRIES, self.first * ENTRY_BYTES, self.epoch, self.number)


class QueueSegments:
    """Those of one queue. What was before `passed` is not kept any more."""

    def __init__(self, segments: Sequence[Segment] = (), passed: int = 0) -> None:
        self.passed = passed
        self._segments = list(segments)
        self._firsts = [segment.first for segment in segments]
        self.messages = sum(segment.messages for segment in segments)
        self.object_bytes = sum(segment.object_bytes for segment in segments)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def copy(self) -> QueueSegments:
        """The same, which may be changed for itself."""
        twin = QueueSegments()
        twin.passed = self.passed
        twin._segments, twin._firsts = self._segments.copy(), self._firsts.copy()
        twin.messages, twin.object_bytes = self.messages, self.object_bytes
        return twin

    @property
    def first(self) -> int:
        """The first queue offset that is there; the end when nothing is."""
        return self._segments[0].first if self._segments else self.passed

    @property
    def end(self) -> int:
        """The queue offset behind the last one that was uploaded."""
        return self._segments[-1].end if self._segments else self.passed

    @property
    def last(self) -> Segment:
        """The last one; there is one."""
        return self._segments[-1]

    @property
    def message_end(self) -> int:
        """Where the next segment's message bytes begin."""
        return self._segments[-1].message_end if self._segments else 0

    def at(self, queue_offset: int) -> Segment | None:
        """The segment that holds the offset, or the first one behind it; None behind the last."""
        number = bisect_right(self._firsts, queue_offset) - 1
        if number >= 0 and queue_offset < self._segments[number].end:
            return self._segments[number]
        return self._segments[number + 1] if number + 1 < len(self._segments) else None

    def since(self, timestamp_ms: int) -> Segment | None:
        """The first one whose last message was stored at that time or later."""
        number = bisect_left(self._segments, timestamp_ms, key=attrgetter("last_ms"))
        return self._segments[number] if number < len(self._segments) else None

    def over(self, log_offset: int) -> Segment | None:
        """The first one that ends behind a position of the log."""
        number = bisect_right(self._segments, log_offset, key=attrgetter("log_end"))
        return self._segments[number] if number < len(self._segments) else None

    def last_before(self, queue_offset: int) -> int | None:
        """The last queue offset that is there before another one; None without one."""
        number = bisect_left(self._firsts, queue_offset) - 1
        return min(queue_offset, self._segments[number].end) - 1 if number >= 0 else None

    def add(self, segment: Segment) -> None:
        """Behind all others."""
        assert segment.first >= self.end, "segments of a queue ascend"
        assert segment.base >= self.message_end, "so do their bytes"
        self._segments.append(segment)
        self._firsts.append(segment.first)
        self._count([segment], [])

    def grow(self, segment: Segment) -> None:
        """The last one is that now."""
        assert self._segments[-1].is_part_of(segment), "it is the same one, and longer"
        old, self._segments[-1] = self._segments[-1], segment
        self._count([segment], [old])

    def drop_before(self, queue_offset: int) -> list[Segment]:
        """Take out those that end at the offset or before it."""
        count = bisect_right(self._firsts, queue_offset)
        if count and self._segments[count - 1].end > queue_offset:
            count -= 1
        dropped = self._segments[:count]
        del self._segments[:count], self._firsts[:count]
        self._count([], dropped)
        self.passed = max(self.passed, self._firsts[0] if self._firsts else queue_offset)
        return dropped

    def drop_from(self, queue_offset: int) -> list[Segment]:
        """Take out those that hold the offset or begin behind it."""
        self.passed = min(self.passed, queue_offset)
        keep = bisect_left(self._firsts, queue_offset)
        if keep and self._segments[keep - 1].end > queue_offset:
            keep -= 1
        dropped = self._segments[keep:]
        del self._segments[keep:], self._firsts[keep:]
        self._count([], dropped)
        return dropped

    def holds_whole(self, first: int, end: int) -> bool:
        """Whether one segment begins at the one offset, and one ends at the other."""
        low, high = self._range(first, end)
        inside = self._segments[low:high]
        return bool(inside) and (inside[0].first, inside[-1].end) == (first, end)

    def replace(self, merged: Segment) -> list[Segment]:
        """Put one in the place of those that it was made of."""
        assert self.holds_whole(merged.first, merged.end), "whole segments are merged"
        low, high = self._range(merged.first, merged.end)
        old = self._segments[low:high]
        self._segments[low:high] = [merged]
        self._firsts[low:high] = [merged.first]
        self._count([merged], old)
        return old

    @property
    def missing(self) -> int:
        """How many messages between the first and the last one are not there."""
        return self.end - self.first - self.messages

    def _count(self, added: Sequence[Segment], gone: Sequence[Segment]) -> None:
        for segments, sign in ((added, 1), (gone, -1)):
            self.messages += sign * sum(segment.messages for segment in segments)
            self.object_bytes += sign * sum(segment.object_bytes for segment in segments)

    def _range(self, first: int, end: int) -> tuple[int, int]:
        return bisect_left(self._firsts, first), bisect_left(self._firsts, end)


def encode_segment(segment: Segment) -> list[int]:
    """As it stands in records and manifests."""
    return [int(value) for value in segment]


def decode_segment(values: Any) -> Segment:
    """Raises ValueError when that is none."""
    if not isinstance(values, list) or len(values) != len(Segment._fields):
        raise ValueError(f"a segment has {len(Segment._fields)} numbers")
    if not all(type(value) is int and 0 <= value < _MOST_NUMBER for value in values):
        raise ValueError("a segment's numbers are whole, and none is negative or larger than anything is")
    segment = Segment._make([*values[:-1], Form(values[-1])])
    if not segment.first < segment.end <= MOST_OFFSET:
        raise ValueError("a segment has messages, and ends where a queue may")
    if not 0 < segment.message_bytes <= _MOST_MESSAGE_BYTES:
        raise ValueError(f"a segment has 1 to {_MOST_MESSAGE_BYTES} bytes of messages")
    return segment
