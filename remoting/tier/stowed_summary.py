"""What an object of timers says of all of them together: how many are due in each second, and which have a key (pure).

    seconds (4), keys (4)
    for each second in which some are due: which it is (8, since 1970), in order; then for each, how many (4)
    for each key: its hash (4), in order; then for each, the number of its timer in the object (2)

So who counts or looks for a key reads this and not the timers. A timer that is due at the end of a second is of that second, as
in the slots of the original's wheel.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.tier.stowed import Block, Encoded, StowedObject, Waiting, check_block
from remoting.timer_names import SLOT_MS

MOST_KEYS: Final = 16  # of a timer; by further ones it is not found

_HEAD: Final = struct.Struct(">II")
_SECOND_BYTES: Final = 12
_KEY_BYTES: Final = 6


class Summary(NamedTuple):
    """`seconds` are in order, `counts` say how many are due in each. `hashes` are in order, too, `numbers` say whose they are."""

    seconds: Sequence[int]
    counts: Sequence[int]
    hashes: Sequence[int]
    numbers: Sequence[int]

    def with_key(self, hashed: int) -> list[int]:
        """The numbers of the timers that may have a key of that hash, in order."""
        at = bisect_left(self.hashes, hashed)
        found = []
        while at < len(self.hashes) and self.hashes[at] == hashed:
            found.append(self.numbers[at])
            at += 1
        return sorted(set(found))

    def behind(self, passed: int) -> list[tuple[int, int]]:
        """Seconds and how many are due in them, of all but the first `passed` timers."""
        left: list[tuple[int, int]] = []
        for second, count in zip(self.seconds, self.counts, strict=True):
            if count > passed:
                left.append((second, count - passed))
            passed = max(0, passed - count)
        return left


def second_of(due_ms: int) -> int:
    """The second (since 1970) of what is due then."""
    return (due_ms - 1) // SLOT_MS


def key_hash(key: bytes) -> int:
    """Of a key of a timer."""
    return crc32(key)


def encode_summary(timers: Sequence[Waiting]) -> Encoded:
    """As a block without timers, which is the object's last."""
    seconds = Counter(second_of(each.due_ms) for each in timers)  # in their order
    keys = sorted((hashed, number) for number, each in enumerate(timers) for hashed in each.hashes[:MOST_KEYS])
    columns = (
        array("Q", seconds),
        array("I", seconds.values()),
        array("I", (hashed for hashed, _ in keys)),
        array("H", (number for _, number in keys)),
    )
    content = _HEAD.pack(len(seconds), len(keys)) + b"".join(_swapped(each).tobytes() for each in columns)
    return Encoded(0, 0, content, crc32(content))


def summary_of(entry: StowedObject, block: Block, content: bytes) -> Summary:
    """Raises ValueError when that is not the summary that was stored."""
    check_block(entry, block, content)
    seconds, keys = _HEAD.unpack_from(content)
    if len(content) != _HEAD.size + seconds * _SECOND_BYTES + keys * _KEY_BYTES:
        raise ValueError(f"the summary of {entry.name} has another length than it says")
    columns, at = [], _HEAD.size
    for kind, count in (("Q", seconds), ("I", seconds), ("I", keys), ("H", keys)):
        column = array(kind)
        end = at + count * column.itemsize
        column.frombytes(content[at:end])
        columns.append(_swapped(column))
        at = end
    return Summary(*columns)


def _swapped(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        column.byteswap()
    return column
