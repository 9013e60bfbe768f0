"""A record's checksums: over its body, which each record has, and over the whole, at the end of its properties (pure).

    __CRC32# 0x01 ten decimal digits 0x02          20 bytes, the digits from the least significant one on, filled up with 0

This tail covers the record without these 20 bytes, and so what the body's own checksum does not: numbers, times, topic,
properties. A record that has one is judged by it alone. One without was written by who adds none, or had no room for it.

The tail is a record's, not its message's: it is shown to nobody as a property, and does not go with a copy of the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record.fields import measure
from remoting.record.layout import SYS_V6_HOSTS, Field, heads

TAIL_BYTES: Final = 20
NAME: Final = "__CRC32#"
BEGIN: Final = NAME.encode() + b"\x01"
SEPARATOR: Final = b"\x02"
_BEGIN_BYTES: Final = len(BEGIN)
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
    at = len(properties) - TAIL_BYTES
    return properties[:at] if at >= 0 and properties.startswith(BEGIN, at) else properties


def seal(record: bytes) -> bytes:
    """The record, whose properties have room for it (`reserve`), with its checksum."""
    covered = record[:-TAIL_BYTES]
    return covered + tail_of(crc32(covered))


def is_intact(record: Bytes) -> bool:
    """Whether a whole record is what was stored, by its tail, or for one without, by its body's checksum and its lengths."""
    view = memoryview(record)
    tail = bytes(view[-TAIL_BYTES:])
    if tail.startswith(BEGIN):
        return tail == tail_of(crc32(view[:-TAIL_BYTES]))
    if tail[_BEGIN_BYTES:-1].isdigit() and tail[_BEGIN_BYTES:] == tail_of(crc32(view[:-TAIL_BYTES]))[_BEGIN_BYTES:]:
        return False  # the tail's own name changed, which would otherwise become a property of the message
    return _is_body_intact(view)


def _is_body_intact(record: memoryview) -> bool:
    if len(record) < _HEAD.size:
        return False
    size, magic, checksum, sys_flag, body_length = _HEAD.unpack_from(record)
    if size != len(record):
        return False
    places = measure(record, 0, size, magic, sys_flag & SYS_V6_HOSTS, body_length)
    return places is not None and crc32(record[places[0] : places[1]]) & _MASK == checksum


def first_damaged(data: Bytes, begins: Sequence[int], ends: Sequence[int]) -> int | None:
    """Where the first of these whole records begins that is not what was stored; None when all are intact."""
    if not begins:
        return None
    view = memoryview(data)
    if view[ends[0] - TAIL_BYTES : ends[0] - TAIL_BYTES + _BEGIN_BYTES] == BEGIN:
        sums = [crc32(view[begin : end - TAIL_BYTES]) for begin, end in zip(begins, ends, strict=True)]
        if b"".join([view[end - TAIL_BYTES : end] for end in ends]) == tails_of(sums):
            return None
    for begin, end in zip(begins, ends, strict=True):
        if not is_intact(view[begin:end]):
            return begin
    return None
