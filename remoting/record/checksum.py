"""A record's checksums: over its body, which each record has, and over the whole, at the end of its properties (pure).

    __CRC32# 0x01 ten decimal digits 0x02          20 bytes, the digits from the least significant one on, filled up with 0

This tail covers the record without these 20 bytes, and so what the body's own checksum does not: numbers, times, topic,
properties. A record that has one is judged by it alone. One without was written by who adds none, or had no room for it.

The tail is a record's, not its message's: it is shown to nobody as a property, and does not go with a copy of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import eq
from typing import Final

from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record.fields import measure
from remoting.record.layout import Field, heads

TAIL_BYTES: Final = 20
NAME: Final = "__CRC32#"
BEGIN: Final = NAME.encode() + b"\x01"
SEPARATOR: Final = b"\x02"
_BEGIN_BYTES: Final = len(BEGIN)
DIGITS: Final = TAIL_BYTES - _BEGIN_BYTES - len(SEPARATOR)
_LEAST_LIKE: Final = 5  # bytes of the begin of a tail
_MASK: Final = 0x7FFFFFFF
# Written backwards, as the digits stand: one formatting makes all digits of many tails, and one turn puts them right.
_BACKWARDS: Final = b"\x02%010d\x01#23CRC__"
_HEAD: Final = heads(Field.SIZE, Field.MAGIC, Field.BODY_CRC, Field.SYS_FLAG, Field.BODY_LENGTH)[0]


def tail_of(checksum: int) -> bytes:
    """The tail of a record whose bytes before it have this CRC-32."""
    return (_BACKWARDS % (checksum & _MASK))[::-1]


def tails_of(checksums: Sequence[int]) -> bytes:
    """The tails of several records, one behind the other."""
    return (_BACKWARDS * len(checksums) % tuple([each & _MASK for each in reversed(checksums)]))[::-1]


def reserve(properties: bytes) -> bytes:
    """The properties with room for the checksum at their end."""
    separator = SEPARATOR if properties and not properties.endswith(SEPARATOR) else b""
    return properties + separator + bytes(TAIL_BYTES)


def without(properties: bytes) -> bytes:
    """The properties of a record as they were before a checksum was put behind them."""
    return properties[:-TAIL_BYTES] if ends_with_tail(properties) else properties


def ends_with_tail(data: bytes) -> bool:
    """Whether the last bytes are a tail, so that the record that ends there has a checksum."""
    at = len(data) - TAIL_BYTES
    return at >= 0 and data.startswith(BEGIN, at)


def seal(record: bytes) -> bytes:
    """The record, whose properties have room for it (`reserve`), with its checksum."""
    covered = record[:-TAIL_BYTES]
    return covered + tail_of(crc32(covered))


def is_intact(record: Bytes) -> bool:
    """Whether a whole record is what was stored, by its tail, or for one without, by its body's checksum and its lengths."""
    return _is_intact(memoryview(record), 0, len(record))


def first_damaged(data: Bytes, begins: Sequence[int], ends: Sequence[int]) -> int | None:
    """Where the first of these whole records begins that is not what was stored; None when all are intact."""
    view = memoryview(data)
    # Most records have a tail like their neighbours: all at once, and one by one only when that is not so.
    if len(begins) > 1 and view[ends[0] - TAIL_BYTES : ends[0] - TAIL_BYTES + _BEGIN_BYTES] == BEGIN:
        sums = [crc32(view[begin : end - TAIL_BYTES]) for begin, end in zip(begins, ends, strict=True)]
        if b"".join([view[end - TAIL_BYTES : end] for end in ends]) == tails_of(sums):
            return None
    for begin, end in zip(begins, ends, strict=True):
        if not _is_intact(view, begin, end):
            return begin
    return None


def _is_intact(data: memoryview, begin: int, end: int) -> bool:
    covered = end - TAIL_BYTES
    tail = bytes(data[covered:end])
    if tail.startswith(BEGIN):
        return tail == tail_of(crc32(data[begin:covered]))
    if tail[_BEGIN_BYTES:-1].isdigit() and tail[_BEGIN_BYTES:] == tail_of(crc32(data[begin:covered]))[_BEGIN_BYTES:]:
        return False  # the tail's own name changed, which would otherwise become a property of the message
    if sum(map(eq, tail, BEGIN)) >= _LEAST_LIKE:
        return False  # and perhaps something else with it: no property that was stored is called nearly like that
    if end - begin < _HEAD.size:
        return False
    size, magic, checksum, sys_flag, body_length = _HEAD.unpack_from(data, begin)
    if size != end - begin:
        return False
    places = measure(data, begin, end, magic, sys_flag, body_length)
    return places is not None and crc32(data[places[0] : places[1]]) & _MASK == checksum
