"""The checksum over a whole record, which a record may carry at the end of its properties (pure).

    __CRC32# 0x01 ten decimal digits 0x02          20 bytes, the digits from the least significant one on, filled up with 0

It covers the record without these 20 bytes, and so what the body's own checksum does not: numbers, times, topic, properties.
"""

from __future__ import annotations

import re
from typing import Final

from remoting.checksum import crc32
from remoting.disk import Bytes

TAIL_BYTES: Final = 20
_BEGIN: Final = b"__CRC32#\x01"
_TAIL: Final = re.compile(rb"__CRC32#\x01(\d{10})\x02")
_SEPARATOR: Final = b"\x02"


def reserve(properties: bytes) -> bytes:
    """The properties with room for the checksum at their end."""
    separator = _SEPARATOR if properties and not properties.endswith(_SEPARATOR) else b""
    return properties + separator + _tail(0)


def seal(record: bytes) -> bytes:
    """The record, whose properties have room for it (`reserve`), with its checksum."""
    covered = record[:-TAIL_BYTES]
    return covered + _tail(crc32(covered) & 0x7FFFFFFF)


def is_intact(record: Bytes) -> bool:
    """Whether a record that ends with a checksum is what it was; one without is not doubted."""
    tail = bytes(record[-TAIL_BYTES:])
    if not tail.startswith(_BEGIN):
        return True
    found = _TAIL.fullmatch(tail)
    return found is not None and crc32(memoryview(record)[:-TAIL_BYTES]) & 0x7FFFFFFF == int(found[1][::-1])


def _tail(checksum: int) -> bytes:
    return _BEGIN + str(checksum).encode()[::-1].ljust(10, b"0") + _SEPARATOR
