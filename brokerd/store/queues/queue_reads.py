"""Reading messages of a queue: which units a read takes, and its outcome by the status table of the protocol.

Everything here sees only what was dispatched, and dispatch goes no further than the confirm offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from enum import Enum
from itertools import accumulate
from typing import NamedTuple

from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting.disk import Bytes
from remoting.record.fields import physical_offset_of

# Units looked at in one read whose filter lets nothing through, unless more messages were asked for.
_MAX_SCANNED_UNITS = 800
# Units read at once: more would often be read in vain, because the bytes are at their end before.
_UNITS_OF_READ = 512


class GetStatus(Enum):
    """What became of a read, and where to go on (`GetResult.next_offset`)."""

    FOUND = "messages were found; go on behind the last one looked at"
    NO_MATCHED_MESSAGE = "none of the messages looked at passed the filter; go on behind them"
    MESSAGE_WAS_REMOVING = "the records are gone from the log; go on behind them"
    BEING_FETCHED = "the messages are on their way from the tier; ask again at the same offset when they are there"
    OFFSET_TOO_SMALL = "the offset is below the queue's minimum; go on there"
    OFFSET_OVERFLOW_ONE = "the offset is the queue's end: nothing there yet; ask again there"
    OFFSET_OVERFLOW_BADLY = "the offset is beyond the queue's end; go on at the end"
    NO_MESSAGE_IN_QUEUE = "the queue never held a message; go on at 0"
    NO_MATCHED_LOGIC_QUEUE = "there is no such queue; go on at 0"


class GetResult(NamedTuple):
    """The answer to a read; `records` are whole stored records."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes]


class JoinedResult(NamedTuple):
    """The answer to a read whose records are wanted in one piece, which nobody changes; the last of the `messages` ends at
    `end_offset` of the log."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: Bytes = b""
    messages: int = 0
    end_offset: int = -1


NO_QUEUE = GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])


def status_of(units: list[Unit], records: list[bytes]) -> GetStatus:
    if records:
        return GetStatus.FOUND
    return GetStatus.MESSAGE_WAS_REMOVING if units else GetStatus.NO_MATCHED_MESSAGE


def joined(result: GetResult) -> JoinedResult:
    """The result with its records in one piece."""
    records = result.records
    if not records:
        return JoinedResult(*result[:4])
    last = records[-1]
    return JoinedResult(*result[:4], b"".join(records), len(records), physical_offset_of(last) + len(last))


def select_units(
    queue: ConsumeQueue, queue_offset: int, max_count: int, max_bytes: int, tags_codes: Collection[int] | None
) -> tuple[list[Unit], int, bytes, int]:
    """The wanted ones of the next units, where to go on, their bytes unless others are between them, and the sum of their sizes.

    In the common case all are wanted.
    """
    if tags_codes is None:
        units, encoded, total = _next_units(queue, queue_offset, max_count, max_bytes)
        if total < BLANK_SIZE:
            return units, queue_offset + len(units), encoded, total
    units, looked_at = _chosen_units(queue, queue_offset, max_count, max_bytes, tags_codes)
    return units, looked_at, b"", sum([size for _, size, _ in units])


def _next_units(
    queue: ConsumeQueue, queue_offset: int, max_count: int, max_bytes: int
) -> tuple[list[Unit], bytes, int]:
    """The next units as they come, as many as there is room for, at least one; their bytes, and the sum of their sizes.

    A blank one has no room behind others, so it is only ever the first.
    """
    units: list[Unit] = []
    parts: list[bytes] = []
    total = 0
    while (missing := max_count - len(units)) > 0 and queue_offset < queue.max_offset:
        encoded = queue.read_checked(queue_offset, min(missing, _UNITS_OF_READ))
        read = list(UNIT.iter_unpack(encoded))
        if not read:
            break
        sizes = [size for _, size, _ in read]
        size = sum(sizes)
        if total + size > max_bytes:
            ends = list(accumulate(sizes, initial=total))
            fitting = max(bisect_right(ends, max_bytes) - 1, 0 if units else 1)
            units += read[:fitting]
            parts.append(encoded[: fitting * UNIT_BYTES])
            total = ends[fitting]
            break
        units += read
        parts.append(encoded)
        total += size
        queue_offset += len(read)
    return units, parts[0] if len(parts) == 1 else b"".join(parts), total


def _chosen_units(
    queue: ConsumeQueue, queue_offset: int, max_count: int, max_bytes: int, tags_codes: Collection[int] | None
) -> tuple[list[Unit], int]:
    """The wanted ones of the next units, one by one, and where to go on."""
    wanted: list[Unit] = []
    room = max_bytes
    looked_at = queue_offset
    scanned = max_count if tags_codes is None else max(max_count, _MAX_SCANNED_UNITS)
    for unit in queue.checked_units(queue_offset, scanned):
        _, size, code = unit
        if (tags_codes is None or code in tags_codes) and size != BLANK_SIZE:
            room -= size
            if room < 0 and wanted:
                break
            wanted.append(unit)
        looked_at += 1
        if len(wanted) == max_count:
            break
    return wanted, looked_at


def answer_out_of_range(queue_offset: int, min_offset: int, max_offset: int) -> tuple[GetStatus, int] | None:
    """The status and next offset of a read outside of `[min_offset, max_offset)`."""
    if max_offset == 0:
        return GetStatus.NO_MESSAGE_IN_QUEUE, 0
    if queue_offset < min_offset:
        return GetStatus.OFFSET_TOO_SMALL, min_offset
    if queue_offset == max_offset:
        return GetStatus.OFFSET_OVERFLOW_ONE, max_offset
    if queue_offset > max_offset:
        return GetStatus.OFFSET_OVERFLOW_BADLY, max_offset
    return None


class Boundary(Enum):
    """Which message a search by time means."""

    LOWER = "the first message at or after the time"
    UPPER = "the last message at or before the time"
