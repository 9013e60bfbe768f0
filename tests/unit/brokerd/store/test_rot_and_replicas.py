"""Damage in one copy of the log stays there: a replica takes no record that is not what was stored, a master sends none."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.native.library import Library
from brokerd.store.log.verified_reads import VerifiedReads
from brokerd.store.store import MessageStore
from remoting.errors import CorruptedFile, DamagedRecord
from remoting.record.layout import BORDER
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, draft, log_bytes, make_store, open_store, put, sync

PATH = "commitlog/{:020}"


@pytest.fixture(params=["python", "native"])
def library(request: pytest.FixtureRequest) -> Library | None:
    """What checks records."""
    return None if request.param == "python" else native_library()


def master(
    seals: bool = True, disk: MemoryDisk | None = None, library: Library | None = None
) -> tuple[MessageStore, list[int]]:
    """A log of several files with small records and large ones, and where they begin."""
    rng = Random(7)
    store = open_store(disk or MemoryDisk(), library=library)
    store.adds_checksums = seals
    sizes = [1, 40, 300, 2000, 5, 900, 1, 1, 2500, 60, 700, 3000, 10, 20, 30]
    begins = [put(store, draft(rng.randbytes(size), tag="t"))[0].physical_offset for size in sizes]
    assert store.commitlog.end_offset > 2 * SEGMENT_BYTES
    return store, begins


def replica(library: Library | None = None) -> tuple[MessageStore, StoreReplicatedLog]:
    store = make_store(MemoryDisk(), library=library)
    store.load()
    return store, StoreReplicatedLog(store, lambda: None)


def copy(log: StoreReplicatedLog, data: bytes, chunk: int) -> None:
    while log.end_offset < len(data):
        log.append_replicated(log.end_offset, [data[log.end_offset : log.end_offset + chunk]])


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000, 1 << 20])
def test_a_replica_refuses_each_flipped_bit_and_takes_the_good_record(chunk: int, library: Library | None) -> None:
    store, begins = master()
    data = log_bytes(store)
    copied, log = replica(library)
    rng = Random(chunk)
    for begin in begins[1:]:
        size = BORDER.unpack_from(data, begin)[0]
        copy(log, data[:begin], chunk)
        damaged = bytearray(data)
        damaged[begin + rng.randrange(36, size)] ^= 1 << rng.randrange(
            8
        )  # behind what makes it look like a record there
        with pytest.raises(DamagedRecord) as found:
            copy(log, bytes(damaged), chunk)
        assert found.value.damage == (begin, size)
        assert log.end_offset == copied.commitlog.complete_offset == begin, "nothing of it stays"
        assert not any(copied.commitlog.read(begin, size))
    copy(log, data, chunk)
    assert log_bytes(copied) == data


@pytest.mark.parametrize("chunk", [50, 1 << 20])
def test_records_without_a_checksum_are_taken_by_their_bodies(chunk: int, library: Library | None) -> None:
    store, begins = master(seals=False)
    data = log_bytes(store)
    copied, log = replica(library)
    damaged = bytearray(data)
    damaged[begins[3] + 500] ^= 1  # in the body
    with pytest.raises(DamagedRecord):
        copy(log, bytes(damaged), chunk)
    copy(log, data, chunk)
    assert log_bytes(copied) == data


def test_a_refused_record_is_gone_after_a_power_loss_too() -> None:
    """A part of it may have been durable by then."""
    store, begins = master()
    data = log_bytes(store)
    disk = FaultyDisk(Random(1))
    copied = make_store(disk)
    copied.load()
    log = StoreReplicatedLog(copied, lambda: None)
    begin = begins[3]
    copy(log, data[: begin + 1000], 300)
    sync(copied)
    with pytest.raises(DamagedRecord):
        log.append_replicated(log.end_offset, [bytes(len(data) - log.end_offset)[: SEGMENT_BYTES // 2]])
    disk.crash()
    again = make_store(disk)
    again.load()
    assert log_bytes(again) == data[:begin]


@pytest.mark.parametrize("seals", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_master_sends_is_the_log_wherever_it_is_asked(seals: bool, seed: int, library: Library | None) -> None:
    store, _ = master(seals, library=library)
    sync(store)
    data, rng = log_bytes(store), Random(seed)
    reads = VerifiedReads(store.commitlog)
    for _ in range(150):
        offset = rng.randrange(len(data))
        for _ in range(rng.randrange(1, 6)):
            if offset < len(data):
                piece = reads.read(offset, rng.choice((1, 30, 500, 4096, 1 << 20)))
                assert piece
                assert data.startswith(piece, offset)
                offset += len(piece)


@pytest.mark.parametrize("length", [10, 700, 1 << 20])
def test_a_master_sends_what_precedes_damage_and_names_it(length: int, library: Library | None) -> None:
    disk = FaultyDisk(Random(3))
    store, begins = master(disk=disk, library=library)
    sync(store)
    data, rng = log_bytes(store), Random(length)
    for begin in begins:
        size = BORDER.unpack_from(data, begin)[0]
        for position in (1, 5, 30, rng.randrange(36, size), size - 1):
            path, place = PATH.format(begin - begin % SEGMENT_BYTES), begin % SEGMENT_BYTES + position
            disk.flip_bit(path, place, 3)
            reads, offset = VerifiedReads(store.commitlog), 0
            while offset < begin:
                piece = reads.read(offset, length)
                assert data.startswith(piece, offset)
                offset += len(piece)
            assert offset == begin
            with pytest.raises(CorruptedFile) as found:
                reads.read(offset, length)
            assert found.value.damage in ((begin, 0), (begin, size))
            with pytest.raises(CorruptedFile):  # for a replica that was cut off inside of it
                VerifiedReads(store.commitlog).read(begin + size // 2, length)
            disk.flip_bit(path, place, 3)
            assert data.startswith(reads.read(offset, length), offset), "once repaired it is sent"


def test_what_is_not_durable_yet_is_sent_without_a_look() -> None:
    """It is in memory since it was appended, and no disk can have changed it."""
    store, _ = master()
    assert store.commitlog.flushed_offset == 0
    reads = VerifiedReads(store.commitlog)
    assert reads.read(50, 100) == log_bytes(store)[50:150]
    assert not reads._content


def test_a_new_master_goes_on_as_the_one_before_until_it_knows_better() -> None:
    """Whether its replicas know checksums it learns when they come, and its first records do not wait for that."""
    store, _ = master()
    log = StoreReplicatedLog(store, lambda: None)
    for on, told in ((True, True), (None, True), (False, False), (None, False), (True, True)):
        log.seal_records(on)
        assert store.adds_checksums is told
        put(store, draft(b"next"))
    without_any = make_store(MemoryDisk(), settings=replace(SETTINGS, record_checksums=False))
    without_any.seal_records(True)
    assert not without_any.adds_checksums
