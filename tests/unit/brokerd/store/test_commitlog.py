from __future__ import annotations

import errno
import logging
import resource
from pathlib import Path
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.log.derive import derive
from brokerd.store.log.layout import must_roll
from remoting.disk import Disk, LocalDisk
from remoting.errors import CorruptedFile, ProtocolError, SettingsError, StorageError
from remoting.record.codec import encode_filler, encode_record
from remoting.record.walk import Stop
from tests.support.disks import FaultyDisk, MemoryDisk, MemoryFile, _refused
from tests.unit.brokerd.store.stores import BORN_HOST, SEGMENT_BYTES, SETTINGS, SHAPE, STORE_HOST

LARGEST = SETTINGS.largest_record_bytes


def record(offset: int, size: int = 200, number: int = 0) -> bytes:
    return encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=number,
        physical_offset=offset,
        body=bytes([65 + number % 26]) * (size - 92),
        properties=b"",
        born_timestamp_ms=1,
        born_host=BORN_HOST,
        store_timestamp_ms=1000 + number,
        store_host=STORE_HOST,
    )


def make_log(disk: Disk, library: Library | None = None) -> CommitLog:
    log = CommitLog(disk, SETTINGS, library=library)
    log.recovered(log.end_offset)
    return log


def fill(log: CommitLog, count: int, size: int = 200) -> list[int]:
    """Append records one by one, rolling as needed; returns where they went."""
    offsets = []
    for number in range(count):
        if must_roll(size, log.segment_remaining()):
            log.roll()
        offsets.append(log.end_offset)
        log.append(record(log.end_offset, size, number), size)
    return offsets


def test_only_what_this_process_has_written_is_read_through_a_mapping() -> None:
    """A bad sector below a mapping is a signal that ends the process: it must not meet it again after the next start."""
    disk = FaultyDisk(Random(1))
    places = fill(make_log(disk), 40)
    disk.kill()
    disk.spoil_page(f"commitlog/{SEGMENT_BYTES:020d}", 0)
    log = make_log(disk)
    assert not any(segment.view for segment in log._segments.values())
    bad = [place for place in places if SEGMENT_BYTES <= place < 2 * SEGMENT_BYTES]
    assert [place for place in places if log.record_at(place) is None] == bad
    assert log.unreadable_offset >= bad[0]
    log.recovered(SEGMENT_BYTES)
    fill(log, 60)
    assert [bool(segment.view) for segment in log._segments.values()][-2:] == [True, True]


