"""Where in a file a byte may change so that a daemon has something to find (pure).

What no checksum covers by design is left alone: the zeros of a filler, and records that were written before the master knew that
all brokers of the group understand checksums (docs/ON_DISK.md says which those are). So each change is one that must be noticed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from brokerd.store.index.layout import ITEM, IndexShape, decode_header
from brokerd.store.queues.unit_checks import BLOCK_UNITS, ENTRY_BYTES, decode
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.record.checksum import ends_with_tail
from remoting.record.layout import MAX_RECORD_BYTES
from remoting.record.walk import walk

_ZONE_BYTES: Final = 16 << 10


def is_mine(offset: int, number: int, count: int) -> bool:
    """Whether broker `number` of `count` may have the record damaged that starts there: of every record, one copy at most."""
    return offset // _ZONE_BYTES % count == number


def records(content: bytes, start: int, segment_bytes: int) -> list[tuple[int, int]]:
    """(position, size) of the records with a checksum in a file of the log that begins at the offset `start`."""
    walked = walk(content, 0, start, segment_bytes, MAX_RECORD_BYTES)
    ends = [*walked.records[1:], walked.end]
    return [
        (at, end - at)
        for at, end in zip(walked.records, ends, strict=False)  # without a record there is an end all the same
        if ends_with_tail(content[at:end])
    ]


def units(content: bytes, upto: int) -> Iterator[tuple[int, int]]:
    """(position, size) of the units in a file of a queue whose records lie before the offset `upto` of the log."""
    for at in range(0, len(content) - UNIT_BYTES + 1, UNIT_BYTES):
        offset, size, _ = UNIT.unpack_from(content, at)
        if size <= 0:
            return
        if offset < upto:
            yield at, UNIT_BYTES


def covered_blocks(content: bytes) -> Iterator[tuple[int, int]]:
    """(position, size) of what covers whole blocks in a file of checks."""
    for number, check in enumerate(decode(content[: len(content) - len(content) % ENTRY_BYTES])):
        if check.covered == BLOCK_UNITS:
            yield number * ENTRY_BYTES, ENTRY_BYTES


def items(content: bytes, shape: IndexShape) -> list[tuple[int, int]]:
    """(position, size) of the hashes and offsets in a file of the index."""
    return [(shape.item_at(number), ITEM.size) for number in range(1, decode_header(content).next_item)]
