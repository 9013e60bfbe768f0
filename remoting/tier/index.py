"""An object of the index of keys: which messages of which queue have keys of a hash (pure).

    head, 40 bytes:  magic and version (8), CRC-32 of the rest of the head (4), slots (4), items (4), zeros (4),
                     store times of the first and the last message (8 each)
    slots, 12 bytes each:  position and length of its chain (4 each, 0 = none), CRC-32 of these and of the slot's number (4)
    chains:  the items of a slot, newest first, and the CRC-32 of them (4)
    item, 24 bytes:  hash (4), queue id (4), queue offset (8), store time in ms (8)

A key has the slot `hash % slots`, so two short reads answer a query, or one of the whole object when that is small. The number of
slots is in the object (storage.md 8.5, S-10). The hash is of `topic#key`, as in the local index, so the topic is not stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from remoting.checksum import crc32
from remoting.tier.names import INDEX_TOPIC, Kind, object_name

HEAD_BYTES: Final = 40
SLOT_BYTES: Final = 12
_MAGIC: Final = b"LBTINDX\x01"
_HEAD: Final = struct.Struct(">8sI")
_REST: Final = struct.Struct(">IIIqq")
_SLOT: Final = struct.Struct(">III")
_SLOT_CHECKED: Final = struct.Struct(">III")
_ITEM: Final = struct.Struct(">IIQq")
_CRC: Final = struct.Struct(">I")
_ITEMS_PER_SLOT: Final = 4
_MAX_BYTES: Final = 0xFFFFFFFF


class Posting(NamedTuple):
    """A key of a message: its hash, and which message that is."""

    hash: int
    queue_id: int
    queue_offset: int
    timestamp_ms: int


class IndexObject(NamedTuple):
    """What the contents of a tier say of one. `crc` is of the whole object."""

    begin_ms: int
    end_ms: int
    items: int
    slots: int
    size: int
    crc: int
    epoch: int  # of the master that made it, and
    number: int  # its number: they are part of its name

    @property
    def name(self) -> str:
        return object_name(INDEX_TOPIC, 0, Kind.INDEX, self.begin_ms, self.epoch, self.number)

    @property
    def key(self) -> tuple[int, int]:
        """What tells it from all others."""
        return self.epoch, self.number

    def slot_of(self, hashed: int) -> tuple[int, int]:
        """The number of a hash's slot, and where in the object that is."""
        number = hashed % self.slots
        return number, HEAD_BYTES + number * SLOT_BYTES


def encode_index(postings: Sequence[Posting]) -> bytes:
    """The object with these, which are not none."""
    begin_ms = min(each.timestamp_ms for each in postings)
    end_ms = max(each.timestamp_ms for each in postings)
    slots = max(1, -(-len(postings) // _ITEMS_PER_SLOT))
    chains: dict[int, list[bytes]] = {}
    pack = _ITEM.pack
    for each in sorted(postings, key=_newest_first):
        chains.setdefault(each.hash % slots, []).append(pack(*each))
    table, parts = bytearray(), []
    position = HEAD_BYTES + slots * SLOT_BYTES
    for number in range(slots):
        chain = b"".join(chains.get(number, ()))
        if chain:
            chain += _CRC.pack(crc32(chain))
        place = position if chain else 0
        table += _SLOT.pack(place, len(chain), crc32(_SLOT_CHECKED.pack(number, place, len(chain))))
        parts.append(chain)
        position += len(chain)
    assert position <= _MAX_BYTES, "whoever writes an index bounds its items"
    rest = _REST.pack(slots, len(postings), 0, begin_ms, end_ms)
    return b"".join([_HEAD.pack(_MAGIC, crc32(rest)), rest, table, *parts])


def describe(content: bytes, epoch: int, number: int) -> IndexObject:
    """What the contents say of an object once it is stored under these."""
    slots, items, _, begin_ms, end_ms = _REST.unpack_from(content, _HEAD.size)
    return IndexObject(begin_ms, end_ms, items, slots, len(content), crc32(content), epoch, number)


def chain_of(entry: IndexObject, hashed: int, slot: bytes) -> tuple[int, int]:
    """Where the chain of a hash is, and its length, 0 without one; `slot` are the slot's bytes. Raises ValueError."""
    number, _ = entry.slot_of(hashed)
    position, length, crc = _SLOT.unpack(slot)
    if crc != crc32(_SLOT_CHECKED.pack(number, position, length)) or position + length > entry.size:
        raise ValueError(f"slot {number} of {entry.name} is damaged")
    return position, length


def items_of(entry: IndexObject, chain: bytes) -> Iterable[Posting]:
    """The items of a chain, newest first. Raises ValueError."""
    items = chain[: -_CRC.size]
    if len(items) % _ITEM.size or _CRC.unpack(chain[-_CRC.size :])[0] != crc32(items):
        raise ValueError(f"a chain of {entry.name} is damaged")
    return map(Posting._make, _ITEM.iter_unpack(items))


def decode_index(content: bytes, entry: IndexObject) -> list[Posting]:
    """All items. Raises ValueError when it is not what was stored."""
    if content[: len(_MAGIC)] != _MAGIC or len(content) != entry.size or crc32(content) != entry.crc:
        raise ValueError(f"{entry.name} is not what was stored")
    found: list[Posting] = []
    for number in range(entry.slots):
        at = HEAD_BYTES + number * SLOT_BYTES
        position, length = chain_of(entry, number, content[at : at + SLOT_BYTES])
        if length:
            found += items_of(entry, content[position : position + length])
    return found


def encode_entry(entry: IndexObject) -> list[int]:
    """As it stands in records and manifests."""
    return list(entry)


def decode_entry(values: Any) -> IndexObject:
    """Raises ValueError when that is none."""
    if not isinstance(values, list) or len(values) != len(IndexObject._fields):
        raise ValueError(f"an object of the index has {len(IndexObject._fields)} numbers")
    if not all(type(value) is int and value >= 0 for value in values):
        raise ValueError("the numbers of an object of the index are whole, and none is negative")
    entry = IndexObject._make(values)
    if not entry.slots or not entry.items or entry.begin_ms > entry.end_ms:
        raise ValueError("an object of the index is not empty")
    return entry


def _newest_first(posting: Posting) -> tuple[int, int]:
    return -posting.timestamp_ms, -posting.queue_offset
