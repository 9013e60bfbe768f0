"""What a start does with a log of unknown end: where to begin checking, and whether what was found may be the whole (pure).

A crash may lose anything that was not synced, in any order: a torn record, a hole, even whole records behind a hole. All of that
lies behind what the checkpoint proves durable, and the log simply ends before it. Damage in front of that position cannot come
from a crash. Then records that were acknowledged are lost here, and continuing would make that loss the truth: the store refuses
to start and says what can be done.
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.store.derived.derive import RecordShape, Stop, derive
from brokerd.store.log.layout import HEAD_BYTES, file_start
from brokerd.store.start.checkpoint_page import Positions
from remoting.errors import CorruptedFile
from remoting.record.layout import MAGIC_V1, MAGIC_V2

_MAGICS = (MAGIC_V1.to_bytes(4, "big"), MAGIC_V2.to_bytes(4, "big"))
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
    overlap = 8
    while start < end:
        data = read(start, _CHUNK_BYTES)
        if not data:
            return None
        for candidate in _candidates(data, start):
            head = read(candidate, HEAD_BYTES)
            if int.from_bytes(head[28:36], "big") == candidate and _is_record(read, candidate, shape):
                return candidate
        file_end = file_start(start, shape.file_size) + shape.file_size
        next_start = start + len(data)
        start = next_start if next_start >= file_end else max(start + 1, next_start - overlap)
    return None


def _candidates(data: bytes, start: int) -> list[int]:
    """Offsets whose bytes 4 to 8 are a record's magic."""
    found = []
    for magic in _MAGICS:
        position = data.find(magic, 4)
        while position != -1:
            found.append(start + position - 4)
            position = data.find(magic, position + 1)
    return sorted(found)


def _is_record(read: Read, offset: int, shape: RecordShape) -> bool:
    size = int.from_bytes(read(offset, 4), "big")
    if not 0 < size <= shape.max_record_bytes:
        return False
    derived = derive(read(offset, size), offset, shape.checked())
    return derived.stop is Stop.END and derived.end_offset == offset + size
