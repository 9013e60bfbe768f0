"""Checksums over the units of a consume queue's files, by block; a unit of the original's format has no room for one (pure).

    for each block of 128 units: how many of its first units are covered (4), CRC-32 of these (4); zeros: nothing is known

They stand in files of their own, named like the queue's, and are written after the units that they cover, without a sync: what a
power loss leaves of them covers no more than what is there. They are hints: units that do not pass are held against the log,
which decides, and covered anew.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from brokerd.store.unit import UNIT_BYTES
from remoting.checksum import crc32

BLOCK_UNITS: Final = 128
ENTRY_BYTES: Final = 8
_ENTRY: Final = struct.Struct(">II")
_BLOCK_BYTES: Final = BLOCK_UNITS * UNIT_BYTES


class Check(NamedTuple):
    """What covers a block: the CRC-32 of so many of its first units; 0 when nothing is known of it."""

    covered: int
    crc: int


NOT_KNOWN: Final = Check(0, 0)


def file_bytes(file_units: int) -> int:
    """The size of a file of checks, for a file of so many units."""
    return -(-file_units // BLOCK_UNITS) * ENTRY_BYTES


def decode(entries: bytes) -> list[Check]:
    return [Check(*each) for each in _ENTRY.iter_unpack(entries)]


def encode(checks: list[Check]) -> bytes:
    return b"".join(_ENTRY.pack(*each) for each in checks)


def extended(before: Check, first: int, units: bytes) -> list[Check]:
    """The checks of the blocks that hold the units, from the one that holds unit `first` of the file on, which was covered by
    `before`. Of units that do not continue what was covered nothing is known."""
    inside = first % BLOCK_UNITS
    room = (BLOCK_UNITS - inside) * UNIT_BYTES
    head = units[:room]
    is_next = before.covered == inside
    checks = [Check(inside + len(head) // UNIT_BYTES, crc32(head, before.crc)) if is_next else NOT_KNOWN]
    for at in range(room, len(units), _BLOCK_BYTES):
        block = units[at : at + _BLOCK_BYTES]
        checks.append(Check(len(block) // UNIT_BYTES, crc32(block)))
    return checks


def shortened(before: Check, units: bytes, kept: int) -> Check:
    """The check of a block of which the first `kept` units stay; `units` are those that it had, covered by `before`."""
    if before.covered <= kept:
        return before
    is_right = before.covered <= BLOCK_UNITS and crc32(units[: before.covered * UNIT_BYTES]) == before.crc
    return Check(kept, crc32(units[: kept * UNIT_BYTES])) if is_right and kept else NOT_KNOWN


def failing(checks: list[Check], units: bytes) -> Iterator[int]:
    """Which of the blocks, whose units these are, are not what was covered."""
    for number, (covered, crc) in enumerate(checks):
        at = number * _BLOCK_BYTES
        if covered and crc32(units[at : at + min(covered, BLOCK_UNITS) * UNIT_BYTES]) != crc:
            yield number
