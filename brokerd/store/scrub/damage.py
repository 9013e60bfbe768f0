"""From where to where a log is damaged (pure).

The walk along a log stops at a record boundary behind which nothing intact starts. What is damaged ends where the next intact
record, or a filler, starts: mostly the very next one, which the damaged record's size still tells; else the first one that is
found. In a message's body may be what looks like a record of that place. So an end is a guess until the bytes that belong in
between are known; when those do not end there, the next end is tried.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.store.log.derive import RecordShape, derive_range, intact_record_at
from brokerd.store.log.layout import file_start
from brokerd.store.start.decisions import find_record
from remoting.record.codec import encode_filler
from remoting.record.layout import BORDER, FILLER_BYTES, RECORD_OVERHEAD_BYTES
from remoting.record.walk import Stop

_CHUNK_BYTES: Final = 1 << 20

Read = Callable[[int, int], bytes]


class Damage(NamedTuple):
    """Bytes of the log that are not what was stored; both ends are record boundaries of one file."""

    start: int
    end: int


def starts_intact(read: Read, offset: int, shape: RecordShape) -> bool:
    """Whether an intact record or a filler starts at the offset."""
    if intact_record_at(read, offset, shape) is not None:
        return True
    rest = shape.file_size - offset % shape.file_size
    return rest >= FILLER_BYTES and read(offset, FILLER_BYTES) == encode_filler(rest)


def find_damage(read: Read, start: int, limit: int, shape: RecordShape) -> Damage | None:
    """What is damaged from the record boundary `start` on, None when what starts there is intact. `limit` is the log's end."""
    if starts_intact(read, start, shape):
        return None
    limit = min(limit, file_start(start, shape.file_size) + shape.file_size)
    border = read(start, BORDER.size)
    if len(border) == BORDER.size:
        end = start + BORDER.unpack(border)[0]
        if start + RECORD_OVERHEAD_BYTES <= end <= limit and (end == limit or starts_intact(read, end, shape)):
            return Damage(start, end)
    return Damage(start, next_intact(read, start + 1, limit, shape))


def first_damage(read: Read, start: int, end: int, limit: int, shape: RecordShape) -> Damage | None:
    """The first damage in `[start, end)`, both record boundaries; None when all records there are intact."""
    for derived in derive_range(read, start, end, shape.checked(), _CHUNK_BYTES):
        if derived.stop is not Stop.END:
            return find_damage(read, derived.end_offset, limit, shape)
    return None


def next_intact(read: Read, start: int, limit: int, shape: RecordShape) -> int:
    """The first offset in `[start, limit)`, of one file, where an intact record starts; `limit` without one."""
    found = find_record(read, start, limit, shape)
    return limit if found is None or found >= limit else found
