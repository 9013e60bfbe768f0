"""From bytes to the boundaries of the records in them (pure).

One walk for everybody who reads a log: dispatch, recovery and rebuilding (through `derive`), a replica that follows what arrives
in pieces, the index of keys, the search behind damage; and for those who read a broker's answer, which is records back to back.
No bytes make it raise or look further than they reach: where no whole record or filler starts, it stops and says why (`Stop`).
It looks at sizes, marks and places; whether the parts of a record add up is for those who read them (`fields.topic_span`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import (
    BORDER,
    FILLER_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_OVERHEAD_BYTES,
    Field,
    heads,
)

_START: Final = heads(Field.SIZE, Field.MAGIC, Field.PHYSICAL_OFFSET)[0]
START_BYTES: Final = _START.size  # what must be there to know that a record starts here
_MARKS: Final = tuple(magic.to_bytes(BORDER.size - Field.MAGIC.at, "big") for magic in (MAGIC_V1, MAGIC_V2))
_ENDLESS: Final = 1 << 62


class Stop(Enum):
    """Why a walk ended where it ended."""

    END = "all bytes were walked"
    PARTIAL = "the last record continues beyond the bytes"
    DAMAGED = "no record starts there"


class Walked(NamedTuple):
    """Where in the bytes whole records start, and where the next record or filler does; `needs` is its size when the bytes end
    inside it, 0 when even that is unknown."""

    records: list[int]
    end: int
    stop: Stop
    needs: int


def walk(
    data: Bytes,
    position: int,
    offset: int,
    file_size: int,
    max_record_bytes: int,
    *,
    in_place: bool = True,
) -> Walked:
    """Find the records in the data from the position on, which is the record boundary `offset` of a log of files of that size.

    Every record must name its place in the log, unless the bytes were moved (`in_place` is false).
    """
    records: list[int] = []
    start_of = _START.unpack_from
    begin, last, most = offset - position, len(data) - START_BYTES, max_record_bytes
    while True:
        file_end = position + file_size - (begin + position) % file_size
        limit = min(len(data), file_end - FILLER_BYTES)
        while position <= last:  # a log is little else than this
            size, magic, place = start_of(data, position)
            following = position + size
            if (
                magic != MAGIC_V1
                or (place - position != begin and in_place)
                or size < RECORD_OVERHEAD_BYTES
                or size > most
                or following > limit
            ):
                break
            records.append(position)
            position = following
        stop, size, is_record = look(data, position, begin + position, file_size, most, in_place)
        if stop is not None:
            return Walked(records, position, stop, size)
        if is_record:
            records.append(position)
        position += size


def look(
    data: Bytes, position: int, offset: int, file_size: int, max_record_bytes: int, in_place: bool = True
) -> tuple[Stop | None, int, bool]:
    """What starts at the position of the data, which is the offset of the log: why it is nothing whole, None when it is; its size
    as far as that is known, else 0; and whether it is a record rather than a filler."""
    left = len(data) - position
    if left < FILLER_BYTES:
        return Stop.PARTIAL if left else Stop.END, 0, False
    if left >= START_BYTES:
        size, magic, place = _START.unpack_from(data, position)
    else:
        (size, magic), place = BORDER.unpack_from(data, position), offset
    rest = file_size - offset % file_size
    is_record = magic in (MAGIC_V1, MAGIC_V2)
    if not (
        RECORD_OVERHEAD_BYTES <= size <= max_record_bytes
        and size + FILLER_BYTES <= rest
        and (place == offset or not in_place)
        if is_record
        else magic == MAGIC_BLANK and size == rest
    ):
        return Stop.DAMAGED, 0, is_record
    return (Stop.PARTIAL if size > left else None), size, is_record


def describe_damage(data: Bytes, position: int, offset: int, file_size: int) -> str:
    """For people: why nothing can start at the position, where `look` found that nothing does."""
    size, magic = BORDER.unpack_from(data, position)
    if magic == MAGIC_BLANK:
        return f"a filler of {size} bytes at offset {offset} does not end a file of {file_size} bytes"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return f"no record starts at offset {offset}: magic {magic:#010x}"
    if len(data) - position >= START_BYTES and (place := _START.unpack_from(data, position)[2]) != offset:
        return f"no record starts at offset {offset}: the one there names {place}"
    return f"a record of {size} bytes at offset {offset} is out of bounds"


def records_in(answer: Bytes) -> list[int]:
    """Where the records of a pull or pop answer start, which lie back to back. Raises ProtocolError unless they are its whole."""
    records, end, stop, needs = walk(answer, 0, 0, _ENDLESS, _ENDLESS, in_place=False)
    left = len(answer) - end
    if stop is Stop.PARTIAL:
        raise ProtocolError(f"{left} bytes are left at {end}, for a record of {needs or 'unknown'} bytes")
    if stop is Stop.DAMAGED:
        raise ProtocolError(describe_damage(answer, end, end, _ENDLESS))
    return records


def find_marks(data: bytes) -> list[int]:
    """Where in the data a record may start, known boundary or not: wherever its mark is in its place."""
    found = []
    for mark in _MARKS:
        position = data.find(mark, Field.MAGIC.at)
        while position != -1:
            found.append(position - Field.MAGIC.at)
            position = data.find(mark, position + 1)
    return sorted(found)
