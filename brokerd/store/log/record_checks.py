"""Whole records that are about to be given out, or were received: which of them is the first that is not what was stored.

A check is made of each: the checksum over the record, or over its body if it has no other, and where units name records, their
size and place. It runs in C where the broker has its library (`native/reads.c`); Python says what is right: `first_bad` here and
`derive.first_damaged_of`.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import starmap
from typing import Final

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.log.derive import first_damaged_of
from brokerd.store.unit import UNIT, UNIT_BYTES, Unit
from remoting.disk import Bytes
from remoting.record.checksum import first_damaged, reserve, seal
from remoting.record.codec import encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import BORDER, RECORD_OVERHEAD_BYTES, Field, heads

# Of the content, which is records one behind the other, the units that name them, and these as their queue has them, or nothing:
# the number of the first that is bad.
FirstBad = Callable[[bytes, Sequence[Unit], bytes], int | None]

# Of the content, where its first record's place is, and entries: the number of the first that is bad.
FirstAstray = Callable[[Bytes, int, Bytes], int | None]

_PLACE: Final = heads(Field.SIZE, Field.PHYSICAL_OFFSET)[0]
_IPV4, _IPV6 = pack_host("192.0.2.1", 10911), pack_host("2001:db8::1", 10911)


def first_bad(content: bytes, units: Sequence[Unit], encoded: bytes) -> int | None:
    """In Python, which does not look at the encoded units."""
    place_of = _PLACE.unpack_from
    begins, ends, end = [], [], 0
    misplaced = None
    for number, (offset, size, _) in enumerate(units):
        if not RECORD_OVERHEAD_BYTES <= size <= len(content) - end or place_of(content, end) != (size, offset):
            misplaced = number
            break
        begins.append(end)
        end += size
        ends.append(end)
    damaged = first_damaged(content, begins, ends) if begins else None
    return misplaced if damaged is None else begins.index(damaged)


def first_bad_in_c(library: Library) -> FirstBad:
    """The same by the library."""
    call = library.function(
        "native_first_bad", ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64
    )

    def find(content: bytes, units: Sequence[Unit], encoded: bytes) -> int | None:
        count = len(units)
        found: int = call(content, len(content), encoded or b"".join(starmap(UNIT.pack, units)), count)
        return found if found < count else None

    return find


def damage_finder(library: Library | None) -> Callable[[Bytes, Sequence[int]], int | None]:
    """`derive.first_damaged_of`, by the library where there is one."""
    return first_damaged_of if library is None else first_damaged_in_c(library)


def first_damaged_in_c(library: Library) -> Callable[[Bytes, Sequence[int]], int | None]:
    """`derive.first_damaged_of` by the library."""
    call = library.function(
        "native_first_damaged", ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
    )

    def find(data: Bytes, records: Sequence[int]) -> int | None:
        content = data if isinstance(data, bytes) else bytes(data)
        begins = array("q", records)
        found: int = call(content, len(content), begins.buffer_info()[0], len(begins))
        return records[found] if found < len(begins) else None

    return find


def first_astray(content: Bytes, begin: int, entries: Bytes) -> int | None:
    """The number of the first record that is not where its entry says, of that size and what was stored, in Python. Places count
    from `begin` on, and the records have to fill the content."""
    ends: list[int] = []
    end = 0
    for number, (place, size, _) in enumerate(UNIT.iter_unpack(entries)):
        is_there = RECORD_OVERHEAD_BYTES <= size <= len(content) - end and place == begin + end
        if not is_there or BORDER.unpack_from(content, end)[0] != size:
            break
        if first_damaged_of(content[end : end + size], (0,)) is not None:
            return number
        end += size
        ends.append(end)
    count = len(entries) // UNIT_BYTES
    if len(ends) < count:
        return len(ends)
    return None if end == len(content) else count - 1


def astray_finder(library: Library | None) -> FirstAstray:
    """`first_astray`, by the library where there is one."""
    return first_astray if library is None else first_astray_in_c(library)


def first_astray_in_c(library: Library) -> FirstAstray:
    """The same by the library."""
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    call = library.function("native_first_astray", number, pointer, number, number, pointer, number)

    def find(content: Bytes, begin: int, entries: Bytes) -> int | None:
        count = len(entries) // UNIT_BYTES
        with Pinned(content) as records, Pinned(entries) as units:
            found: int = call(records, len(content), begin, units, count)
        return found if found < count else None

    return find


def reads_agree(library: Library) -> bool:
    """Whether the library finds what Python finds: nothing in intact records, and each byte of them that changes, alone and with
    the last one."""
    find, find_damaged = first_bad_in_c(library), first_damaged_in_c(library)
    find_astray = first_astray_in_c(library)
    for record in examples():
        units = ((0, len(record), 0),)
        entry = UNIT.pack(*units[0])
        for at in range(len(record)):
            once = record[:at] + bytes((record[at] ^ 1 << at % 8,)) + record[at + 1 :]
            for changed in (once, once[:-1] + b"x"):
                if find(changed, units, b"") != first_bad(changed, units, b""):
                    return False
                if find_astray(changed, 0, entry) != first_astray(changed, 0, entry):
                    return False
                if at >= BORDER.size and find_damaged(changed, (0,)) != first_damaged_of(changed, (0,)):
                    return False  # where it is a whole record, as its size says
        if find(record * 2, units * 2, b"") is not None or find_damaged(record * 2, (0, len(record))) is not None:
            return False
    return True


def examples() -> Iterator[bytes]:
    """Records with each kind of hosts, topics, and checksums; all are at the log's begin."""
    for topic, born_host, store_host, properties in (
        (b"Topic", _IPV4, _IPV4, b"a\x01b\x02"),
        (b"Topic", _IPV4, _IPV6, b""),
        (b"T" * 128, _IPV6, _IPV6, b""),
        (b"T" * 128, _IPV6, _IPV4, b"a"),
    ):
        record = encode_record(
            topic=topic,
            queue_id=1,
            queue_offset=2,
            physical_offset=0,
            body=bytes(range(20)),
            properties=reserve(properties) if properties else properties,
            born_timestamp_ms=3,
            born_host=born_host,
            store_timestamp_ms=4,
            store_host=store_host,
        )
        yield seal(record) if properties else record
