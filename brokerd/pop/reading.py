"""Reading messages of a queue that are named by their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.pop.order.group_order import name_of_group
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.record.fields import properties_of, queue_offset_of

NO_BYTE_LIMIT: Final = 1 << 62


def read_offsets(reads: StoreReads, topic: str, queue_id: int, offsets: Sequence[int]) -> dict[int, bytes]:
    """The records at exactly these ascending queue offsets; those that are gone are left out. Raises CorruptedFile."""
    return read_first(reads, topic, queue_id, offsets, NO_BYTE_LIMIT)[0]


def message_group_at(reads: StoreReads, topic: str, queue_id: int, offset: int) -> str:
    """The message group of one message; empty where it has none, or cannot be read."""
    try:
        found = read_offsets(reads, topic, queue_id, [offset]).get(offset)
    except LogboomError:
        return ""
    return name_of_group(properties_of(found)).decode(errors="replace") if found is not None else ""


def read_first(
    reads: StoreReads, topic: str, queue_id: int, offsets: Sequence[int], max_bytes: int
) -> tuple[dict[int, bytes], int]:
    """The same of the first of the offsets, until there are about `max_bytes`, and how many of the offsets these were.

    Raises CorruptedFile, and RequestError when some of them are not here yet."""
    found: dict[int, bytes] = {}
    wanted = set(offsets)
    position = 0
    while position < len(offsets) and max_bytes > 0:
        first = offsets[position]
        count = len(offsets) - position
        if offsets[-1] - first != count - 1:
            count = 1
        while position + count < len(offsets) and offsets[position + count] == first + count:
            count += 1
        result = reads.read_nearest(topic, queue_id, first, count, max_bytes)
        if result.status is GetStatus.BEING_FETCHED:
            raise RequestError(
                codes.SYSTEM_BUSY, f"message {first} of {topic} is being fetched from the tier; try again"
            )
        if len(result.records) == count and result.next_offset == first + count:  # all of them, as usual
            found.update(zip(range(first, first + count), result.records, strict=True))
            max_bytes -= sum(map(len, result.records))
            position += count
            continue
        for record in result.records:
            offset = queue_offset_of(record)
            if offset in wanted:
                found[offset] = record
                max_bytes -= len(record)
        # A read that starts before the queue's first message, or in a removed file, says where to go on.
        behind = max(result.next_offset, first + 1)
        while position < len(offsets) and offsets[position] < behind:
            position += 1
    return found, position