def test_a_file_for_which_there_is_no_mapping_is_appended_to_and_read_without_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mapping takes a descriptor of its own, and the log goes on where there is none left."""
    log = make_log(LocalDisk(tmp_path / "data"))
    places = fill(log, 15)
    log.prepare_next()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with caplog.at_level(logging.WARNING):
            places.append(log.roll())
        log.append(record(places[-1], number=15), 200)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" in caplog.text
    assert [bool(segment.view) for segment in log._segments.values()] == [True, False]
    assert [log.record_at(place) for place in places] == [record(place, number=n) for n, place in enumerate(places)]
    log.roll()
    assert [bool(segment.view) for segment in log._segments.values()] == [False, True, True]
    log.close()


def test_a_file_that_is_too_long_is_not_taken_for_another_file_size() -> None:
    disk = MemoryDisk()
    make_log(disk)
    fill(make_log(disk), 40)
    disk.open(f"commitlog/{SEGMENT_BYTES:020d}").truncate(2 * SEGMENT_BYTES)
    with pytest.raises(CorruptedFile, match=f"truncate -s {SEGMENT_BYTES}"):
        make_log(disk)


@pytest.fixture(params=["memory", "local"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return MemoryDisk() if request.param == "memory" else LocalDisk(tmp_path / "data")


def test_an_empty_log_has_no_file_and_begins_at_0(disk: Disk) -> None:
    log = make_log(disk)
    assert (log.min_offset, log.flushed_offset, log.complete_offset, log.end_offset) == (0, 0, 0, 0)
    assert log.segment_remaining() == SEGMENT_BYTES
    assert log.read(0, 10) == b""
    assert disk.names("commitlog") == []
    log.close()


def test_records_are_read_back_at_their_offsets_in_files_of_one_size(disk: Disk) -> None:
    log = make_log(disk)
    offsets = fill(log, 50, 333)
    assert [log.record_at(offset) for offset in offsets] == [record(o, 333, n) for n, o in enumerate(offsets)]
    assert log.segment_starts() == [0, 4096, 8192, 12288, 16384]
    assert log.record_at(offsets[0] + 1) is None
    filler_at = offsets[11] + 333
    assert log.is_record_boundary(filler_at)
    assert log.record_at(filler_at) is None
    assert disk.names("commitlog") == [f"{start:020d}" for start in log.segment_starts()]
    log.close()


def test_the_rest_of_a_rolled_file_is_a_filler_and_zeros(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 20)  # 20 x 200: 96 bytes remain
    assert log.segment_remaining() == 96
    assert must_roll(89, 96)
    assert log.roll() == SEGMENT_BYTES
    assert log.read(4000, 4096) == encode_filler(96) + bytes(88)
    assert log.segment_remaining() == SEGMENT_BYTES
    log.close()


def test_a_file_is_used_up_to_its_last_8_bytes(disk: Disk) -> None:
    log = make_log(disk)
    assert not must_roll(LARGEST, log.segment_remaining())
    log.append(record(0, LARGEST), LARGEST)
    assert log.segment_remaining() == 8
    log.roll()
    log.append(record(SEGMENT_BYTES, 100), 100)
    assert derive(log.read(0, SEGMENT_BYTES), 0, SHAPE).end_offset == SEGMENT_BYTES
    log.close()


def test_several_buffers_are_one_append(disk: Disk) -> None:
    log = make_log(disk)
    parts = [record(0, 200, 0), memoryview(record(200, 300, 1)), bytearray(record(500, 100, 2))]
    assert log.append(parts, 600) == 600
    assert log.read(0, 1000) == b"".join(map(bytes, parts))
    log.close()


def test_a_read_ends_at_a_file_and_at_the_log(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 30)
    assert len(log.read(4000, 1000)) == 96
    assert len(log.read(log.end_offset - 5, 1000)) == 5
    assert log.read(log.end_offset, 1000) == b""
    assert log.read(-1, 10) == b""
    log.close()


def test_older_files_are_read_without_a_mapping_just_the_same(tmp_path: Path) -> None:
    log = make_log(LocalDisk(tmp_path / "data"))
    offsets = fill(log, 100)
    units = [(offset, 200, 0) for offset in offsets]
    assert log.reads.records(units, b"", 200 * len(units)) == [
        record(offset, 200, n) for n, offset in enumerate(offsets)
    ]
    assert log.read(0, 300) == record(0, 200, 0) + record(200, 200, 1)[:100]
    log.close()


def test_reading_records_leaves_out_what_is_gone_and_refuses_what_is_none(disk: Disk) -> None:
    log = make_log(disk)
    offsets = fill(log, 45)
    log.mark_flushed(log.sync())
    log.forget_oldest()()
    assert log.min_offset == SEGMENT_BYTES
    kept = [offset for offset in offsets if offset >= SEGMENT_BYTES]
    assert len(log.reads.records([(offset, 200, 0) for offset in offsets], b"", 200 * len(offsets))) == len(kept)
    assert disk.names("commitlog")[0] == f"{SEGMENT_BYTES:020d}"
    with pytest.raises(CorruptedFile, match="is damaged"):
        log.reads.records([(kept[0] + 1, 200, 0)], b"", 200)
    log.close()


def test_record_boundaries_are_begins_of_records_and_fillers_and_both_ends(disk: Disk) -> None:
    log = make_log(disk)
    offsets = fill(log, 45)
    expected = {*offsets, 4000, 8096, 8192, log.end_offset}
    assert {offset for offset in range(-2, log.end_offset + 3) if log.is_record_boundary(offset)} == expected
    log.close()


def test_the_store_time_is_found_behind_hosts_of_both_kinds(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 2)
    v6 = bytes(16) + b"\0\0\1\1"
    long = encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=0,
        physical_offset=400,
        body=b"",
        properties=b"",
        born_timestamp_ms=1,
        born_host=v6,
        store_timestamp_ms=77,
        store_host=v6,
    )
    log.append(long, len(long))
    assert [log.store_timestamp_at(offset) for offset in (0, 200, 400, log.end_offset)] == [1000, 1001, 77, -1]
    log.close()


# -- durability --------------------------------------------------------------------------------------------------------------


def test_flushed_is_what_a_sync_proved_and_the_loop_was_told(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 30)
    mark = log.sync()
    assert log.flushed_offset == 0
    fill(log, 1)
    assert log.mark_flushed(mark) == mark.offset == log.flushed_offset < log.end_offset
    assert mark.complete_offset == mark.offset
    log.close()


def test_only_files_with_new_bytes_are_synced() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    fill(log, 30)
    log.mark_flushed(log.sync())
    before = disk.counters.syncs
    log.append(record(log.end_offset), 200)
    log.mark_flushed(log.sync())
    assert disk.counters.syncs == before + 1
    fill(log, 15)  # over a file's end
    log.mark_flushed(log.sync())
    assert disk.counters.syncs == before + 3


def test_a_sync_that_began_before_a_cut_proves_nothing(disk: Disk) -> None:
    log = make_log(disk)
    offsets = fill(log, 20)
    mark = log.sync()
    log.truncate(offsets[5])
    fill(log, 10)
    assert log.mark_flushed(mark) <= offsets[5]
    log.close()


def test_a_failed_sync_is_final() -> None:
    disk = FaultyDisk(Random(1))
    log = make_log(disk)
    fill(log, 3)
    disk.fail_sync_at(1)
    with pytest.raises(StorageError, match="sync commitlog"):
        log.sync()
    with pytest.raises(StorageError, match="sync commitlog"):
        log.append(record(600), 200)
    with pytest.raises(StorageError, match="sync commitlog"):
        log.append_replicated(600, record(600))
    with pytest.raises(StorageError, match="sync commitlog"):
        log.roll()
    assert disk.counters.sync_errors == 1


def test_a_sync_does_not_count_that_ended_well_beside_one_that_failed() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=1150)
    log = make_log(disk)
    fill(log, 3)
    mark = log.sync()  # it is told on the loop, which cleans at this moment
    disk.fail_sync_at(1)
    with pytest.raises(StorageError):
        log.append([record(600, 200, 3), record(800, 200, 4), record(1000, 200, 5)], 600)
    assert log.mark_flushed(mark) == 0


def test_no_sync_counts_after_one_that_failed_while_the_rest_of_a_refused_append_was_cleaned() -> None:
    """The system tells of pages that it could not write once, and drops them: the next sync succeeds without them."""
    disk = FaultyDisk(Random(1), capacity_bytes=1150)
    log = make_log(disk)
    fill(log, 3)
    disk.fail_sync_at(1)
    with pytest.raises(StorageError):
        log.append([record(600, 200, 3), record(800, 200, 4), record(1000, 200, 5)], 600)
    assert (disk.counters.sync_errors, disk.counters.no_space_errors >= 1) == (1, True)
    assert log.file_to_sync is None
    with pytest.raises(StorageError, match="sync commitlog"):
        log.sync()
    assert log.flushed_offset == 0
    disk.crash()
    assert CommitLog(disk, SETTINGS).read(0, 600) != record(0) + record(200) + record(400), "they were lost"


def test_a_failed_write_is_final_and_appends_nothing() -> None:
    disk = FaultyDisk(Random(1))
    log = make_log(disk)
    fill(log, 3)
    disk.fail_write_at(1)
    with pytest.raises(StorageError, match="write commitlog"):
        log.append(record(600), 200)
    assert log.end_offset == 600
    with pytest.raises(StorageError, match="write commitlog"):
        log.append(record(600), 200)
    assert disk.counters.write_errors == 1


def test_a_full_disk_appends_nothing_leaves_nothing_and_passes() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=1150)
    log = make_log(disk)
    fill(log, 3)
    batch = [record(600, 200, 3), record(800, 200, 4), record(1000, 200, 5)]
    with pytest.raises(StorageError):
        log.append(batch, 600)
    assert disk.counters.no_space_errors >= 1
    assert log.end_offset == 600
    # Without cleaning, the second record of the failed batch would follow the next append of the first one's size.
    segment = disk.open("commitlog/" + "0" * 20)
    assert segment.read(600, 600) == bytes(600)
    disk.capacity_bytes = 1 << 20
    log.append(record(600, 200, 9), 200)
    assert segment.read(800, 200) == bytes(200)


class CopyOnWriteDisk(FaultyDisk):
    """No byte is overwritten in place: while it is full, zeros need room as well, and the bytes before them stay."""

    is_full = False
    cuts_need_room = False

    def write_file(self, path: str, file: MemoryFile, position: int, content: bytes) -> None:
        if not self.is_full or not path.startswith("commitlog/"):
            super().write_file(path, file, position, content)
            return
        if any(content):
            self._write_some(file, position, content, 450)
        raise _refused("write", path, errno.ENOSPC)

    def resize_file(self, file: MemoryFile, size: int) -> None:
        if self.is_full and (self.cuts_need_room or size == SEGMENT_BYTES):
            raise _refused("cut", "a file", errno.ENOSPC)
        super().resize_file(file, size)


@pytest.mark.parametrize("cuts_need_room", [False, True])
def test_what_a_full_disk_refused_does_not_come_back_where_nothing_is_overwritten_in_place(
    cuts_need_room: bool,
) -> None:
    disk = CopyOnWriteDisk(Random(1))
    log = make_log(disk)
    fill(log, 3)
    batch = [record(600, 200, 3), record(800, 200, 4), record(1000, 200, 5)]
    disk.is_full, disk.cuts_need_room = True, cuts_need_room
    for _ in range(2):
        with pytest.raises(StorageError, match="No space"):
            log.append(batch, 600)
    assert log.end_offset == 600
    if not cuts_need_room:
        assert not any(disk.open("commitlog/" + "0" * 20).read(600, 600)), "not even a start now finds them"
    disk.is_full = False
    log.append(record(600, 200, 9), 200)
    assert not any(disk.open("commitlog/" + "0" * 20).read(800, 600))
    assert log.record_at(600) == record(600, 200, 9)
    assert log.record_at(800) is None
    fill(log, 30)
    assert len(log.read(0, SEGMENT_BYTES)) == SEGMENT_BYTES, "the file is whole again"


def test_a_record_that_was_refused_is_not_found_after_a_power_loss() -> None:
    for seed in range(40):
        disk = FaultyDisk(Random(seed), capacity_bytes=1150)
        log = make_log(disk)
        fill(log, 3)
        with pytest.raises(StorageError):
            log.append([record(600, 200, 3), record(800, 200, 4), record(1000, 200, 5)], 600)
        disk.capacity_bytes = 1 << 20
        log.append(record(600, 200, 9), 200)
        disk.crash()
        assert not any(CommitLog(disk, SETTINGS).read(800, 600)), seed


# -- the next file -------------------------------------------------------------------------------------------------------------


def test_the_next_file_is_ready_when_the_log_rolls() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    log.prepare_next()  # nothing to follow yet
    fill(log, 1)
    log.prepare_next()
    log.prepare_next()
    assert disk.names("commitlog") == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    before = disk.counters.sync_points
    fill(log, 20)
    assert disk.counters.sync_points == before
    assert log.segment_starts() == [0, SEGMENT_BYTES]
    log.close()


def test_a_file_made_ahead_goes_with_a_clean_end_and_with_a_cut() -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    fill(log, 1)
    log.prepare_next()
    log.truncate(0)
    assert disk.names("commitlog") == [f"{0:020d}"]
    fill(log, 1)
    log.prepare_next()
    log.close()
    assert disk.names("commitlog") == [f"{0:020d}"]


def test_when_the_next_file_cannot_be_made_the_roll_is_tried_again() -> None:
    disk = FaultyDisk(Random(1))
    log = make_log(disk)
    fill(log, 20)
    refused: list[str] = []
    original = disk.open

    def refuse(path: str, **options: object) -> object:
        refused.append(path)
        raise StorageError("cannot open: no space")

    disk.open = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(StorageError):
        log.roll()
    disk.open = original  # type: ignore[method-assign]
    assert refused == [f"commitlog/{SEGMENT_BYTES:020d}"]
    assert log.end_offset == SEGMENT_BYTES
    log.append(record(SEGMENT_BYTES), 200)
    assert log.record_at(SEGMENT_BYTES) == record(SEGMENT_BYTES)


# -- cutting -------------------------------------------------------------------------------------------------------------------


def test_a_cut_log_ends_there_and_zeros_follow_on_disk(disk: Disk) -> None:
    log = make_log(disk)
    offsets = fill(log, 60)
    log.mark_flushed(log.sync())
    log.truncate(offsets[25])
    assert log.end_offset == log.complete_offset == log.flushed_offset == offsets[25]
    assert disk.names("commitlog") == [f"{0:020d}", f"{SEGMENT_BYTES:020d}"]
    rest = disk.open(f"commitlog/{SEGMENT_BYTES:020d}")
    assert rest.size_bytes == SEGMENT_BYTES
    assert not any(rest.read(offsets[25] - SEGMENT_BYTES, SEGMENT_BYTES))
    log.append(record(log.end_offset, 200, 99), 200)
    assert log.record_at(offsets[25]) == record(offsets[25], 200, 99)
    log.close()


@pytest.mark.parametrize("offset", [0, SEGMENT_BYTES])
def test_a_log_can_be_cut_at_a_file(disk: Disk, offset: int) -> None:
    log = make_log(disk)
    fill(log, 60)
    log.truncate(offset)
    assert log.end_offset == offset
    log.append(record(offset), 200)
    assert log.record_at(offset) == record(offset)
    log.close()


@pytest.mark.parametrize("offset", [-1, 1, 199, 201, 4001, 100_000])
def test_a_cut_that_is_no_boundary_is_refused(disk: Disk, offset: int) -> None:
    log = make_log(disk)
    fill(log, 45)
    end = log.end_offset
    with pytest.raises(ProtocolError, match="no record starts there"):
        log.truncate(offset)
    assert log.end_offset == end
    log.close()


def test_a_reset_log_is_empty_and_begins_where_told(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 45)
    with pytest.raises(ProtocolError, match="cannot begin at 100"):
        log.reset(100)
    start = 5 * SEGMENT_BYTES
    log.reset(start)
    assert disk.names("commitlog") == []
    assert (log.min_offset, log.flushed_offset, log.complete_offset, log.end_offset) == (start,) * 4
    log.append_replicated(start, record(start))
    assert (log.min_offset, log.end_offset) == (start, start + 200)
    log.close()


def test_a_sync_in_the_middle_of_a_reset_says_nothing_of_the_log_that_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    log = make_log(disk)
    fill(log, 45)
    log.mark_flushed(log.sync())
    log.forget_oldest()()
    marks: list[SyncMark] = []

    class FlushersTurn:
        """The flusher waits for the lock, and has it next."""

        is_over = False

        def __enter__(self) -> None: ...

        def __exit__(self, *_error: object) -> None:
            if not self.is_over:
                self.is_over = True
                marks.append(log.sync())
                log.prepare_next()

    monkeypatch.setattr(log.turns, "contents", FlushersTurn())
    log.reset(0)
    assert marks[0].offset == SEGMENT_BYTES
    assert log.mark_flushed(marks[0]) == log.flushed_offset == 0
    assert disk.names("commitlog") == []
    log.close()


# -- copying a master ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 100, 1000, 4096, 100_000])
def test_a_copied_log_is_the_same_files(chunk: int) -> None:
    master_disk, replica_disk = MemoryDisk(), MemoryDisk()
    master, replica = make_log(master_disk), make_log(replica_disk)
    fill(master, 45, 333)
    while replica.end_offset < master.end_offset:
        replica.append_replicated(replica.end_offset, master.read(replica.end_offset, chunk))
        assert replica.complete_offset <= replica.end_offset
    assert replica.complete_offset == master.end_offset
    assert files(replica_disk) == files(master_disk)


def files(disk: MemoryDisk) -> dict[str, bytes]:
    return {path: file.seen.read(0, file.seen.size) for path, file in disk.files.items()}


def test_copied_bytes_may_span_files() -> None:
    master, replica = make_log(MemoryDisk()), make_log(MemoryDisk())
    fill(master, 45)
    whole = master.read(0, 4096) + master.read(4096, 4096) + master.read(8192, 4096)
    replica.append_replicated(0, whole)
    assert replica.end_offset == master.end_offset
    assert replica.segment_starts() == master.segment_starts()


def test_copied_bytes_must_continue_the_log() -> None:
    replica = make_log(MemoryDisk())
    with pytest.raises(ProtocolError, match="this log ends at 0"):
        replica.append_replicated(200, record(200))
    replica.append_replicated(0, record(0))
    for offset in (0, 100, 400, SEGMENT_BYTES):
        with pytest.raises(ProtocolError, match="this log ends at 200"):
            replica.append_replicated(offset, record(offset))
    assert replica.end_offset == 200


def test_bytes_that_are_no_log_are_not_copied() -> None:
    replica = make_log(MemoryDisk())
    replica.append_replicated(0, record(0))
    for wrong in (b"HTTP/1.1 400 Bad Request, and so on and on", record(0), b"\x7f\xff\xff\xff" + record(200)[4:]):
        with pytest.raises(ProtocolError):
            replica.append_replicated(200, wrong)
    assert replica.end_offset == replica.complete_offset == 200
    replica.append_replicated(200, record(200))
    assert replica.end_offset == 400


def test_a_failed_copy_can_be_tried_again_when_there_is_room() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=500)
    replica = make_log(disk)
    whole = record(0) + record(200) + record(400) + record(600)
    with pytest.raises(StorageError):
        replica.append_replicated(0, whole)
    assert replica.end_offset == replica.complete_offset == 0
    disk.capacity_bytes = 1 << 20
    for start in range(0, len(whole), 30):
        replica.append_replicated(start, whole[start : start + 30])
    assert replica.complete_offset == 800


def test_the_part_of_a_record_is_behind_the_complete_offset_and_in_the_mark_of_a_sync() -> None:
    replica = make_log(MemoryDisk())
    replica.append_replicated(0, record(0) + record(200)[:50])
    assert (replica.complete_offset, replica.end_offset) == (200, 250)
    mark = replica.sync()
    assert (mark.offset, mark.complete_offset) == (250, 200)
    assert replica.is_record_boundary(200)
    replica.truncate(200)
    assert replica.end_offset == 200


# -- opening -----------------------------------------------------------------------------------------------------------------


def test_files_with_a_hole_are_refused(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 60)
    log.close()
    disk.remove(f"commitlog/{SEGMENT_BYTES:020d}")
    with pytest.raises(CorruptedFile, match="is missing"):
        CommitLog(disk, SETTINGS)


def test_a_short_file_in_the_middle_is_refused_and_a_short_last_one_completed(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 60)
    log.close()
    for start in (0, 2 * SEGMENT_BYTES):
        segment = disk.open(f"commitlog/{start:020d}")
        segment.truncate(300)
        segment.close()
    with pytest.raises(CorruptedFile, match="300 of its 4096 bytes"):
        CommitLog(disk, SETTINGS)
    disk.remove("commitlog/" + "0" * 20)
    log = CommitLog(disk, SETTINGS)
    assert log.end_offset == 3 * SEGMENT_BYTES
    log.close()


def test_larger_files_name_the_setting_that_fits(disk: Disk) -> None:
    disk.open("commitlog/" + "0" * 20, create=True, size_bytes=8192).close()
    with pytest.raises(SettingsError, match=r"store\.segment_size_bytes=8192"):
        CommitLog(disk, SETTINGS)


def test_a_stranger_in_the_directory_is_named(disk: Disk) -> None:
    disk.open("commitlog/notes.txt", create=True).close()
    with pytest.raises(CorruptedFile, match=r"commitlog/notes\.txt is not a commitlog file"):
        CommitLog(disk, SETTINGS)


def test_every_record_names_its_place(disk: Disk) -> None:
    log = make_log(disk)
    fill(log, 60)
    for start in log.segment_starts():
        derived = derive(log.read(start, SEGMENT_BYTES), start, SHAPE.checked())
        assert derived.stop is Stop.END
        assert derived.end_offset == min(start + SEGMENT_BYTES, log.end_offset)
    log.close()
