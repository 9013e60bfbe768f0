"""What a start does with a log of unknown end: where to begin checking, and whether what was found may be the whole (pure).

A crash may lose anything that was not synced, in any order: a torn record, a hole, even whole records behind a hole. All of that
lies behind what the checkpoint proves durable. Damage in front of that position cannot come from a crash. Then records that were
acknowledged are lost here, and continuing would make that loss the truth: the store refuses to start and says what can be done.

Behind that position it may be either, since the page is written without a sync and may be far behind after a loss of power. It is
a crash when bytes are missing (`lacks_bytes`) and nothing intact follows: then the log simply ends there. Otherwise it is
suspect, which is told to the controllers, and costs nothing while another copy lives. So is a log that has a hole when the
checkpoint itself is lost.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.store.log.derive import RecordShape, derive, intact_record_at
from brokerd.store.log.layout import file_start
from brokerd.store.start.checkpoint_page import Positions
from remoting.errors import CorruptedFile
from remoting.record.layout import BORDER, RECORD_OVERHEAD_BYTES, Field
from remoting.record.walk import START_BYTES, find_marks, look
from remoting.torn_write import SECTOR_BYTES, has_unwritten_sector

_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)
# Behind so many zeros in a row nothing is looked for: nobody has so much under way without a sync.
MOST_ZEROS_BYTES = 64 << 20
# What a record without topic, properties or checksum may end with: its properties' length.
_NATURAL_ZEROS = 2
# Of a record's begin, whose size and mark are never all zeros.
_LEAST_BEGIN_BYTES = 8

Read = Callable[[int, int], bytes]


def decide_start(known: Positions | None, min_offset: int, end_offset: int) -> int:
    """Where checking begins: some way before what is not proven; with the whole log when nothing is known."""
    if known is None:
        return min_offset
    return max(min_offset, min(known.recheck_offset, known.flushed_offset, known.queues_offset, end_offset))


def decide_queues_start(known: Positions | None, min_offset: int, end: int) -> int:
    """From where consume queues must be derived again; everything before is in their files."""
    if known is None:
        return min_offset
    return max(min_offset, min(known.queues_offset, end))


def decide_confirm_offset(known: Positions | None, min_offset: int, end: int, *, marked: int = -1) -> int:
    """How far the log was known to be on enough replicas: what may be shown to consumers before anybody says more. Without a
    checkpoint it is what the log itself says, `marked`: with less a broker would know no topics and groups until it has heard
    from a master, and tell those who ask that there are none."""
    return max(min_offset, min(marked if known is None else known.confirm_offset, end))


def judge_end(end: int, known: Positions | None) -> None:
    """Raise CorruptedFile when the log cannot rightly end at `end`, the end of its last whole record."""
    if known is not None and end < known.flushed_offset:
        raise CorruptedFile(
            f"the commitlog is damaged: no valid record starts at offset {end}, although everything before "
            f"{known.flushed_offset} had been durable. Restore the file from a copy; or move this broker's data directory away, "
            "so that it copies the log from its master; or, when no other copy exists, start once with "
            f"--set store.truncate_damaged_log=true to give up everything from offset {end} on"
        )


def lacks_bytes(read: Read, offset: int, shape: RecordShape) -> bool:
    """Whether what stands at the offset, which is no intact record, is what a crash leaves of a write: nothing, its first bytes,
    or a record of which a sector was never written."""
    start = read(offset, START_BYTES)
    _, size, is_record = look(start, 0, offset, shape.file_size, shape.max_record_bytes)
    if is_record and size:
        found = read(offset, size)
        if _has_rotten_size(found, offset, shape):
            return False
        missing = len(found) - len(found.rstrip(b"\0"))
        return len(found) < size or missing > _NATURAL_ZEROS or has_unwritten_sector(found, offset)
    # No begin of a record: of one that was written whole, all sectors with its begin would be there.
    room = SECTOR_BYTES - offset % SECTOR_BYTES
    found = read(offset, room + SECTOR_BYTES)
    if len(found.rstrip(b"\0")) < RECORD_OVERHEAD_BYTES and not any(found[RECORD_OVERHEAD_BYTES:]):
        return len(found.rstrip(b"\0")) < START_BYTES
    first, second = found[:room], found[room:]
    if len(first) >= _LEAST_BEGIN_BYTES and not any(first[:START_BYTES]):
        return True
    return len(first) < START_BYTES and len(second) == SECTOR_BYTES and not any(second)


def _has_rotten_size(found: bytes, offset: int, shape: RecordShape) -> bool:
    """Whether the bytes begin with a record that is whole, but for what it says of its size: it would look like a longer one."""
    written = len(found.rstrip(b"\0"))
    for size in range(written, min(written + _NATURAL_ZEROS, len(found)) + 1):
        record = size.to_bytes(Field.SIZE.size, "big") + found[Field.SIZE.size : size]
        if derive(record, offset, shape.checked()).end_offset == offset + size:
            return True
    return False


def find_record(
    read: Read, start: int, end: int, shape: RecordShape, most_zeros_bytes: int | None = None
) -> int | None:
    """The first offset in `[start, end)` where an intact record starts at no known boundary; None without one, or when more than
    `most_zeros_bytes` in a row are zero before it."""
    zeros = 0
    while start < end:
        data = read(start, _CHUNK_BYTES)
        if not data:
            return None
        is_blank = _ZEROS.startswith(data)
        zeros = zeros + len(data) if is_blank else 0
        if most_zeros_bytes is not None and zeros > most_zeros_bytes:
            return None
        for position in () if is_blank else find_marks(data):
            if intact_record_at(read, start + position, shape) is not None:
                return start + position
        file_end = file_start(start, shape.file_size) + shape.file_size
        next_start = start + len(data)
        start = next_start if next_start >= file_end else max(start + 1, next_start - BORDER.size)
    return None
