"""Which pieces stay in memory: what is read ahead, not what was read to its end."""

from __future__ import annotations

from itertools import pairwise

from brokerd.store.unit import UNIT
from brokerd.tiers.reading.cache import Cache, Piece
from remoting.tier.contents import Queue

MESSAGES = 4
BYTES = 1000  # of a message
QUEUES = [Queue("T", number) for number in range(4)]


def piece(queue: Queue, first: int) -> Piece:
    entries = b"".join(UNIT.pack(number * BYTES, BYTES, 0) for number in range(MESSAGES))
    return Piece(queue, first, entries, bytes(MESSAGES * BYTES))


SIZE = piece(QUEUES[0], 0).size


def cache(pieces: int) -> tuple[Cache, list[Piece]]:
    """With room for so many, and those that had to go and were not read to their end."""
    dropped: list[Piece] = []
    return Cache(pieces * SIZE, dropped.append), dropped


def test_what_was_read_to_its_end_goes_before_what_was_not_used_for_longer() -> None:
    kept, dropped = cache(3)
    ahead, read, half = (piece(QUEUES[0], first * MESSAGES) for first in range(3))
    for each in (ahead, read, half):
        kept.add(each)
    kept.was_read(half, half.first + 1)
    assert kept.find(QUEUES[0], read.first) is read
    kept.was_read(read, read.end)
    kept.add(piece(QUEUES[1], 0))
    assert kept.find(QUEUES[0], read.first) is None
    assert kept.find(QUEUES[0], ahead.first) is ahead
    kept.add(piece(QUEUES[1], MESSAGES))
    assert dropped == [half], "it was used before the other one"


def test_what_was_read_first_goes_first_unless_somebody_uses_it_again() -> None:
    kept, dropped = cache(3)
    pieces = [piece(QUEUES[0], first * MESSAGES) for first in range(3)]
    for each in pieces:
        kept.add(each)
        kept.was_read(each, each.end)
    assert kept.find(QUEUES[0], 0) is pieces[0]
    kept.was_read(pieces[0], 1)  # by who comes behind
    kept.add(piece(QUEUES[1], 0))
    kept.add(piece(QUEUES[1], MESSAGES))
    assert [kept.find(QUEUES[0], each.first) is not None for each in pieces] == [True, False, False]
    assert not dropped


def test_who_reads_once_leaves_little_of_it_and_nothing_of_others_goes() -> None:
    kept, dropped = cache(16)
    shared = [piece(QUEUES[1], first * MESSAGES) for first in range(12)]
    for each in shared:
        kept.add(each)
        kept.was_read(each, each.end)
    for first in range(0, 40 * MESSAGES, MESSAGES):
        once = piece(QUEUES[0], first)
        kept.add(once)
        kept.was_read(once, once.end, once=True)
        assert len(kept) <= len(shared) + 2, "an eighth of the room"
        assert kept.bytes == len(kept) * SIZE
    assert all(kept.find(QUEUES[1], each.first) is each for each in shared)
    assert [kept.find(QUEUES[0], first * MESSAGES) is not None for first in range(37, 40)] == [False, True, True]
    kept.forget("T")
    assert kept.bytes == kept._once_bytes == 0
    assert not dropped


def test_what_was_read_once_goes_before_what_others_read() -> None:
    kept, dropped = cache(3)
    read, once, ahead = (piece(QUEUES[0], first * MESSAGES) for first in range(3))
    for each in (read, once, ahead):
        kept.add(each)
    kept.was_read(read, read.end)
    kept.was_read(once, once.end, once=True)
    kept.add(piece(QUEUES[1], 0))
    assert [kept.find(QUEUES[0], each.first) is not None for each in (read, once, ahead)] == [True, False, True]
    assert not dropped


def test_a_piece_has_the_size_of_all_the_memory_that_it_keeps() -> None:
    entries = UNIT.pack(0, BYTES, 0)
    alone = Piece(QUEUES[0], 0, entries, bytes(BYTES))
    part = Piece(QUEUES[0], 0, entries, memoryview(bytearray(5 * BYTES))[:BYTES].toreadonly())
    assert part.size - alone.size == 4 * BYTES


def test_readers_side_by_side_lose_nothing_that_is_read_ahead_for_them() -> None:
    """Each has one piece that he reads and one ahead, and room is for no more."""
    kept, dropped = cache(2 * len(QUEUES))
    for queue in QUEUES:
        kept.add(piece(queue, 0))
    for first, following in pairwise(range(0, 40 * MESSAGES, MESSAGES)):
        for queue in QUEUES:
            found = kept.find(queue, first)
            assert found is not None
            kept.add(piece(queue, following))
            kept.was_read(found, found.end)
    assert not dropped


def test_what_is_forgotten_takes_no_room() -> None:
    kept, _ = cache(3)
    read = piece(QUEUES[0], 0)
    kept.add(read)
    kept.was_read(read, read.end)
    kept.add(piece(QUEUES[0], MESSAGES))
    kept.forget("T")
    assert (len(kept), kept.bytes) == (0, 0)
    kept.was_read(read, read.end)
    assert not len(kept)
