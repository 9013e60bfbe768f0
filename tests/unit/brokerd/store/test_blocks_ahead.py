"""Blocks of the log's file that are written ahead: when, what is behind the end then, and what a disk that refuses them does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from brokerd.store.log.blocks_ahead import AHEAD_BYTES, LEAST_APPENDS, BlocksAhead
from brokerd.store.log.commitlog import CommitLog
from remoting.disk import Disk, LocalDisk
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, bodies, dispatch_all, draft, open_store, put, sync
from tests.unit.brokerd.store.test_commitlog import fill, make_log, record

FILE_BYTES = 1 << 30
FIRST = "commitlog/" + "0" * 20
APPENDS, AHEAD = 3, 1200  # of 200 bytes


def written_ahead(sizes: list[int], limit: int = FILE_BYTES) -> list[int]:
    """What is wanted before each append of such a size."""
    ahead = BlocksAhead(AHEAD_BYTES)
    position, wanted = 0, []
    for size in sizes:
        wanted.append(ahead.wanted(position, position + size, limit))
        position += size
    return wanted


def test_small_appends_find_their_blocks_but_for_the_first() -> None:
    wanted = written_ahead([1000] * 2000)
    covered = position = found = 0
    for zeros in wanted:
        if zeros:
            assert zeros == AHEAD_BYTES + 1000
            covered = position + zeros
        position += 1000
        found += position <= covered
    assert len([zeros for zeros in wanted if zeros]) == (2_000_000 - 1) // (AHEAD_BYTES + 1000)
    assert found >= 2000 - AHEAD_BYTES / 1000 - 2


def test_large_appends_are_written_once() -> None:
    assert not any(written_ahead([AHEAD_BYTES // LEAST_APPENDS + 1000] * 2000))
    assert not any(written_ahead([AHEAD_BYTES * 3] * 100))


def test_that_follows_what_is_appended() -> None:
    small, large = [1000] * 1000, [50_000] * 100
    wanted = written_ahead(small + large + small)
    assert any(wanted[:1000])
    assert not any(wanted[1006:1100])
    assert any(wanted[1100:])


def test_it_ends_with_the_file() -> None:
    limit = 300_000
    wanted = written_ahead([1000] * 300, limit)
    [(number, zeros)] = [(number, zeros) for number, zeros in enumerate(wanted) if zeros]
    assert number * 1000 + zeros == limit


def test_without_bytes_nothing_is_written() -> None:
    ahead = BlocksAhead(0)
    assert not any(ahead.wanted(n * 10, n * 10 + 10, FILE_BYTES) for n in range(100_000))


def ahead_log(disk: Disk) -> CommitLog:
    log = make_log(disk)
    log.write_ahead(AHEAD, APPENDS)
    return log


def held(disk: FaultyDisk) -> int:
    """How much of the log's first file was written."""
    return len(disk.files[FIRST].seen.held)


def test_behind_the_end_are_zeros_and_a_start_finds_the_same_log() -> None:
    disk = FaultyDisk(Random(1))
    log = ahead_log(disk)
    fill(log, 8)
    assert held(disk) > log.end_offset == 1600
    assert not any(disk.open(FIRST).read(1600, SEGMENT_BYTES))
    disk.kill()
    store = open_store(disk)
    assert store.commitlog.end_offset == 1600
    assert [store.commitlog.record_at(n * 200) for n in range(8)] == [record(n * 200, 200, n) for n in range(8)]


def test_they_end_with_each_file() -> None:
    disk = FaultyDisk(Random(1))
    offsets = fill(log := ahead_log(disk), 100)
    assert len(log.segment_starts()) > 4
    assert {file.seen.size for path, file in disk.files.items() if path.startswith("commitlog/")} == {SEGMENT_BYTES}
    assert all(log.record_at(offset) == record(offset, 200, n) for n, offset in enumerate(offsets))


def test_a_cut_takes_them_away() -> None:
    disk = FaultyDisk(Random(1))
    log = ahead_log(disk)
    offsets = fill(log, 8)
    log.truncate(offsets[2])
    assert held(disk) == offsets[2]
    fill(log, 2)
    assert held(disk) == log.end_offset, "how many appends they last for is found out anew"
    fill(log, 8)
    assert held(disk) > log.end_offset


def test_what_a_suspect_log_keeps_behind_its_end_is_not_written_over() -> None:
    disk = FaultyDisk(Random(1))
    fill(make_log(disk), 15)
    log = CommitLog(disk, SETTINGS)
    log.recovered(1000, keep_rest=True)
    log.write_ahead(AHEAD, 0)
    assert disk.open(FIRST).read(1000, 200) == record(1000, 200, 5)
    log.give_up_rest()
    fill(log, 1)
    assert log.record_at(1000) == record(1000)
    assert not any(disk.open(FIRST).read(1200, SEGMENT_BYTES))


def test_a_disk_without_room_for_them_takes_records() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=2200)
    log = ahead_log(disk)
    fill(log, 11)
    assert log.end_offset == 2200
    assert disk.counters.no_space_errors == 1, "it is not tried again at once"
    with pytest.raises(StorageError):
        log.append(record(2200), 200)
    disk.capacity_bytes = 1 << 20
    log.append(record(2200), 200)
    assert log.record_at(2200) == record(2200)
    assert log.refusal is None


def test_a_failed_write_of_them_is_final_and_appends_nothing() -> None:
    disk = FaultyDisk(Random(1))
    log = make_log(disk)
    fill(log, 3)
    log.write_ahead(AHEAD, 0)
    disk.fail_write_at(1)
    with pytest.raises(StorageError, match="write commitlog"):
        log.append(record(600), 200)
    assert log.end_offset == 600
    with pytest.raises(StorageError, match="write commitlog"):
        log.append(record(600), 200)
    assert not any(disk.open(FIRST).read(600, 1000))


@pytest.mark.parametrize("seed", range(40))
def test_what_was_synced_outlives_a_power_loss(seed: int) -> None:
    disk = FaultyDisk(Random(seed))
    store = open_store(disk)
    store.commitlog.write_ahead(AHEAD, APPENDS)
    rng = Random(seed)
    number = durable = 0
    for _ in range(rng.randrange(2, 8)):
        for _ in range(rng.randrange(1, 8)):
            put(store, draft(b"%d" % number))
            number += 1
        if rng.random() < 0.6:
            sync(store)
            durable = number
    disk.crash()
    store = open_store(disk)
    dispatch_all(store)
    found = bodies(store)
    assert durable <= len(found) <= number
    assert found == [b"%d" % n for n in range(len(found))]


def test_a_real_file_has_the_blocks(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "data")
    log = CommitLog(disk, replace(SETTINGS, segment_size_bytes=1 << 20))
    log.recovered(log.end_offset)
    log.write_ahead()
    while log.end_offset <= AHEAD_BYTES + 4000:
        log.append(record(log.end_offset, 4000), 4000)
    log.sync()
    path = tmp_path / "data" / FIRST
    assert path.stat().st_blocks * 512 >= log.end_offset + AHEAD_BYTES
    assert not any(path.read_bytes()[log.end_offset :])
    log.close()
    disk.close()
