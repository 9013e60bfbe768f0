"""Messages of a queue in the tier, in portions of whole records, back to back as a broker answers them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.record.walk import Stop, walk
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
    """What the tier has of the offsets `[start, end)`, cut where something is missing. Segments that are stored in a form that is
    not read here count as missing."""
    run: Run | None = None
    while start < end:
        segment = segments.at(start)
        if segment is None or segment.first >= end:
            break
        first, start = max(start, segment.first), segment.end
        if run is not None and (run.end != first or segment.form is not Form.RAW):
            yield run
            run = None
        if segment.form is Form.RAW:
            so_far = run or Run(first, first, [])
            run = Run(so_far.first, min(end, segment.end), [*so_far.segments, segment])
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
    name = segment.messages_name(*queue)
    is_whole, crc = (begin, stop) == (segment.base, segment.message_end), 0
    rest, needs, position = b"", 0, begin
    while position < stop:
        length = min(max(PORTION_BYTES, needs - len(rest)), stop - position)
        content = objects.get(name, position - segment.base, length)
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
