"""An object of timers that wait in the tier: the records, in the order in which they are due, in blocks by the hour (pure).

    head:   magic and version (8), timers (4), blocks (4), CRC-32 of these and of the table (4), then the table, for each block:
            when its first timer is due (8, ms), timers (4), bytes (4), CRC-32 of it (4)
    block:  for each timer when it is due (8, ms), the record's length (4), the record as the log had it

A block ends where an hour does, once it has 16 KiB, and with 256 KiB: so who wants the timers of an hour reads the head and a
range, and an object of timers that are due in a year has no block for each of its hours. The log names an object with the length
and the checksum of its head, which has those of all else.

The last row of the table has no timers: it is for the summary, which stands behind the blocks (`summary.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from remoting.checksum import crc32
from remoting.tier.names import stowed_name

HOUR_MS: Final = 3_600_000
MOST_TIMERS: Final = 1 << 14  # of an object
MOST_BYTES: Final = 16 << 20  # of records in it, but always one

_LEAST_BLOCK_BYTES: Final = 16 << 10
_BLOCK_BYTES: Final = 256 << 10
_MAGIC: Final = b"LBTTIMR\x01"
_HEAD: Final = struct.Struct(">8sII")
_CRC: Final = struct.Struct(">I")
_BLOCK: Final = struct.Struct(">QIII")
_ITEM: Final = struct.Struct(">QI")
_MOST_NUMBER: Final = 1 << 62


class Waiting(NamedTuple):
    """A timer: when it is due, its record as the log had it, and the hashes of keys by which it is found (`summary.key_hash`)."""

    due_ms: int
    record: bytes
    hashes: tuple[int, ...] = ()


class StowedObject(NamedTuple):
    """What the log says of an object: `returned` of its `timers`, the first ones, are in the log again, and the next one is due
    at `due_ms`. `before` is where the queue's entries ended that were done with when it was recorded."""

    epoch: int  # of the master that made it, and
    number: int  # its number: they are part of its name, as is
    hour: int  # since 1970, in which its first timer is due
    timers: int
    head_bytes: int
    head_crc: int
    due_ms: int
    before: int = 0
    returned: int = 0

    @property
    def name(self) -> str:
        """Below the group's directory."""
        return stowed_name(self.hour, self.epoch, self.number)

    @property
    def key(self) -> tuple[int, int]:
        """What no other object has."""
        return self.epoch, self.number

    @property
    def left(self) -> int:
        """How many of its timers are nowhere else."""
        return self.timers - self.returned


class Encoded(NamedTuple):
    """A block as it is stored, and what the table says of it."""

    due_ms: int
    timers: int
    content: bytes
    crc: int


class Block(NamedTuple):
    """A range of an object: it begins at `position`, with the timer of that number, `first`."""

    position: int
    first: int
    due_ms: int
    timers: int
    size: int
    crc: int


def in_blocks(timers: Sequence[Waiting]) -> Iterator[Sequence[Waiting]]:
    """Timers that are in the order in which they are due, as they are put into blocks."""
    begin = size = 0
    for number, each in enumerate(timers):
        is_other_hour = timers[begin].due_ms // HOUR_MS != each.due_ms // HOUR_MS
        more = _ITEM.size + len(each.record)
        if size and (size + more > _BLOCK_BYTES or (is_other_hour and size >= _LEAST_BLOCK_BYTES)):
            yield timers[begin:number]
            begin, size = number, 0
        size += more
    yield timers[begin:]


def encode_block(timers: Sequence[Waiting]) -> Encoded:
    """These, which are one block."""
    parts = [part for each in timers for part in (_ITEM.pack(each.due_ms, len(each.record)), each.record)]
    content = b"".join(parts)
    return Encoded(timers[0].due_ms, len(timers), content, crc32(content))


def encode_head(blocks: Sequence[Encoded]) -> bytes:
    """What stands in front of these blocks, of which the last may be the summary."""
    table = b"".join([_BLOCK.pack(each.due_ms, each.timers, len(each.content), each.crc) for each in blocks])
    head = _HEAD.pack(_MAGIC, sum(each.timers for each in blocks), len(blocks))
    return head + _CRC.pack(crc32(table, crc32(head))) + table


def describe(head: bytes, epoch: int, number: int, before: int) -> StowedObject:
    """What the log says of an object with that head once it is stored under these."""
    _, timers, _ = _HEAD.unpack_from(head)
    due_ms: int = _BLOCK.unpack_from(head, _HEAD.size + _CRC.size)[0]
    return StowedObject(epoch, number, due_ms // HOUR_MS, timers, len(head), crc32(head), due_ms, before)


def blocks_of(entry: StowedObject, head: bytes) -> tuple[list[Block], Block | None]:
    """The blocks of timers, and that of the summary, which an earlier version did not make. Raises ValueError when that is not
    the head that was stored."""
    if len(head) != entry.head_bytes or crc32(head) != entry.head_crc or head[: len(_MAGIC)] != _MAGIC:
        raise ValueError(f"{entry.name} is not what was stored")
    blocks: list[Block] = []
    position, first = len(head), 0
    for due_ms, timers, size, crc in _BLOCK.iter_unpack(head[_HEAD.size + _CRC.size :]):
        blocks.append(Block(position, first, due_ms, timers, size, crc))
        position += size
        first += timers
    summary = blocks.pop() if blocks and not blocks[-1].timers else None
    return blocks, summary


def check_block(entry: StowedObject, block: Block, content: bytes) -> None:
    """Raises ValueError when that is not the block that was stored."""
    if len(content) != block.size or crc32(content) != block.crc:
        raise ValueError(f"{entry.name} is damaged from {block.position} on")


def timers_of(entry: StowedObject, block: Block, content: bytes) -> list[Waiting]:
    """Raises ValueError when that is not the block that was stored."""
    check_block(entry, block, content)
    found: list[Waiting] = []
    at = 0
    while at < len(content):
        due_ms, size = _ITEM.unpack_from(content, at)
        at += _ITEM.size + size
        found.append(Waiting(due_ms, content[at - size : at]))
    return found


def encode_entry(entry: StowedObject) -> list[int]:
    """As it stands in records."""
    return list(entry)


def decode_entry(values: Any) -> StowedObject:
    """Raises ValueError when that is none."""
    if not isinstance(values, list) or len(values) != len(StowedObject._fields):
        raise ValueError(f"an object of timers has {len(StowedObject._fields)} numbers")
    if not all(type(value) is int and 0 <= value < _MOST_NUMBER for value in values):
        raise ValueError("the numbers of an object of timers are whole, and none is negative")
    entry = StowedObject._make(values)
    longest = _HEAD.size + _CRC.size + (entry.timers + 1) * _BLOCK.size
    if not 0 < entry.timers <= MOST_TIMERS or not 0 < entry.head_bytes <= longest or entry.returned > entry.timers:
        raise ValueError(f"an object of timers has 1 to {MOST_TIMERS}, and a head of theirs")
    return entry
