"""Runs of records in the log that look alike: equally long, of one topic, with the same properties but for the unique key and the
number in the checksum's tail (pure).

That is what one producer mostly sends. One `struct` takes the whole run apart, and each field is checked for all records at once:
sizes, marks and places too. So the walk that others make first (`remoting.record.walk`) is not made here: it looks at one record
after the other, and alone takes as long as a run does with all it finds.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from brokerd.store.index.hashing import MOST_ALIKE_BYTES, hash_alike
from remoting.record.checksum import DIGITS, SEPARATOR, ends_with_tail
from remoting.record.layout import BORDER, HEAD_BYTES, MAGIC_V1, SYS_TRANSACTION_MASK, SYS_V6_HOSTS, Field, pattern

NOT_PLAIN: Final = SYS_V6_HOSTS | SYS_TRANSACTION_MASK
_MOST: Final = 256  # records of a run; a struct of so many holds 60 KB
_LEAST: Final = 8
_BEHIND_BORDER: Final = pattern(
    BORDER.size, Field.PHYSICAL_OFFSET, Field.SYS_FLAG, Field.STORE_TIMESTAMP, Field.BODY_LENGTH
)
_SPLIT: Final = [slice(first, None, 9) for first in range(9)]


class Likeness(NamedTuple):
    """What is the same in all records of a run. `before` lies between the body and the key, topic first; `behind` between the key
    and the `digits` of the checksum, `close` behind these. In a record without a checksum all behind the key is `behind`."""

    topic: bytes
    before: bytes
    key_length: int
    behind: bytes
    digits: int
    close: bytes

    def length_from_key(self) -> int:
        """How long a record is from its key on."""
        return self.key_length + len(self.behind) + self.digits + len(self.close)

    def body_length(self, size: int) -> int:
        """How long the body of a record of that size is."""
        return size - HEAD_BYTES - len(self.before) - self.length_from_key()


def likeness_of(topic: bytes, before: bytes, key_length: int, behind: bytes) -> Likeness:
    """What others have to be like: `behind` is all behind the key of the record that they are to be like."""
    close_at = len(behind) - len(SEPARATOR)
    digits_at = close_at - DIGITS
    if ends_with_tail(behind) and behind[digits_at:close_at].isdigit() and behind[close_at:] == SEPARATOR:
        return Likeness(topic, before, key_length, behind[:digits_at], DIGITS, SEPARATOR)
    return Likeness(topic, before, key_length, behind, 0, b"")


class Run(NamedTuple):
    """What was found: of each record the hash of its key and when it was stored."""

    hashes: list[int]
    timestamps: tuple[int, ...]


def length_of_run(data: bytes, position: int, like: Likeness) -> tuple[int, int]:
    """(size, count): the size of the record at the position, and how many from there on may be alike, as far as a look at the
    last one tells; 0 when it is not worth trying."""
    size, magic = BORDER.unpack_from(data, position)
    if magic != MAGIC_V1 or like.body_length(size) < 0 or like.key_length > MOST_ALIKE_BYTES:
        return 0, 0
    fit = (len(data) - position) // size
    if fit < _LEAST:
        return size, 0
    border = data[position : position + BORDER.size]
    count = min(_MOST, 1 << fit.bit_length() - 1)
    while count >= _LEAST:
        last = position + (count - 1) * size
        if data[last : last + BORDER.size] == border:
            return size, count
        count >>= 1
    return size, 0


def take_run(
    data: bytes, position: int, offset: int, size: int, count: int, like: Likeness, *, share: bool
) -> Run | None:
    """Take apart so many records of that size, the first at the position of the data and the offset of the log; None when not
    all of them are like that. `share`: the first key and the last one tell how all of them begin."""
    topic, before, key_length, behind, digits, close = like
    body_length = like.body_length(size)
    border = data[position : position + BORDER.size]
    shared = b""
    if share:
        key_at = position + size - like.length_from_key()
        last_at = key_at + (count - 1) * size
        shared = _common_begin(data[key_at : key_at + key_length - 1], data[last_at : last_at + key_length - 1])
    before, key_length = before + shared, key_length - len(shared)
    shape = _struct_of(count, body_length, len(before), key_length, len(behind), digits, len(close))
    fields = shape.unpack_from(data, position + len(border))
    offsets, flags, timestamps, body_lengths, befores, keys, behinds, numbers, closes = map(fields.__getitem__, _SPLIT)
    joined = b"".join(keys)
    if (
        befores.count(before) != count
        or behinds.count(behind) != count
        or closes.count(close + border) != count - 1
        or closes[-1] != close
        or body_lengths.count(body_length) != count
        or offsets != tuple(range(offset, offset + count * size, size))
        or any(map(NOT_PLAIN.__and__, set(flags)))
        or not (shared + joined).isalnum()
        or (digits and not b"".join(numbers).isdigit())
    ):
        return None
    return Run(hash_alike(topic + b"#" + shared, joined, key_length), timestamps)


def _common_begin(one: bytes, other: bytes) -> bytes:
    for place, (mine, its) in enumerate(zip(one, other, strict=True)):
        if mine != its:
            return one[:place]
    return one


@lru_cache(maxsize=16)
def _struct_of(count: int, body: int, before: int, key: int, behind: int, digits: int, close: int) -> struct.Struct:
    """Per record, from behind its size and magic: physicalOffset, sysFlag, storeTimestamp, body length; what is before the key;
    the key; what is behind it; the digits; what is behind them with the next record's size and magic."""
    each = f"{_BEHIND_BORDER}{body}x{before}s{key}s{behind}s{digits}s"
    return struct.Struct(f">{f'{each}{close + BORDER.size}s' * (count - 1)}{each}{close}s")
