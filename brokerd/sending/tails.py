"""Checksums of whole records as the kernels write them: the bytes that `remoting.record.checksum` gives, made faster (pure).

To write a number's ten digits takes longer than to compute it, so they come from three tables: of the last four digits, with what
precedes them, of the three before these, and of the first three. For a CRC-32 `c` without its highest bit (`MASK`), the pieces of
a tail are `LOW[c % 10_000]`, and with `rest = c // 10_000`, which is a small number to Python, `MIDDLE[rest % 1000]` and
`HIGH[rest // 1000]`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from remoting.checksum import crc32
from remoting.record.checksum import BEGIN, SEPARATOR, TAIL_BYTES

MASK: Final = 0x7FFFFFFF


def _table(digits: int, count: int, before: bytes = b"", behind: bytes = b"") -> list[bytes]:
    """What stands in a tail for each of the numbers below the count: its digits, the least significant one first."""
    return [before + (b"%0*d" % (digits, number))[::-1] + behind for number in range(count)]


LOW: Final = _table(4, 10_000, before=BEGIN)
MIDDLE: Final = _table(3, 1000)
HIGH: Final = _table(3, MASK // 10_000_000 + 1, behind=SEPARATOR)
_TAIL: Final = struct.Struct(f"{len(LOW[0])}s{len(MIDDLE[0])}s{len(HIGH[0])}s")


def seal_alike(records: bytearray, count: int, size: int) -> None:
    """Write the tails of so many records of one size, which lie one behind the other with room for them."""
    low, middle, high, pack_into = LOW, MIDDLE, HIGH, _TAIL.pack_into
    at = size - TAIL_BYTES
    for checksum in map(crc32, _covered(count, size).unpack(records)):
        c = checksum & MASK
        rest = c // 10_000
        pack_into(records, at, low[c % 10_000], middle[rest % 1000], high[rest // 1000])
        at += size


@lru_cache(maxsize=64)
def _covered(count: int, size: int) -> struct.Struct:
    """What takes from so many records of one size what their checksums are over."""
    return struct.Struct(f"{size - TAIL_BYTES}s{TAIL_BYTES}x" * count)
