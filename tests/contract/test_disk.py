"""What every `Disk` does: the real directory, the one in memory, and the faulty one when nobody ordered faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from remoting.disk import Disk, LocalDisk
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk, MemoryDisk


@pytest.fixture(params=["local", "memory", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "local":
        local = LocalDisk(tmp_path / "data")
        yield local
        local.close()
    elif request.param == "memory":
        yield MemoryDisk()
    else:
        yield FaultyDisk(Random(1))


def test_a_new_file_has_the_size_asked_for_and_reads_as_zeros(disk: Disk) -> None:
    segment = disk.open("log/0001", create=True, size_bytes=10_000)
    assert segment.size_bytes == 10_000
    assert segment.read(0, 20_000) == bytes(10_000)
    assert segment.path == "log/0001"
    segment.close()


def test_a_huge_new_file_costs_nothing(disk: Disk) -> None:
    segment = disk.open("huge", create=True, size_bytes=1 << 40)
    assert segment.size_bytes == 1 << 40
    assert segment.read((1 << 40) - 3, 10) == bytes(3)
    segment.close()
    disk.remove("huge")


def test_creating_what_is_there_keeps_its_content_and_grows_it(disk: Disk) -> None:
    first = disk.open("a", create=True, size_bytes=4)
    first.write(0, [b"kept"])
    first.close()
    again = disk.open("a", create=True, size_bytes=6)
    assert again.read(0, 10) == b"kept\0\0"
    again.close()
    smaller = disk.open("a", create=True, size_bytes=2)
    assert smaller.size_bytes == 6
    smaller.close()


def test_opening_what_is_not_there_is_refused(disk: Disk) -> None:
    with pytest.raises(StorageError, match="missing"):
        disk.open("missing")
    assert not disk.exists("missing")


def test_written_bytes_are_read_back_before_any_sync(disk: Disk) -> None:
    segment = disk.open("a", create=True, size_bytes=16)
    assert segment.write(3, [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]]) == 6
    assert segment.read(0, 16) == b"\0\0\0abcdef" + bytes(7)
    assert segment.size_bytes == 16
    segment.sync()
    segment.close()
    reopened = disk.open("a")
    assert reopened.read(3, 6) == b"abcdef"
    reopened.close()


def test_writing_takes_any_number_of_buffers(disk: Disk) -> None:
    segment = disk.open("a", create=True)
    assert segment.write(0, []) == 0
    assert segment.write(0, [bytes([n % 256]) for n in range(3000)]) == 3000
    assert segment.read(0, 4000) == bytes(n % 256 for n in range(3000))
    segment.close()


def test_a_write_behind_the_end_grows_the_file_with_zeros(disk: Disk) -> None:
    segment = disk.open("a", create=True, size_bytes=2)
    segment.write(4, [b"x"])
    assert segment.size_bytes == 5
    assert segment.read(0, 9) == b"\0\0\0\0x"
    segment.close()


def test_reading_at_or_behind_the_end_gives_what_is_there(disk: Disk) -> None:
    segment = disk.open("a", create=True, size_bytes=3)
    assert segment.read(2, 5) == b"\0"
    assert segment.read(3, 5) == b""
    assert segment.read(9, 5) == b""
    assert segment.read(0, 0) == b""
    segment.close()


def test_truncate_cuts_and_grows_with_zeros(disk: Disk) -> None:
    segment = disk.open("a", create=True)
    segment.write(0, [b"abcdef"])
    segment.truncate(2)
    assert segment.size_bytes == 2
    assert segment.read(0, 9) == b"ab"
    segment.truncate(5)
    assert segment.read(0, 9) == b"ab\0\0\0"
    segment.sync()
    segment.close()


def test_names_are_sorted_and_include_directories(disk: Disk) -> None:
    for path in ("d/b", "d/a", "d/sub/c"):
        disk.open(path, create=True).close()
    assert disk.names("d") == ["a", "b", "sub"]
    assert disk.names("d/sub") == ["c"]
    assert disk.names("nothing") == []
    assert {"d"} <= set(disk.names(""))
    assert disk.exists("d")
    assert disk.exists("d/sub/c")
    assert not disk.exists("d/c")


def test_removing_a_file_leaves_its_neighbours_and_its_directory(disk: Disk) -> None:
    for path in ("d/a", "d/ab"):
        disk.open(path, create=True).close()
    disk.remove("d/a")
    assert disk.names("d") == ["ab"]
    disk.remove("d/ab")
    assert disk.names("d") == []
    assert disk.exists("d")
    disk.remove("d/ab")


def test_removing_a_directory_removes_what_is_in_it(disk: Disk) -> None:
    for path in ("d/a", "d/sub/b", "dd/a"):
        disk.open(path, create=True).close()
    disk.remove("d")
    assert not disk.exists("d")
    assert not disk.exists("d/sub/b")
    assert disk.exists("dd/a")


def test_a_removed_file_can_still_be_read_by_who_has_it_open(disk: Disk) -> None:
    segment = disk.open("a", create=True)
    segment.write(0, [b"still"])
    disk.remove("a")
    assert segment.read(0, 5) == b"still"
    segment.close()
    fresh = disk.open("a", create=True)
    assert fresh.read(0, 5) == b""
    fresh.close()


def test_small_files_are_replaced_whole(disk: Disk) -> None:
    assert disk.read_bytes("d/small") is None
    disk.replace_bytes("d/small", b"first and longer")
    disk.replace_bytes("d/small", b"second")
    assert disk.read_bytes("d/small") == b"second"
    assert disk.names("d") == ["small"]
    segment = disk.open("d/small")
    assert segment.read(0, 99) == b"second"
    segment.close()


def test_two_handles_see_the_same_file(disk: Disk) -> None:
    writer, reader = disk.open("a", create=True, size_bytes=8), disk.open("a")
    writer.write(1, [b"xy"])
    assert reader.read(0, 8) == b"\0xy" + bytes(5)
    writer.close()
    reader.close()


def test_usage_is_that_of_a_real_place(disk: Disk) -> None:
    usage = disk.usage()
    assert 0 < usage.free_bytes <= usage.total_bytes


def test_a_view_shows_what_is_written_before_and_after_it_was_made(disk: Disk) -> None:
    segment = disk.open("log/0001", create=True, size_bytes=8192)
    segment.write(0, [b"before"])
    view = segment.map()
    segment.write(6, [b" and", b" after"])
    assert view[0:16] == b"before and after"
    assert view[8190:9000] == bytes(2)
    with view.memory() as memory:
        assert bytes(memory[7:10]) == b"and"
    segment.write(0, [b"BEFORE"])
    assert view[0:6] == b"BEFORE"
    view.close()
    segment.close()


def test_a_file_says_when_it_was_written_if_anybody_noted_it(disk: Disk) -> None:
    assert disk.modified_ms("log/0001") is None
    if isinstance(disk, MemoryDisk):
        disk.wall_ms = lambda: 1_700_000_000_123
    before = disk.open("log/0001", create=True, size_bytes=10)
    before.write(0, [b"x"])
    disk.replace_bytes("small", b"x")
    for path in ("log/0001", "small"):
        written_ms = disk.modified_ms(path)
        assert written_ms is not None
        assert written_ms >= 1_700_000_000_123
    before.close()


def test_a_descriptor_that_is_held_stays_open_until_the_last_one_lets_go(tmp_path: Path) -> None:
    local = LocalDisk(tmp_path / "data")
    segment = local.open("a", create=True)
    segment.write(0, [b"kept"])
    descriptor, holds = segment.descriptor, [segment.hold() for _ in range(2)]
    segment.close()
    local.remove("a")
    holds[0].release()
    holds[0].release()  # once more is nothing
    assert os.pread(descriptor, 9, 0) == b"kept"
    holds[1].release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pread(descriptor, 9, 0)
    local.close()


def test_a_file_that_is_closed_touches_no_descriptor_again(tmp_path: Path) -> None:
    """The system gives the number of a descriptor to the next one that opens something."""
    local = LocalDisk(tmp_path / "data")
    segment, held = local.open("a", create=True), local.open("b", create=True)
    hold = held.hold()
    numbers = {segment.descriptor, held.descriptor}
    segment.close()
    held.close()
    hold.release()
    others = [os.open(tmp_path, os.O_RDONLY) for _ in numbers]
    assert set(others) == numbers, "they have the numbers now"
    for file in (segment, held):
        with pytest.raises(StorageError, match="closed"):
            file.hold()
        file.close()
    for number in others:
        os.fstat(number)
        os.close(number)
    local.close()


def test_a_file_that_is_closed_twice_while_it_is_held_is_closed_by_who_holds_it(tmp_path: Path) -> None:
    local = LocalDisk(tmp_path / "data")
    segment = local.open("a", create=True)
    descriptor, hold = segment.descriptor, segment.hold()
    segment.close()
    segment.close()
    hold.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    local.close()


def test_a_descriptor_that_was_held_is_closed_with_its_file(tmp_path: Path) -> None:
    local = LocalDisk(tmp_path / "data")
    segment = local.open("a", create=True)
    descriptor = segment.descriptor
    segment.hold().release()
    os.fstat(descriptor)
    segment.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    local.close()
