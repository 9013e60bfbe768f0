"""What a reader gets of a piece: messages one by one, or several in one piece, as many as have room."""

from __future__ import annotations

from itertools import accumulate

from brokerd.store.unit import UNIT
from brokerd.tiers.reading.cache import Piece
from remoting.tier.contents import Queue

SIZES = (5, 1, 30, 7, 7)


def piece() -> tuple[Piece, list[bytes]]:
    records = [bytes((65 + number,)) * size for number, size in enumerate(SIZES)]
    places = accumulate(SIZES[:-1], initial=1000)
    entries = b"".join(UNIT.pack(place, size, -size) for place, size in zip(places, SIZES, strict=True))
    return Piece(Queue("T", 0), 40, entries, b"".join(records)), records


def test_each_message_is_found_by_its_offset() -> None:
    found, records = piece()
    assert (found.first, found.end) == (40, 45)
    assert [found.record(offset) for offset in range(40, 45)] == records
    assert [found.code(offset) for offset in range(40, 45)] == [-size for size in SIZES]


def test_several_are_one_piece_and_as_many_as_have_room() -> None:
    found, records = piece()
    for first in range(5):
        for end in range(first + 1, 6):
            assert found.joined(40 + first, 40 + end) == b"".join(records[first:end])
            for room in range(60):
                fitting = found.fitting(40 + first, 40 + end, room) - 40 - first
                most = sum(size <= room for size in accumulate(SIZES[first:end]))
                assert fitting == max(1, most)


def test_a_good_part_of_a_piece_is_no_copy_and_a_small_one_keeps_nothing_of_it() -> None:
    sizes = (100_000, 10_000, 10)
    places = accumulate(sizes[:-1], initial=0)
    entries = b"".join(UNIT.pack(place, size, 0) for place, size in zip(places, sizes, strict=True))
    content = bytes(sum(sizes))
    found = Piece(Queue("T", 0), 0, entries, content)
    part, small = found.joined(0, 1), found.joined(1, 3)
    assert isinstance(part, memoryview)
    assert part.obj is content
    assert type(small) is bytes
    changing = Piece(Queue("T", 0), 0, entries, bytearray(content))
    assert type(changing.joined(0, 3)) is bytes
