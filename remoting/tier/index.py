"""An object of the index of keys: which messages of which queue have keys of a hash (pure).

    head, 40 bytes:  magic and version (8), items (4), spread (4), the earliest and the latest store time in ms (8 each),
                     CRC-32 of these (4), zeros (4)
    blocks:          64 items, fewer in the last one, and the CRC-32 (4) of the block's number, which is not stored, and of them
    item, 24 bytes:  hash (4), queue id (4), queue offset (8), store time in ms (8)

The hash is that of the local index, of `topic#key`, mixed: those of keys that are alike lie side by side, mixed ones are spread
evenly over 32 bits. Items are in their order, so of `n` items one of hash `h` is expected at `h * n / 2^32`, and none is farther
from there than `spread` says, which the contents of the tier have, too: one range answers a query. The topic is not stored; the
contents say of 240 parts of all topics which ones an object has some of, and for how long these are kept.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from remoting.checksum import crc32
from remoting.tier.names import INDEX_TOPIC, Kind, object_name

ITEM: Final = struct.Struct(">IIQq")
MOST_ITEMS: Final = 1 << 20  # of an object: what a reader takes in one piece

_OF_EARLIER: Final = 8  # numbers of an entry that says nothing of topics
_BLOCK_ITEMS: Final = 64
_MAGIC: Final = b"LBTINDX\x01"
_HEAD: Final = struct.Struct(">8sIIqq")
_CHECK: Final = struct.Struct(">II")
_NUMBER: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size + _CHECK.size
_BLOCK_BYTES: Final = _BLOCK_ITEMS * ITEM.size + _NUMBER.size
_HASH_BITS: Final = 32
_WORDS: Final = 4
_WORD_BITS: Final = 60
PARTS: Final = _WORDS * _WORD_BITS
ALL_TOPICS: Final = ((1 << _WORD_BITS) - 1,) * _WORDS


class Posting(NamedTuple):
    """A key of a message: its mixed hash, and which message that is."""

    hash: int
    queue_id: int
    queue_offset: int
    timestamp_ms: int


class IndexObject(NamedTuple):
    """What the contents of a tier say of one. `crc` is of the whole object. `topics` are those of which it may have keys, and
    `reserved_ms` is for how long these were to be kept when it was made, 0 = for ever; an earlier version did not say."""

    begin_ms: int
    end_ms: int
    items: int
    spread: int
    size: int
    crc: int
    epoch: int  # of the master that made it, and
    number: int  # its number: they are part of its name
    reserved_ms: int = 0
    topics: tuple[int, ...] = ALL_TOPICS

    @property
    def parts(self) -> Sequence[int]:
        """Of all topics, in which it has some."""
        return [part for part in range(PARTS) if self.topics[part // _WORD_BITS] >> part % _WORD_BITS & 1]

    def may_have(self, topic: str) -> bool:
        """Whether it may have keys of that topic's messages."""
        part = part_of(topic)
        return bool(self.topics[part // _WORD_BITS] >> part % _WORD_BITS & 1)

    @property
    def name(self) -> str:
        """Below the group's directory."""
        return object_name(INDEX_TOPIC, 0, Kind.INDEX, self.begin_ms, self.epoch, self.number)

    @property
    def key(self) -> tuple[int, int]:
        """What no other object has."""
        return self.epoch, self.number

    def range_of(self, hashed: int) -> tuple[int, int]:
        """Position and length of the blocks that have all items of a hash."""
        place = expected_place(hashed, self.items)
        first = max(0, place - self.spread) // _BLOCK_ITEMS
        last = min(self.items - 1, place + self.spread) // _BLOCK_ITEMS
        position = HEAD_BYTES + first * _BLOCK_BYTES
        return position, min(self.size, HEAD_BYTES + (last + 1) * _BLOCK_BYTES) - position


def part_of(topic: str) -> int:
    """In which of the parts of all topics it is."""
    return crc32(topic.encode("utf-8", "surrogateescape")) % PARTS


def topics_with(topics: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    """What both have, as an object of the index says it."""
    return tuple(one | other for one, other in zip(topics, more, strict=True))


def topics_of(names: Iterable[str]) -> tuple[int, ...]:
    """Topics, as an object of the index says it."""
    words = [0] * _WORDS
    for part in map(part_of, names):
        words[part // _WORD_BITS] |= 1 << part % _WORD_BITS
    return tuple(words)


def expected_place(hashed: int, count: int) -> int:
    """Where among so many items one of a hash is expected."""
    return hashed * count >> _HASH_BITS


def mixed(hashed: int) -> int:
    """Another number of 32 bits for each; the last step of MurmurHash3."""
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return hashed ^ hashed >> 16


def size_of(items: int) -> int:
    """The bytes of an object of so many items."""
    return HEAD_BYTES + items * ITEM.size + -(-items // _BLOCK_ITEMS) * _NUMBER.size


def encode_index(items: bytes, spread: int) -> bytes:
    """The object with these, which are in order, at least one and at most `MOST_ITEMS`."""
    count = len(items) // ITEM.size
    assert 0 < count <= MOST_ITEMS, "whoever writes an index bounds its items"
    times = array("q", items)[2::3]
    if sys.byteorder == "little":
        times.byteswap()
    head = _HEAD.pack(_MAGIC, count, spread, min(times), max(times))
    parts = [head, _CHECK.pack(crc32(head), 0)]
    step = _BLOCK_ITEMS * ITEM.size
    for number, at in enumerate(range(0, len(items), step)):
        block = items[at : at + step]
        parts += block, _NUMBER.pack(_block_crc(number, block))
    return b"".join(parts)


def describe(
    content: bytes, epoch: int, number: int, reserved_ms: int = 0, topics: tuple[int, ...] = ALL_TOPICS
) -> IndexObject:
    """What the contents say of an object once it is stored under these."""
    _, items, spread, begin_ms, end_ms = _HEAD.unpack_from(content)
    crc = crc32(content)
    return IndexObject(begin_ms, end_ms, items, spread, len(content), crc, epoch, number, reserved_ms, topics)


def postings_of(entry: IndexObject, hashed: int, blocks: bytes) -> list[Posting]:
    """Those of a hash in the range of it, newest first. Raises ValueError when that is damaged."""
    position, length = entry.range_of(hashed)
    if len(blocks) != length:
        raise ValueError(f"{entry.name} is shorter than it was")
    items = _items_in(entry, (position - HEAD_BYTES) // _BLOCK_BYTES, blocks)
    found = [each for each in map(Posting._make, ITEM.iter_unpack(items)) if each.hash == hashed]
    found.sort(key=_newest_first)
    return found


def decode_index(content: bytes, entry: IndexObject) -> bytes:
    """All items, in order. Raises ValueError when it is not what was stored."""
    if content[: len(_MAGIC)] != _MAGIC or len(content) != entry.size or crc32(content) != entry.crc:
        raise ValueError(f"{entry.name} is not what was stored")
    return _items_in(entry, 0, content[HEAD_BYTES:])


def encode_entry(entry: IndexObject) -> list[int]:
    """As it stands in records and manifests."""
    return [*entry[:-1], *entry.topics]


def decode_entry(values: Any) -> IndexObject:
    """Raises ValueError when that is none."""
    if not isinstance(values, list) or len(values) not in (_OF_EARLIER, _OF_EARLIER + 1 + _WORDS):
        raise ValueError(f"an object of the index has {_OF_EARLIER + 1 + _WORDS} numbers")
    if not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
        raise ValueError("the numbers of an object of the index are whole, and none is negative")
    numbers, more = values[:_OF_EARLIER], values[_OF_EARLIER:]
    entry = IndexObject._make([*numbers, *((more[0], tuple(more[1:])) if more else (0, ALL_TOPICS))])
    if any(word >> _WORD_BITS for word in entry.topics):
        raise ValueError(f"an object of the index has topics of {PARTS} parts")
    if not 0 < entry.items <= MOST_ITEMS or entry.size != size_of(entry.items) or entry.begin_ms > entry.end_ms:
        raise ValueError(f"an object of the index has 1 to {MOST_ITEMS} items, and the size that they take")
    return entry


def _items_in(entry: IndexObject, first: int, blocks: bytes) -> bytes:
    parts: list[bytes] = []
    for number, at in enumerate(range(0, len(blocks), _BLOCK_BYTES), first):
        whole = blocks[at : at + _BLOCK_BYTES]
        block = whole[: -_NUMBER.size]
        if len(block) % ITEM.size or _NUMBER.unpack(whole[-_NUMBER.size :])[0] != _block_crc(number, block):
            raise ValueError(f"block {number} of {entry.name} is damaged")
        parts.append(block)
    return b"".join(parts)


def _block_crc(number: int, block: bytes) -> int:
    return crc32(block, crc32(_NUMBER.pack(number)))


def _newest_first(posting: Posting) -> tuple[int, int]:
    return -posting.timestamp_ms, -posting.queue_offset
