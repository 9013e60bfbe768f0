"""Messages of a queue in the tier, in portions of whole records, back to back as a broker answers them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.record.walk import Stop, walk
from remoting.tier.blocks import BLOCK_BYTES, BlockIndex, index_bytes
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Form, QueueSegments, Segment
from tasks.tier.objects import Objects, TierError

PORTION_BYTES: Final = 8 << 20
_ENTRY: Final = struct.Struct(">qiq")  # where a record begins in the queue's bytes, its size, its tags code
_ENDLESS: Final = 1 << 62


class Run(NamedTuple):
    """Queue offsets `[first, end)` of which the tier has every message, and the segments that have them."""

    first: int
    end: int
    segments: list[Segment]


def runs(segments: QueueSegments, start: int, end: int) -> Iterator[Run]:
    """What the tier has of the offsets `[start, end)`, cut where something is missing."""
    run: Run | None = None
    while start < end:
        segment = segments.at(start)
        if segment is None or segment.first >= end:
            break
        first, start = max(start, segment.first), segment.end
        if run is not None and run.end != first:
            yield run
            run = None
        so_far = run or Run(first, first, [])
        so_far.segments.append(segment)
        run = Run(so_far.first, min(end, segment.end), so_far.segments)
    if run is not None:
        yield run


def offsets_between(segments: QueueSegments, start_ms: int, end_ms: int) -> tuple[int, int]:
    """Offsets of whole segments in which messages stored in `[start_ms, end_ms)` are, if there are any."""
    found = [each for each in segments if each.first_ms < end_ms and each.last_ms >= start_ms]
    return (found[0].first, found[-1].end) if found else (segments.end, segments.end)


def portions(objects: Objects, queue: Queue, segment: Segment, start: int, end: int) -> Iterator[bytes]:
    """The records of the segment's messages `[start, end)`, which it has. Raises TierError: NotThere when it was merged.

    A segment that is read as a whole is held against its checksum; then the last portion is not given.
    """
    begin = place_of(objects, queue, segment, start)
    stop = segment.message_end if end == segment.end else place_of(objects, queue, segment, end)
    name, source = segment.messages_name(*queue), MessageBytes(objects, queue, segment)
    is_whole, crc = source.has_checksum and (begin, stop) == (segment.base, segment.message_end), 0
    rest, needs, position = b"", 0, begin
    while position < stop:
        length = min(max(PORTION_BYTES, needs - len(rest)), stop - position)
        content = source.get(position - segment.base, length)
        position += length
        crc = crc32(content, crc)
        if is_whole and position == stop and crc != segment.crc:
            raise TierError(f"{name} is damaged: its checksum is another one")
        content = rest + content
        walked = walk(content, 0, 0, _ENDLESS, _ENDLESS, in_place=False)
        if walked.stop is Stop.DAMAGED or (walked.stop is Stop.PARTIAL and position == stop):
            raise TierError(f"{name} has no whole record at {position - len(content) + walked.end - segment.base}")
        rest, needs = content[walked.end :], walked.needs
        if walked.end:
            yield content[: walked.end]


class MessageBytes:
    """Ranges of a segment's message bytes, in whichever form they are stored."""

    def __init__(self, objects: Objects, queue: Queue, segment: Segment) -> None:
        self.has_checksum = segment.form is Form.RAW  # of the bytes as they are read; blocks have their own
        self._objects = objects
        self._name = segment.messages_name(*queue)
        self._segment = segment
        self._index: BlockIndex | None = None

    def get(self, start: int, length: int) -> bytes:
        """`length` bytes, at least one, from `start` of the segment on. Raises TierError."""
        if self._segment.form is Form.RAW:
            return self._objects.get(self._name, start, length)
        try:
            return self._unpacked(start, length)
        except ValueError as error:
            raise TierError(f"{self._name} is not what was stored: {error}") from error

    def _unpacked(self, start: int, length: int) -> bytes:
        if self._index is None:
            self._index = self._read_index()
        blocks = self._index.blocks_of(start, length)
        content = self._objects.get(self._name, *self._index.place_of(blocks))
        whole = b"".join(self._index.unpacked(content, blocks, number) for number in blocks)
        skipped = start - blocks.start * BLOCK_BYTES
        return whole[skipped : skipped + length]

    def _read_index(self) -> BlockIndex:
        segment = self._segment
        size = index_bytes(segment.message_bytes)
        if size > segment.stored_bytes:
            raise ValueError("it is shorter than the index of its blocks")
        content = self._objects.get(self._name, segment.stored_bytes - size, size)
        return BlockIndex(content, segment.message_bytes, segment.stored_bytes)


def place_of(objects: Objects, queue: Queue, segment: Segment, offset: int) -> int:
    """Where the record of an offset of the segment begins, in the queue's bytes."""
    if offset == segment.first:
        return segment.base
    name = segment.entries_name(*queue)
    entry = objects.get(name, (offset - segment.first) * ENTRY_BYTES, ENTRY_BYTES)
    place: int = _ENTRY.unpack(entry)[0]
    if not segment.base <= place < segment.message_end:
        raise TierError(f"{name} is damaged: message {offset} would be at {place}")
    return place
