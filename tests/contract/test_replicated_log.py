"""What every `ReplicatedLog` does: the one over a store, and the one in memory that tests of the replication use.

Their records look different, as replication does not look into them: a log's bytes come from a master of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.replication.log import ReplicatedLog
from remoting.errors import ProtocolError
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.replication.group import Fuse, MemoryReplicatedLog
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, draft, make_store, put, sync


class OverMemory:
    """The twin."""

    def __init__(self) -> None:
        self.memory = MemoryReplicatedLog(Fuse())
        self.memory.segment_bytes = SEGMENT_BYTES
        self.log: ReplicatedLog = self.memory

    def append(self, body: bytes) -> None:
        self.memory.append_record(body)

    def flush(self) -> None:
        self.memory.flush()


class OverStore:
    """The real one; its store is on a disk in memory."""

    def __init__(self) -> None:
        self.store = make_store(MemoryDisk())
        self.store.load()
        self.log: ReplicatedLog = StoreReplicatedLog(self.store, lambda: None)

    def append(self, body: bytes) -> None:
        self.store.set_appendable(True)
        put(self.store, draft(body), visible=False)
        self.store.set_appendable(False)

    def flush(self) -> None:
        sync(self.store)


Subject = OverMemory | OverStore


@pytest.fixture(params=[OverMemory, OverStore], ids=["memory", "store"])
def kind(request: pytest.FixtureRequest) -> type[Subject]:
    made: type[Subject] = request.param
    return made


def master(kind: type[Subject], seed: int = 1, count: int = 120) -> tuple[Subject, list[int]]:
    """A log of several files, and where its records end."""
    rng = Random(seed)
    subject = kind()
    ends = []
    for _ in range(count):
        subject.append(rng.randbytes(rng.randrange(1, 120)))
        ends.append(subject.log.end_offset)
    assert subject.log.end_offset > SEGMENT_BYTES
    return subject, ends


def content(log: ReplicatedLog, end_offset: int | None = None) -> bytes:
    """The bytes of a log, up to its end."""
    pieces, offset = [], log.min_offset
    end_offset = log.end_offset if end_offset is None else end_offset
    while offset < end_offset:
        piece = bytes(log.read(offset, min(1 << 16, end_offset - offset)))
        assert piece
        assert offset // SEGMENT_BYTES == (offset + len(piece) - 1) // SEGMENT_BYTES, "no read crosses a file's end"
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def pieces(data: bytes, rng: Random) -> Iterator[bytes]:
    """The bytes, cut anywhere."""
    while data:
        size = rng.randrange(1, 3000)
        yield data[:size]
        data = data[size:]


def copy(target: Subject, data: bytes, rng: Random) -> None:
    for piece in pieces(data, rng):
        offset = target.log.end_offset
        cut = rng.randrange(len(piece))
        target.log.append_replicated(offset, [each for each in (piece[:cut], piece[cut:]) if each])
        assert target.log.end_offset == offset + len(piece)


def test_a_log_that_is_copied_in_pieces_is_the_same(kind: type[Subject]) -> None:
    source, _ = master(kind)
    data = content(source.log)
    for seed in range(5):
        target = kind()
        copy(target, data, Random(seed))
        assert content(target.log) == data
        assert (target.log.min_offset, target.log.end_offset) == (0, len(data))


def test_a_read_gives_no_more_than_was_asked(kind: type[Subject]) -> None:
    source, _ = master(kind)
    data = content(source.log)
    for offset in range(0, len(data), 37):
        assert 1 <= len(source.log.read(offset, 100)) <= 100
        assert data[offset:].startswith(source.log.read(offset, 100))
    assert bytes(source.log.read(len(data) - 1, 100)) == data[-1:]


def test_what_was_appended_is_durable_when_it_was_flushed(kind: type[Subject]) -> None:
    source, ends = master(kind)
    assert source.log.flushed_offset == 0
    source.flush()
    assert source.log.flushed_offset == source.log.end_offset
    source.append(b"more")
    assert source.log.flushed_offset == ends[-1] < source.log.end_offset


def test_bytes_for_another_place_are_refused(kind: type[Subject]) -> None:
    source, ends = master(kind)
    data = content(source.log)
    target = kind()
    target.log.append_replicated(0, [data[: ends[3]]])
    for offset in (ends[2], ends[4]):
        with pytest.raises(ProtocolError):
            target.log.append_replicated(offset, [data[offset : offset + 10]])
    assert target.log.end_offset == ends[3]


def test_a_cut_log_goes_on_with_other_bytes(kind: type[Subject]) -> None:
    source, ends = master(kind)
    data = content(source.log)
    for end_offset in (0, ends[0], ends[50], ends[-2], ends[-1]):
        target = kind()
        copy(target, data, Random(end_offset))
        target.flush()
        target.log.truncate(end_offset)
        assert target.log.end_offset == target.log.flushed_offset == end_offset
        assert content(target.log) == data[:end_offset]
        copy(target, data[end_offset:], Random(end_offset + 1))
        assert content(target.log) == data
        assert target.log.flushed_offset == end_offset, "what was appended since is not durable"


def test_a_log_is_cut_between_records_only(kind: type[Subject]) -> None:
    source, ends = master(kind)
    source.flush()
    data = content(source.log)
    for offset in (1, ends[7] + 1, ends[-1] - 1):
        with pytest.raises(ProtocolError):
            source.log.truncate(offset)
    assert content(source.log) == data
    assert source.log.flushed_offset == ends[-1]


def test_a_log_that_is_thrown_away_begins_where_it_was_told(kind: type[Subject]) -> None:
    source, _ = master(kind)
    data = content(source.log)
    target = kind()
    copy(target, data, Random(1))
    target.log.reset(SEGMENT_BYTES)
    assert (target.log.min_offset, target.log.end_offset, target.log.flushed_offset) == (SEGMENT_BYTES,) * 3
    assert content(target.log) == b""
    target.log.append_replicated(SEGMENT_BYTES, [data[SEGMENT_BYTES : SEGMENT_BYTES + 1000]])
    assert content(target.log) == data[SEGMENT_BYTES : SEGMENT_BYTES + 1000]


@pytest.mark.parametrize("torn_bytes", [0, 1, 3])
def test_a_settled_log_ends_with_a_whole_record_and_is_durable(kind: type[Subject], torn_bytes: int) -> None:
    source, ends = master(kind)
    data = content(source.log)
    target = kind()
    whole = ends[40]
    target.log.append_replicated(0, [data[: whole + torn_bytes]])
    target.log.settle()
    assert target.log.end_offset == target.log.flushed_offset == whole
    assert content(target.log) == data[:whole]
