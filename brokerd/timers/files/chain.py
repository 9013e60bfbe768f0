"""The records of one slot, from the newest to the oldest, as far as they are in a block of the timer log (pure).

It runs in C where the broker has its library (`native_chain.py`); Python says what is right. A key is packed into one number, in
order of the keys of its slot.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, Protocol

from brokerd.timers.codes import SLOT_MS, Key
from brokerd.timers.files.layout import NO_POSITION, RECORD_BYTES, DamagedTimerFiles, decode_record

OFFSET_BITS: Final = 50
ALL_KEPT: Final = (1 << 64) - 1
NO_OFFSET: Final = (1 << 63) - 1  # above all queue offsets


def pack(key: Key, slot_ms: int) -> int:
    """A key before the slot comes first. An offset may be larger than any record's."""
    since_ms = key.due_ms - slot_ms + SLOT_MS
    return 0 if since_ms < 0 else (since_ms << OFFSET_BITS) + min(key.offset + 1, (1 << OFFSET_BITS) - 1)


def unpack(packed: int, slot_ms: int) -> Key:
    """The key again, if it is one of the slot."""
    return Key((packed >> OFFSET_BITS) + slot_ms - SLOT_MS, (packed & ((1 << OFFSET_BITS) - 1)) - 1)


@dataclass(slots=True)
class Chain:
    """A walk along a slot's records: it looks next at the one `at` a position of the timer log, and ends at `stop`. Keys up to
    `after` are passed over, and those behind `last_kept`, packed."""

    slot_ms: int
    after: Key
    last_kept: int = ALL_KEPT
    at: int = NO_POSITION
    stop: int = NO_POSITION
    before: int = NO_OFFSET  # the queue offset of the record that was looked at last, and its position
    visited: int = NO_POSITION
    messages: int = 0  # of the records that were looked at


class Walk(Protocol):
    """`looks` is how many records it looks at in the time that Python needs for one."""

    @property
    def looks(self) -> int: ...

    def __call__(self, chain: Chain, block: bytes, position: int, most: int) -> tuple[int, array[int]]:
        """Walk on over `most` records at most while they are in the block, which begins at that position and has the next one;
        how many were looked at, and their keys, packed. Raises DamagedTimerFiles when the next one is not of that slot."""


class PythonWalk:
    """In Python."""

    looks: Final = 1

    def __call__(self, chain: Chain, block: bytes, position: int, most: int) -> tuple[int, array[int]]:
        keys, looked = array("Q"), 0
        while looked < most and chain.at != chain.stop and 0 <= chain.at - position < len(block):
            inside = chain.at - position
            record = decode_record(block[inside : inside + RECORD_BYTES])
            is_next = record is not None and record.previous < chain.at and record.queue_offset < chain.before
            if record is None or not is_next or record.slot_ms != chain.slot_ms:
                raise DamagedTimerFiles(
                    f"the record at {chain.at} of the timer log is not one of the slot {chain.slot_ms}"
                )
            looked += 1
            chain.before = record.queue_offset
            chain.messages += record.is_message
            chain.visited, chain.at = chain.at, record.previous
            packed = pack(record.key, chain.slot_ms)
            if not record.is_elsewhere and record.key > chain.after and packed <= chain.last_kept:
                keys.append(packed)
        return looked, keys
