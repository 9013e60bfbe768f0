"""The format of an index file, RocketMQ's (pure).

    0 beginTimestamp(8)  8 endTimestamp(8)  16 beginPhyOffset(8)  24 endPhyOffset(8)  32 hashSlotCount(4)  36 indexCount(4)
    40 slots: 4 bytes each, the number of the newest item of the slot, 0 without one
    behind them items: keyHash(4) phyOffset(8) timeDiff(4) previousItem(4)

A key is `topic#key`; its hash is the absolute value of Java's String.hashCode, and modulo the number of slots its slot. Items are
numbered from 1 in the order of the log (item 0 is never used, indexCount is the number of the next one), and those of a slot are
linked from the newest to the oldest. `timeDiff` is seconds since the file's beginTimestamp. A new file begins with the last
file's end as provisional times and offsets, so the timeDiff of its item 1 counts from there. Names are the time of the first
item, 17 digits, and only ever increase.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

DIRECTORY: Final = "index"
HEADER: Final = struct.Struct(">qqqqii")
SLOT_BYTES: Final = 4
ITEM: Final = struct.Struct(">iqii")
MAX_TIME_DIFF: Final = 0x7FFFFFFF
_NAME_DIGITS: Final = 17
_TICK: Final = timedelta(milliseconds=1)


class Header(NamedTuple):
    """What an index file says of itself; `next_item` is the number of the next one put."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_item: int = 1


class IndexShape(NamedTuple):
    """How many slots and items (the unused item 0 included) a file has room for."""

    slots: int
    items: int

    @property
    def size_bytes(self) -> int:
        return self.item_at(self.items)

    def slot_at(self, slot: int) -> int:
        """The position of a slot in the file."""
        return HEADER.size + slot * SLOT_BYTES

    def item_at(self, number: int) -> int:
        """The position of an item in the file."""
        return HEADER.size + self.slots * SLOT_BYTES + number * ITEM.size

    def admits(self, header: Header) -> bool:
        """Whether a file of this shape can have the header."""
        return 1 <= header.next_item <= self.items and 0 <= header.slots_used < header.next_item and min(header) >= 0


def decode_header(encoded: bytes) -> Header:
    """The header at a file's start; one without any item may hold 0 where 1 is meant."""
    header = Header(*HEADER.unpack_from(encoded))
    return header if header.next_item else header._replace(next_item=1)


def file_name(timestamp_ms: int, last_name: str) -> str:
    """The name of a file whose first message was stored at the time, behind the last name ("" without one)."""
    at = datetime.fromtimestamp(max(0, timestamp_ms) / 1000, UTC)
    if last_name:
        last = parse_name(last_name)
        assert last is not None
        at = max(at, last + _TICK)
    return f"{at:%Y%m%d%H%M%S}{at.microsecond // 1000:03d}"


def parse_name(name: str) -> datetime | None:
    """The time in a file's name, or None when it is no such name."""
    if len(name) != _NAME_DIGITS or not name.isascii() or not name.isdigit():
        return None
    try:
        return datetime.strptime(f"{name}000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
    except ValueError:
        return None


def path_of(name: str) -> str:
    return f"{DIRECTORY}/{name}"
