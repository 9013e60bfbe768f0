"""What a start does with a log of unknown end: where to begin checking, and whether what was found may be the whole (pure).

A crash may lose anything that was not synced, in any order: a torn record, a hole, even whole records behind a hole. All of that
lies behind what the checkpoint proves durable, and the log simply ends before it. Damage in front of that position cannot come
from a crash. Then records that were acknowledged are lost here, and continuing would make that loss the truth: the store refuses
to start and says what can be done.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.store.derived.derive import RecordShape, intact_record_at
from brokerd.store.log.layout import file_start
from brokerd.store.start.checkpoint_page import Positions
from remoting.errors import CorruptedFile
from remoting.record.layout import BORDER
from remoting.record.walk import find_marks

_CHUNK_BYTES = 1 << 20

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


def decide_confirm_offset(known: Positions | None, min_offset: int, end: int) -> int:
    """How far the log was known to be on enough replicas: what may be shown to consumers before anybody says more."""
    return min_offset if known is None else max(min_offset, min(known.confirm_offset, end))


def judge_end(end: int, known: Positions | None, later_record: int | None) -> None:
    """Raise CorruptedFile when the log cannot rightly end at `end`, the end of its last whole record.

    `later_record` is where a record was found behind it; it matters only when nothing is known about durability.
    """
    if known is not None and end < known.flushed_offset:
        _refuse(end, f"although everything before {known.flushed_offset} had been durable")
    if known is None and later_record is not None:
        _refuse(end, f"but a whole record follows at {later_record}")


def _refuse(end: int, why: str) -> None:
    raise CorruptedFile(
        f"the commitlog is damaged: no valid record starts at offset {end}, {why}. Restore the file from a copy; or move this "
        "broker's data directory away, so that it copies the log from its master; or, when no other copy exists, start once "
        f"with --set store.truncate_damaged_log=true to give up everything from offset {end} on"
    )


def find_record(read: Read, start: int, end: int, shape: RecordShape) -> int | None:
    """The first offset in `[start, end)` where an intact record starts at no known boundary; None without one."""
    while start < end:
        data = read(start, _CHUNK_BYTES)
        if not data:
            return None
        for position in find_marks(data):
            if intact_record_at(read, start + position, shape) is not None:
                return start + position
        file_end = file_start(start, shape.file_size) + shape.file_size
        next_start = start + len(data)
        start = next_start if next_start >= file_end else max(start + 1, next_start - BORDER.size)
    return None
