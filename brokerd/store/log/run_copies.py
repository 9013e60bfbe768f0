"""Records of one queue, copied out of a file of the log, where those of others lie between them, into memory that is used again.

Whoever moves all that a queue has, as tiers do, touches each byte once, and needs no memory that the system has to find first.
It runs in C where the broker has its library (`native/runs.c`, `log_files.c`); Python says what is right.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.log.record_checks import examples, first_bad
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import Bytes

# Of bytes of the log, where they begin in it, units, a buffer, and where its begin is in the queue: the entries of the records
# that were copied, one behind the other, from the first on. It ends before one that has no room, is elsewhere, or is damaged.
Copied = Callable[[Bytes, int, bytes, memoryview, int], bytes]

# Of a part of the log, where it begins in it, units, and the sum of their sizes: the records, one behind the other; None unless
# all of them are there and what was stored.
Joined = Callable[["memoryview | FilePart", int, bytes, int], bytes | None]


class FilePart(NamedTuple):
    """So many bytes from a file's begin on, by the system's number of the open file."""

    descriptor: int
    length: int


def copied(source: Bytes, begin: int, units: bytes, into: memoryview, place: int) -> bytes:
    """In Python."""
    entries: list[bytes] = []
    used = 0
    for offset, size, code in UNIT.iter_unpack(units):
        if not 0 < size <= len(into) - used or not 0 <= offset - begin <= len(source) - size:
            break
        record = bytes(source[offset - begin : offset - begin + size])
        if first_bad(record, ((offset, size, code),), b"") is not None:
            break
        into[used : used + size] = record
        entries.append(UNIT.pack(place + used, size, code))
        used += size
    return b"".join(entries)


def copied_in_c(library: Library) -> Copied:
    """The same by the library."""
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    call = library.function(
        "native_copied", number, pointer, number, number, ctypes.c_char_p, number, pointer, number, number, pointer
    )

    def copy(source: Bytes, begin: int, units: bytes, into: memoryview, place: int) -> bytes:
        if not len(source) or not len(into):
            return b""
        count = len(units) // UNIT_BYTES
        entries = bytearray(len(units) or 1)
        with Pinned(source) as data, Pinned(into) as room, Pinned(entries) as out:
            found: int = call(data, len(source), begin, units, count, room, len(into), place, out)
        return bytes(entries[: found * UNIT_BYTES])

    return copy


def joined(source: memoryview, begin: int, units: bytes, total: int) -> bytes | None:
    """In Python."""
    into = bytearray(total)
    entries = copied(source, begin, units, memoryview(into), 0)
    is_all = len(entries) == len(units) and sum(size for _, size, _ in UNIT.iter_unpack(entries)) == total
    return bytes(into) if is_all else None


def joined_in_c(library: Library) -> Joined:
    """The same by the library."""
    pointer, number, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    call = library.function("native_joined", number, pointer, number, number, number, text, number, text, number)
    fresh = ctypes.PYFUNCTYPE(ctypes.py_object, pointer, ctypes.c_ssize_t)(
        ("PyBytes_FromStringAndSize", ctypes.pythonapi)
    )

    def join(source: memoryview | FilePart, begin: int, units: bytes, total: int) -> bytes | None:
        length = source.length if isinstance(source, FilePart) else len(source)
        if not 1 < total <= length:  # a single byte is one that Python has once for all
            return None
        content: bytes = fresh(None, total)  # nobody else has it yet: it is made to be filled
        asked = units, len(units) // UNIT_BYTES, content, total
        if isinstance(source, FilePart):
            return content if call(None, length, begin, source.descriptor, *asked) else None
        with Pinned(source) as data:
            return content if call(data, length, begin, -1, *asked) else None

    return join


def copies_agree(library: Library) -> bool:
    """Whether the library copies what Python copies, of records with others between them, as far as there is room and each is
    what was stored."""
    in_c, join_in_c = copied_in_c(library), joined_in_c(library)
    for record in examples():
        size = len(record)
        units = UNIT.pack(0, size, _CODE) + UNIT.pack(size, size, 1)
        for source in (record, record[:-1], record[:-1] + b"x", bytes(9) + record, record * 2):
            for room in (size - 1, size, 2 * size):
                for begin in (0, -9):
                    ours, theirs = bytearray(room), bytearray(room)
                    entries = copied(source, begin, units, memoryview(ours), _PLACE)
                    if in_c(source, begin, units, memoryview(theirs), _PLACE) != entries:
                        return False
                    if entries and ours[:size] != theirs[:size]:
                        return False
            for asked in (units, units[:UNIT_BYTES], b""):
                for total in (size - 1, size, size + 1, 2 * size):
                    for begin in (0, -9):
                        wanted = memoryview(source), begin, asked, total
                        if join_in_c(*wanted) != joined(*wanted):
                            return False
    return True


_CODE: Final = -(1 << 40) + 7
_PLACE: Final = (1 << 40) + 3
