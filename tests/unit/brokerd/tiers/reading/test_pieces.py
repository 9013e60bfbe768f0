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
