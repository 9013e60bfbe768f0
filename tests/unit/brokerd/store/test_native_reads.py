"""Units that C reads out of a queue's files are those that Python reads, and what Python refuses is left to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from brokerd.native.wanted import WantedArea
from brokerd.store.queues.consume_queue import CHECKS_DIRECTORY, DIRECTORY, ConsumeQueue, DamagedUnits, QueueFiles
from brokerd.store.queues.native_reads import NativeReads
from brokerd.store.queues.unit_checks import BLOCK_UNITS, ENTRY_BYTES
from brokerd.store.settings import StoreSettings
from brokerd.store.sight import Sight
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import LocalDisk
from remoting.errors import LogboomError
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import draft, open_store, put, sync

FILE_UNITS = 5 * BLOCK_UNITS + 40
NAMES = ("T/0", "größe/7", str(b"gr\xf6\xdfe/7", "utf-8", "surrogateescape"))
Read = bytes | int | str


def units_from(first: int, count: int) -> bytes:
    return b"".join(UNIT.pack(number * 100, 90, number) for number in range(first, first + count))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LocalDisk]:
    disk = LocalDisk(tmp_path / "data")
    yield disk
    disk.close()


def both(disk: LocalDisk) -> tuple[QueueFiles, QueueFiles]:
    """What reads in Python, and in C."""
    python, in_c = (QueueFiles(disk, FILE_UNITS, 8) for _ in range(2))
    in_c.native = NativeReads(native_library(), disk.full_path(DIRECTORY), disk.full_path(CHECKS_DIRECTORY), FILE_UNITS)
    return python, in_c


def read(files: QueueFiles, directory: str, first: int, count: int) -> Read:
    """The units; where they are damaged; or why there are none."""
    try:
        return files.read_checked(directory, first, count)
    except DamagedUnits as error:
        return error.first
    except LogboomError as error:
        return type(error).__name__


def change(rng: Random, root: Path, directory: str, files: QueueFiles, end: int) -> int:
    """Something happens to the files of a queue of so many units: how many there are then."""
    places = [root / place / directory.removeprefix(f"{DIRECTORY}/") for place in (DIRECTORY, CHECKS_DIRECTORY)]
    path = places[rng.randrange(2)] / f"{rng.randrange(2) * FILE_UNITS * UNIT_BYTES:020d}"
    kind = rng.randrange(8)
    if kind < 4 or not path.exists():
        count = rng.choice((1, 3, BLOCK_UNITS, 200))
        files.write(directory, end, units_from(end, count))
        return end + count
    match kind:
        case 4:
            offset = rng.randrange(max(1, end))
            files.zero_from(directory, offset, files.list(directory), sync=False)
            return offset
        case 5 if path.stat().st_size:
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
        case 6 if path.parent == places[1]:
            path.unlink()
        case _:
            os.truncate(path, rng.randrange(path.stat().st_size + 1) // ENTRY_BYTES * ENTRY_BYTES)
    return end


@pytest.mark.parametrize("seed", range(20))
def test_both_read_the_same_whatever_happened_to_the_files(seed: int, disk: LocalDisk, tmp_path: Path) -> None:
    rng, ends, kinds = Random(seed), dict.fromkeys(NAMES, 0), {bytes: 0, int: 0, str: 0}
    in_c = both(disk)[1]
    by_c = 0
    for _ in range(60):
        name = rng.choice(NAMES)
        directory = f"{DIRECTORY}/{name}"
        ends[name] = change(rng, tmp_path / "data", directory, in_c, ends[name])
        for _ in range(4):
            first, count = rng.randrange(2 * FILE_UNITS), rng.choice((1, 32, BLOCK_UNITS, 800))
            assert in_c.native is not None
            found = in_c.native.read(os.fsencode(name), first, count)
            python = both(disk)[0]  # which has no file open yet
            expected = read(python, directory, first, count)
            python.close()
            in_c.close()  # what its twin has open may be gone
            assert found in (None, expected)
            assert read(in_c, directory, first, count) == expected
            by_c += found is not None
            kinds[type(expected)] += 1
    assert by_c > 20
    assert kinds[bytes] > 20
    assert kinds[int] + kinds[str] > 5
    in_c.close()


def test_what_no_queue_has_is_left(disk: LocalDisk) -> None:
    files = both(disk)[1]
    files.write(f"{DIRECTORY}/T/0", 0, units_from(0, 300))
    assert files.native is not None
    read_units = files.native.read
    assert read_units(b"T/0", 290, 10) == units_from(290, 10)
    for name in (b"T/1", b"", b"T", b"x" * 4000, b"x" * 5000):
        assert read_units(name, 0, 10) is None
    for first, count in ((-1, 3), (0, 0), (0, -1), (1 << 62, 1), (-(1 << 63), 1)):
        assert read_units(b"T/0", first, count) is None
    assert read_units(b"T/0", 0, (1 << 63) - 1) == files.read(f"{DIRECTORY}/T/0", 0, FILE_UNITS)


def test_no_more_than_there_is_room_for_is_read(disk: LocalDisk) -> None:
    units = 100 * BLOCK_UNITS
    native = NativeReads(native_library(), disk.full_path(DIRECTORY), disk.full_path(CHECKS_DIRECTORY), units)
    QueueFiles(disk, units, 8).write(f"{DIRECTORY}/T/0", 0, units_from(0, 9000))
    assert native.read(b"T/0", 0, 64 * BLOCK_UNITS) == units_from(0, 64 * BLOCK_UNITS)
    assert native.read(b"T/0", 0, 64 * BLOCK_UNITS + 1) is None
    assert native.read(b"T/0", 1, 64 * BLOCK_UNITS) is None


def test_readers_of_many_queues_open_no_file_for_long_and_read_ahead_when_they_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues, each = 300, 100
    settings = StoreSettings(open_queue_files=16)
    store = open_store(LocalDisk(tmp_path / "data"), settings=settings, library=native_library())
    for _ in range(each):
        put(store, *(draft(b"x", topic="T", queue_id=queue_id) for queue_id in range(queues)))
    sync(store)
    store.checkpoint()
    for queue in store.queues.table.values():
        queue.rest()
    before = len(os.listdir("/proc/self/fd"))
    sight, reads = Sight(WantedArea()), []
    run = ConsumeQueue.read_ahead

    def counted(queue: ConsumeQueue, first: int, least: int, most: int) -> bytes:
        reads.append(least)
        return run(queue, first, least, most)

    monkeypatch.setattr(ConsumeQueue, "read_ahead", counted)
    sight.ahead_units = 1024
    for offset in range(0, each, 50):
        for queue_id in range(queues):
            sight.read("T", queue_id, 32)
            assert store.sees(sight, offset)
    assert reads == [32] * (2 * queues)
    assert len(os.listdir("/proc/self/fd")) <= before + settings.open_queue_files
    sight.read("T", queues - 1, 32)
    for offset in range(50, each, 4):
        assert store.sees(sight, offset)
    assert len(reads) == 2 * queues, "what is behind was read at once"
    store.close()
