"""The keys of records as items of the tier's index, and the order of an object's items; in C where there is a library (pure).

What is here is what is right; the library (`brokerd/native/keys.c`) does the same with plain keys, and leaves the rest to this.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Final, Protocol

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.index.hashing import absolute_hash
from brokerd.store.index.postings import keys_of
from remoting.disk import Bytes
from remoting.java_hash import java_hash_bits
from remoting.record.fields import properties_of, store_timestamp_of
from remoting.tier.index import ITEM, expected_place, mixed

_RECORDS_PER_ROOM: Final = 128  # bytes of records for which there is room for one key


class Keys(Protocol):
    """What finds keys, and sorts them."""

    def items_of(self, topic: bytes, queue_id: int, first: int, records: Bytes) -> bytes:
        """The items of the queue's messages from the offset `first` on, whose records these are, one behind the other."""

    def sorted(self, items: bytes) -> tuple[bytes, int]:
        """The items in the order of their hashes, and how far from its expected place one is at most."""


class PlainKeys:
    """In Python."""

    def items_of(self, topic: bytes, queue_id: int, first: int, records: Bytes) -> bytes:
        found: list[bytes] = []
        at, queue_offset = 0, first
        while at < len(records):
            size = _size_at(records, at)
            found += _items_of_record(topic, queue_id, queue_offset, bytes(records[at : at + size]))
            at += size
            queue_offset += 1
        return b"".join(found)

    def sorted(self, items: bytes) -> tuple[bytes, int]:
        each = [items[at : at + ITEM.size] for at in range(0, len(items), ITEM.size)]
        each.sort(key=_hash_bytes)
        count = len(each)
        places = (expected_place(int.from_bytes(item[:4], "big"), count) for item in each)
        spread = max((abs(number - place) for number, place in enumerate(places)), default=0)
        return b"".join(each), spread


class NativeKeys:
    """In C, as far as that knows what it sees."""

    def __init__(self, library: Library) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._items = library.function(
            "native_key_items",
            number,
            pointer,
            number,
            ctypes.c_uint32,
            ctypes.c_uint32,
            pointer,
            number,
            pointer,
        )
        self._sort = library.function("native_sort_items", number, pointer, pointer, number)

    def items_of(self, topic: bytes, queue_id: int, first: int, records: Bytes) -> bytes:
        prefix = java_hash_bits(topic + b"#") & 0xFFFFFFFF
        room = 1 + len(records) // _RECORDS_PER_ROOM
        items = ctypes.create_string_buffer(room * ITEM.size)
        place = array("q", (0, first))
        found: list[bytes] = []
        while place[0] < len(records):
            with Pinned(records) as address:
                there = address, len(records), prefix, queue_id
                count = self._items(*there, ctypes.addressof(items), room, place.buffer_info()[0])
            found.append(ctypes.string_at(items, count * ITEM.size))
            at, queue_offset = place
            if at < len(records):
                size = _size_at(records, at)
                found += _items_of_record(topic, queue_id, queue_offset, bytes(records[at : at + size]))
                place[0], place[1] = at + size, queue_offset + 1
        return b"".join(found)

    def sorted(self, items: bytes) -> tuple[bytes, int]:
        mine, spare = ctypes.create_string_buffer(items, len(items) or 1), ctypes.create_string_buffer(len(items) or 1)
        spread: int = self._sort(ctypes.addressof(mine), ctypes.addressof(spare), len(items) // ITEM.size)
        return ctypes.string_at(mine, len(items)), spread


def keys_for(library: Library | None) -> Keys:
    """In C where there is a library."""
    return PlainKeys() if library is None else NativeKeys(library)


def keys_agree(library: Library) -> bool:
    """Whether the library sorts as Python does; what it finds in records is looked at by tests."""
    native, plain = NativeKeys(library), PlainKeys()
    hashes = [
        0,
        1,
        0x7FFFFFFF,
        5,
        5,
        0x01020304,
        0x40000000,
        0xFFFFFFFF,
        *(number * 48271 % 0x7FFFFFFF for number in range(99)),
    ]
    items = b"".join(ITEM.pack(hashed, 1, number, number) for number, hashed in enumerate(hashes))
    return all(native.sorted(part) == plain.sorted(part) for part in (items, items[: ITEM.size], b""))


def _size_at(records: Bytes, at: int) -> int:
    size = int.from_bytes(records[at : at + 4], "big")
    assert 0 < size <= len(records) - at, "whole records, one behind the other"
    return size


def _items_of_record(topic: bytes, queue_id: int, queue_offset: int, record: bytes) -> list[bytes]:
    timestamp_ms = store_timestamp_of(record)
    hashes = [mixed(absolute_hash(java_hash_bits(topic + b"#" + key))) for key in keys_of(properties_of(record))]
    return [ITEM.pack(hashed, queue_id, queue_offset, timestamp_ms) for hashed in hashes]


def _hash_bytes(item: bytes) -> bytes:
    return item[:4]
