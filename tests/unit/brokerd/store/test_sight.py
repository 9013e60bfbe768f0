"""What a reader saw of a queue counts as long as it is what he would see now: whatever was appended, written, cut or removed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from random import Random

import pytest

from brokerd.native.wanted import (
    FILE,
    FILE_BEGIN,
    FILE_DESCRIPTOR,
    FILE_LENGTH,
    MAX_OFFSET,
    MIN_OFFSET,
    UNITS,
    UNITS_BEGIN,
    UNITS_END,
    WantedArea,
)
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.settings import StoreSettings
from brokerd.store.sight import Sight
from brokerd.store.store import MessageStore
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import LocalDisk
from remoting.errors import CorruptedFile
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import draft, open_store, put, sync

TOPICS = ("TopicA", "TopicB")
SEGMENT_BYTES = 1 << 16
Seen = tuple[int, int, bytes, int, int]


def seen(store: MessageStore, sight: Sight, queue_offset: int) -> Seen | None:
    """Min and max offset, the units, and the length and begin of the file: by what the area says."""
    if not store.sees(sight, queue_offset):
        return None
    numbers = sight.area.numbers
    begin, end = numbers[UNITS_BEGIN], numbers[UNITS_END]
    assert begin <= queue_offset < end
    units = ctypes.string_at(numbers[UNITS], (end - begin) * UNIT_BYTES)
    assert sight.file is not None
    expected = store.commitlog.read(numbers[FILE_BEGIN], 64)
    if numbers[FILE]:
        assert ctypes.string_at(numbers[FILE], len(expected)) == expected
    else:
        assert os.pread(numbers[FILE_DESCRIPTOR], len(expected), 0) == expected
    return (
        numbers[MIN_OFFSET],
        numbers[MAX_OFFSET],
        units[(queue_offset - begin) * UNIT_BYTES :],
        *((numbers[FILE_LENGTH], numbers[FILE_BEGIN])),
    )


def there(store: MessageStore, sight: Sight, queue_offset: int) -> Seen | None:
    """The same by who looks each time."""
    queue = store.queues.table.get(sight.key)
    if queue is None:
        return None
    low, high = queue.min_offset(store.commitlog.min_offset), queue.max_offset
    if not low <= queue_offset < high:
        return None
    units = queue.read_run(queue_offset, sight.most_units)
    segment = store.commitlog.reads.segment_of(UNIT.unpack_from(units)[0])
    assert segment is not None
    return low, high, units, SEGMENT_BYTES, segment.start


def any_change(rng: Random, store: MessageStore) -> None:
    match rng.randrange(9):
        case 0:
            sync(store)
            store.checkpoint()
        case 1:
            for queue in store.queues.table.values():
                queue.rest()
        case 2:
            topic = rng.choice(TOPICS)
            units = store.read_units(topic, 0, max(0, store.max_offset(topic, 0) - rng.randrange(1, 9)), 1)
            if units:
                store.truncate(units[0][0])
        case 3 if len(store.commitlog._segments) > 1:
            sync(store)
            store.commitlog.forget_oldest()()
        case 4 if store.commitlog._segments:
            rng.choice([*store.commitlog._segments.values()]).unmap()  # as happens to older ones
        case _:
            drafts = [
                draft(rng.randbytes(rng.choice((10, 900))), topic=rng.choice(TOPICS))
                for _ in range(rng.choice((1, 30)))
            ]
            put(store, *drafts)


@pytest.mark.parametrize("seed", range(12))
def test_it_is_what_who_looks_each_time_sees(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    settings = StoreSettings(segment_size_bytes=SEGMENT_BYTES, queue_file_units=3000)
    store = open_store(LocalDisk(tmp_path / "data"), settings=settings)
    sights = [Sight(WantedArea()) for _ in range(5)]
    for sight in sights:
        sight.read(rng.choice(TOPICS), 0, rng.choice((1, 32, 800)))
    found = [0, 0]  # through a descriptor, and through a mapping
    for _ in range(150):
        any_change(rng, store)
        for sight in rng.sample(sights, 3):
            if rng.random() < 0.05:
                sight.read(rng.choice(TOPICS), 0, rng.choice((1, 32, 800)))
            low, high = store.min_offset(*sight.key), store.max_offset(*sight.key)
            queue_offset = rng.choice((low, high - 1, rng.randrange(low, high + 2), low - 1, -1))
            expected, got = there(store, sight, queue_offset), seen(store, sight, queue_offset)
            if expected is None or got is None:
                assert got == expected
                continue
            found[sight.area.numbers[FILE] != 0] += 1
            assert got[2].startswith(expected[2])
            assert (*got[:2], *got[3:]) == (*expected[:2], *expected[3:])
    assert found[False] > 5
    assert found[True] > 100
    store.close()


def test_who_goes_on_behind_what_he_saw_reads_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(LocalDisk(tmp_path / "data"), settings=StoreSettings())
    put(store, *(draft(b"x") for _ in range(200)))
    read, reads = ConsumeQueue.read_ahead, []

    def counted(queue: ConsumeQueue, first: int, least: int, most: int) -> bytes:
        reads.append(first)
        return read(queue, first, least, most)

    monkeypatch.setattr(ConsumeQueue, "read_ahead", counted)
    for ahead, wanted in ((1024, [0]), (128, [0, 128]), (64, [0, 64, 128, 192]), (0, list(range(0, 200, 32)))):
        sight = Sight(WantedArea())
        sight.read("TopicA", 0, 32)
        sight.ahead_units = ahead
        reads.clear()
        for queue_offset in range(0, 200, 32):
            assert store.sees(sight, queue_offset)
            assert len(sight.units) <= UNIT_BYTES * max(32, ahead)
        assert reads == wanted
    store.close()


def test_a_log_that_was_there_at_the_start_is_seen_without_a_mapping(tmp_path: Path) -> None:
    disk, settings = LocalDisk(tmp_path / "data"), StoreSettings(segment_size_bytes=SEGMENT_BYTES)
    store = open_store(disk, settings=settings)
    put(store, draft(b"x"))
    sync(store)
    store.close()
    store = open_store(disk, settings=settings)
    sight = Sight(WantedArea())
    sight.read("TopicA", 0, 32)
    assert seen(store, sight, 0) == there(store, sight, 0)
    assert sight.area.numbers[FILE] == 0
    assert sight.area.numbers[FILE_DESCRIPTOR] >= 0
    store.close()


def test_what_is_not_at_one_place_in_memory_is_not_seen() -> None:
    store = open_store(MemoryDisk())
    put(store, draft(b"x"))
    sight = Sight(WantedArea())
    sight.read("TopicA", 0, 32)
    assert not store.sees(sight, 0)
    store.close()


def test_damaged_units_are_told_also_of_who_saw_them_before(tmp_path: Path) -> None:
    store = open_store(LocalDisk(tmp_path / "data"), settings=StoreSettings())
    put(store, *(draft(b"x") for _ in range(300)))
    sync(store)
    store.checkpoint()
    queue = store.queues.table["TopicA", 0]
    queue.rest()
    suspicions: list[object] = []
    store.damage_listeners.append(suspicions.append)
    sight = Sight(WantedArea())
    sight.read("TopicA", 0, 32)
    assert store.sees(sight, 0)
    path = tmp_path / "data" / "consumequeue" / "TopicA" / "0" / ("0" * 20)
    content = bytearray(path.read_bytes())
    content[200 * UNIT_BYTES] ^= 1
    path.write_bytes(content)
    queue._files.note_written()
    with pytest.raises(CorruptedFile):
        store.sees(sight, 190)
    assert suspicions
    assert store.sees(sight, 0)
    store.close()
