"""Records in one piece: the same bytes whichever way they are read, and never others than were stored, however often."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.run_copies import FilePart, joined, joined_in_c
from brokerd.store.queues.queue_reads import joined as joined_result
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Run, Suspicion
from brokerd.store.unit import UNIT, Unit
from remoting.disk import Bytes, Disk, LocalDisk
from remoting.errors import CorruptedFile
from remoting.java_hash import java_hash
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, draft, log_bytes, open_store, put
from tests.unit.brokerd.store.test_commitlog import fill, make_log, record


@pytest.fixture(params=["memory", "local"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return MemoryDisk() if request.param == "memory" else LocalDisk(tmp_path / "data")


@pytest.fixture(params=["python", "native"])
def library(request: pytest.FixtureRequest) -> Library | None:
    """Checks in Python, and in C where that can be built."""
    return None if request.param == "python" else native_library()


def read(log: CommitLog, units: list[Unit]) -> bytes | None:
    encoded = b"".join(UNIT.pack(*unit) for unit in units)
    return log.reads.joined(units, encoded, sum(size for _, size, _ in units))


def test_records_are_the_same_however_close_they_lie(disk: Disk, library: Library | None) -> None:
    log = make_log(disk, library)
    sizes = [200, 120, 333, 150] * 30
    offsets = [fill(log, 1, size)[0] for size in sizes]
    units = [(offset, size, 0) for offset, size in zip(offsets, sizes, strict=True)]
    for step in (1, 2, 3, 5):
        for first in range(len(units)):
            for count in (1, 2, 4, 7):
                chosen = units[first : first + step * count : step]
                expected = b"".join(log.read(offset, size) for offset, size, _ in chosen)
                is_in_one_file = len({offset // SEGMENT_BYTES for offset, _, _ in chosen}) == 1
                for _ in range(2):
                    assert read(log, chosen) == (expected if is_in_one_file else None)
                encoded = b"".join(UNIT.pack(*unit) for unit in chosen)
                assert b"".join(log.reads.records(chosen, encoded, len(expected))) == expected
    log.close()


def test_close_records_of_an_older_file_take_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = make_log(LocalDisk(tmp_path / "data"))
    units = [(offset, 200, 0) for offset in fill(log, 100)]
    reads: list[tuple[int, int]] = []

    def counted(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return log.read(offset, length)

    monkeypatch.setattr(log.reads, "_read", counted)
    assert read(log, units[:4]) == log.read(0, 800)
    assert read(log, units[:12:3]) is not None
    assert reads == [(0, 800), (0, 2000)]
    read(log, units[:20:6])
    assert reads[2:] == [(1200 * number, 200) for number in range(4)]
    del reads[:]
    assert read(log, [(offset, 200, 0) for offset, _, _ in units[-4:]]) is not None
    assert not reads, "new files are mapped"
    log.close()


@pytest.mark.parametrize("seed", range(30))
def test_one_call_joins_what_steps_join(seed: int, tmp_path: Path) -> None:
    """Out of memory and out of a file; also of units that name nothing, or what is elsewhere, and of a sum that is wrong."""
    rng = Random(seed)
    in_c = joined_in_c(native_library())
    path, cuts, by_file = tmp_path / "file", Random(seed), 0
    log = make_log(MemoryDisk())
    places = [(fill(log, 1, size)[0], size) for size in rng.choices((120, 200, 333), k=10)]
    content, begin = log.read(0, log.end_offset), rng.choice((0, 0, 40))
    for _ in range(200):
        chosen = rng.sample(places, rng.randrange(len(places)))
        if rng.random() < 0.3:
            chosen.append(
                (rng.choice((-1, 0, 5, log.end_offset - 100, 1 << 62)), rng.choice((-1, 0, 90, 200, 1 << 30)))
            )
            rng.shuffle(chosen)
        units = b"".join(UNIT.pack(offset, size, 7) for offset, size in chosen)
        source = bytearray(content[begin:])
        if rng.random() < 0.2:
            source[rng.randrange(len(source))] ^= 1
        total = max(0, min(sum(size for _, size in chosen) + rng.choice((0, 0, 0, -1, 1)), 1 << 16))
        expected = joined(memoryview(source), begin, units, total) if total > 1 else None
        assert in_c(memoryview(source), begin, units, total) == expected
        path.write_bytes(source[: len(source) - cuts.choice((0, 0, 1, 1000))])
        with path.open("rb") as file:
            found = in_c(FilePart(file.fileno(), len(source)), begin, units, total)
        if path.stat().st_size == len(source):
            assert found == expected
            by_file += found is not None
        else:
            assert found in (None, expected), "the file ends before its end"
    assert by_file > 5


@pytest.mark.parametrize("step", [1, 2])
def test_damage_behind_a_read_that_was_known_is_noticed_wherever_it_is(step: int, library: Library | None) -> None:
    disk = FaultyDisk(Random(3))
    log = make_log(disk, library)
    units = [(offset, 200, 0) for offset in fill(log, 16)][::step][:8]
    expected = read(log, units)
    for position in (3, 31, 35, 88, 150, 187):  # the ends of size and place, of the body, and what is in it
        for offset, _, _ in units:
            assert read(log, units) == expected
            disk.flip_bit("commitlog/" + "0" * 20, offset + position, 5)
            for _ in range(2):  # what failed once is not known either
                with pytest.raises(CorruptedFile, match=f"at offset {offset} of the commitlog is damaged"):
                    read(log, units)
            disk.flip_bit("commitlog/" + "0" * 20, offset + position, 5)


@pytest.mark.parametrize("count", [1, 8])
def test_no_flipped_bit_of_a_record_is_given_out(count: int, library: Library | None) -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk, library=library)
    places = put(store, *(draft(b"body %d" % number, tag="tag") for number in range(count)))
    expected = store.read_joined("TopicA", 0, 0, count, 1 << 20)
    assert expected.body == log_bytes(store)
    place = places[count // 2]
    for position in range(place.size):
        for bit in (0, 5):
            disk.flip_bit("commitlog/" + "0" * 20, place.physical_offset + position, bit)
            if count > 1:
                before = store.read_joined("TopicA", 0, 0, count, 1 << 20)
                assert before.body == expected.body[: place.physical_offset], "what precedes the damage"
            with pytest.raises(CorruptedFile) as found:
                store.read_joined("TopicA", 0, count // 2, count, 1 << 20)
            assert found.value.damage == (place.physical_offset, place.size)
            disk.flip_bit("commitlog/" + "0" * 20, place.physical_offset + position, bit)
    assert store.read_joined("TopicA", 0, 0, count, 1 << 20) == expected


def test_what_precedes_damage_is_given_out_also_when_there_is_more_of_it(library: Library | None) -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk, library=library)
    places = put(store, *(draft(b"body %d" % number, tag="tag") for number in range(8)))
    expected = store.read_joined("TopicA", 0, 0, 8, 1 << 20).body
    file = "commitlog/" + "0" * 20
    disk.flip_bit(file, places[3].physical_offset + 90, 0)  # its body
    disk.flip_bit(file, places[5].physical_offset + 30, 0)  # its place
    assert store.read_joined("TopicA", 0, 0, 8, 1 << 20).body == expected[: places[3].physical_offset]


def test_a_known_read_does_not_vouch_for_another_one_of_the_same_records(library: Library | None) -> None:
    log = make_log(MemoryDisk(), library)
    units = [(offset, 200, 0) for offset in fill(log, 8)]
    assert read(log, units) is not None
    halves: list[Unit] = [(1400, 100, 0), (1500, 100, 0)]
    for wrong in ([(0, 1600, 0)], [*units[:7], *halves], [*units[:6], (1200, 100, 0), (1300, 300, 0)]):
        with pytest.raises(CorruptedFile):
            read(log, wrong)


def test_records_in_the_place_of_others_that_were_cut_are_read_as_they_are(disk: Disk, library: Library | None) -> None:
    log = make_log(disk, library)
    fill(log, 8)
    units = [(200 * number, 200, 0) for number in range(8)]
    assert read(log, units) == log.read(0, 1600)
    log.truncate(800)
    for number in range(4, 8):
        log.append(record(log.end_offset, 200, number + 13), 200)
    assert read(log, units) == b"".join(record(200 * n, 200, n if n < 4 else n + 13) for n in range(8))
    log.truncate(800)
    with pytest.raises(CorruptedFile):
        read(log, units)
    log.close()


def queues(seed: int) -> MessageStore:
    """A store whose queues' messages lie between one another, of all sizes and two tags, some of them in files by now."""
    rng = Random(seed)
    store = open_store(MemoryDisk())
    for _ in range(rng.randrange(1, 60)):
        put(
            store,
            *(
                draft(b"x" * rng.choice((0, 50, rng.randrange(900))), queue_id=rng.randrange(3), tag=rng.choice("ab"))
                for _ in range(rng.randrange(1, 5))
            ),
        )
    return store


@pytest.mark.parametrize("seed", range(40))
def test_in_one_piece_or_one_by_one_it_is_the_same_read(seed: int) -> None:
    store = queues(seed)
    rng = Random(seed)
    for _ in range(100):
        tags = rng.choice((None, None, {java_hash("a")}, {java_hash("z")}))
        asked = (rng.choice(("TopicA", "TopicA", "TopicA", "No")), rng.randrange(4), rng.randrange(-1, 60))
        limits = (rng.choice((1, 3, 5, 32)), rng.choice((1, 500, 3000, 1 << 18)))
        assert store.read_joined(*asked, *limits, tags) == joined_result(store.read_messages(*asked, *limits, tags))


def copied_run(store: MessageStore, first: int, into: memoryview) -> tuple[list[Unit], list[Unit], bytes]:
    run = store.read_run("TopicA", 0, first, 100, into, 77)
    entries = list(UNIT.iter_unpack(run.entries))
    return list(UNIT.iter_unpack(run.units)), entries, bytes(into[: sum(size for _, size, _ in entries)])


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_run_is_copied_as_far_as_there_is_room_and_up_to_damage(is_mapped: bool, library: Library | None) -> None:
    disk = FaultyDisk(Random(3))
    store = open_store(disk, library=library)
    for number in range(12):
        put(store, draft(bytes(50 + number)), draft(b"x" * 30, topic="Other"))
    if not is_mapped:
        store.close()
        store = open_store(disk, library=library)
    units = store.read_units("TopicA", 0, 0, 12)
    found: list[bytes] = []
    while len(found) < 12:
        into = memoryview(bytearray(sum(size for _, size, _ in units[len(found) :][:3]) + 10))
        told, entries, content = copied_run(store, len(found), into)
        assert told == units[len(found) : len(found) + len(entries)]
        place = 77
        for (_, size, code), entry in zip(told, entries, strict=True):
            assert entry == (place, size, code)
            found.append(content[place - 77 : place - 77 + size])
            place += size
    assert found == [store.commitlog.read(offset, size) for offset, size, _ in units]
    too_short = memoryview(bytearray(units[0][1] - 1))
    assert copied_run(store, 0, too_short) == (units[:1], [], b"")
    assert copied_run(store, 12, too_short) == ([], [], b"")
    suspicions: list[Suspicion] = []
    store.damage_listeners.append(suspicions.append)
    position, size, _ = units[4]
    start = position - position % SEGMENT_BYTES
    disk.flip_bit(f"commitlog/{start:020}", position - start + size // 2, 5)
    into = memoryview(bytearray(10_000))
    at = 0
    while at < 4:
        at += len(copied_run(store, at, into)[1])
    assert at == 4
    with pytest.raises(CorruptedFile):
        copied_run(store, 4, into)
    assert [(each.physical_offset, each.queue_offset) for each in suspicions] == [(position, 4)]
    store.close()


@pytest.mark.parametrize("is_mapped", [True, False])
def test_who_looks_gets_the_bytes_that_the_first_records_are_in(is_mapped: bool) -> None:
    """Those of the other files he asks for again, and no place that a unit names has him read elsewhere."""
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(30):
        put(store, draft(bytes(50 + 9 * number)), draft(b"x" * 30, topic="Other"))
    if not is_mapped:
        store.close()
        store = open_store(disk)
    units, look_at, found = store.read_units("TopicA", 0, 0, 30), store.commitlog.reads.look_at, list[bytes]()
    asked = 0

    def look(source: Bytes, begin: int) -> list[bytes]:
        places = [(offset - begin, size) for offset, size, _ in units[len(found) :]]
        return [bytes(source[at : at + size]) for at, size in places if 0 <= at <= len(source) - size]

    while len(found) < len(units):
        seen = look_at(b"".join(UNIT.pack(*each) for each in units[len(found) :]), look)
        assert seen, "the first one is there"
        found += seen
        asked += 1
    assert found == [store.commitlog.read(offset, size) for offset, size, _ in units]
    assert asked == len({offset // SEGMENT_BYTES for offset, _, _ in units})
    for offset, size in ((1 << 40, 100), (-5, 100), (units[-1][0], 0), (units[-1][0], 1 << 30), (units[-1][0], -1)):
        content, begin = look_at(UNIT.pack(offset, size, 0), lambda source, begin: (len(source), begin))
        assert content <= SEGMENT_BYTES
        assert begin <= max(0, offset)
    store.close()


def copied_aside(store: MessageStore, first: int, into: memoryview) -> Run:
    """By a helper thread."""
    run = store.run_aside("TopicA", 0, first, 100)
    assert run is not None
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run, into, 77).result()


@pytest.fixture
def mapped(tmp_path: Path, library: Library | None) -> Iterator[MessageStore]:
    """A store on a real disk, with a topic among others in two files."""
    store = open_store(LocalDisk(tmp_path / "data"), library=library)
    for number in range(20):
        put(store, draft(bytes(50 + number)))
        put(store, draft(b"x" * 30, topic="Other"))
    yield store
    store.close()


@pytest.mark.parametrize("messages_in_room", [1, 2, 7, 100])
def test_a_helper_thread_copies_the_same_run(mapped: MessageStore, messages_in_room: int) -> None:
    units = mapped.read_units("TopicA", 0, 0, 20)
    assert units[0][0] // SEGMENT_BYTES < units[-1][0] // SEGMENT_BYTES
    at = 0
    while at < 20:
        room = sum(size for _, size, _ in units[at:][:messages_in_room]) + 10
        into, other = memoryview(bytearray(room)), memoryview(bytearray(room))
        run = copied_aside(mapped, at, into)
        assert run == mapped.read_run("TopicA", 0, at, 100, other, 77)
        assert into == other
        at += len(run.entries) // UNIT.size
    assert mapped.run_aside("TopicA", 0, 20, 1) is None
    too_short = memoryview(bytearray(units[0][1] - 1))
    assert copied_aside(mapped, 0, too_short) == Run(b"", b""), "the loop decides what becomes of it"


def test_a_helper_thread_copies_nothing_that_was_changed_or_cut_off(mapped: MessageStore, tmp_path: Path) -> None:
    into = memoryview(bytearray(10_000))
    (place, size, _), (cut, _, _) = mapped.read_units("TopicA", 0, 3, 2)
    name = tmp_path / "data" / "commitlog" / f"{place - place % SEGMENT_BYTES:020}"
    with name.open("r+b") as file:
        file.seek(place % SEGMENT_BYTES + size // 2)
        (before,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((before ^ 4,)))
    assert len(copied_aside(mapped, 0, into).entries) == 3 * UNIT.size
    assert not copied_aside(mapped, 3, into).entries
    asked = mapped.run_aside("TopicA", 0, 4, 100)
    assert asked is not None
    mapped.truncate(cut)
    assert not asked(into, 77).entries, "nothing is there any more"


def test_a_helper_thread_still_looks_at_a_file_that_left_the_log(mapped: MessageStore) -> None:
    [(place, size, _)] = mapped.read_units("TopicA", 0, 0, 1)
    whole = mapped.commitlog.read(place, size)
    asked = mapped.run_aside("TopicA", 0, 0, 1)
    assert asked is not None
    mapped.commitlog.mark_flushed(mapped.commitlog.sync())
    mapped.commitlog.forget_oldest()()
    into = memoryview(bytearray(size))
    assert asked(into, 77).entries
    assert into == whole


def test_a_cut_waits_for_who_looks_and_lets_nobody_look_meanwhile(mapped: MessageStore) -> None:
    looks = mapped.commitlog.turns.looks
    [(place, _, _)] = mapped.read_units("TopicA", 0, 19, 1)
    looks_now, may_end = threading.Event(), threading.Event()

    def look() -> None:
        with looks.share():
            looks_now.set()
            assert may_end.wait(60)
            assert mapped.commitlog.end_offset > place, "it was not cut"

    with ThreadPoolExecutor(2) as threads:
        looking = threads.submit(look)
        assert looks_now.wait(60)
        cutting = threads.submit(mapped.commitlog.truncate, place)
        may_end.set()
        looking.result(60)
        cutting.result(60)
    assert mapped.commitlog.end_offset == place


def test_no_thread_copies_from_a_file_that_is_not_mapped(library: Library | None) -> None:
    disk = MemoryDisk()
    store = open_store(disk, library=library)
    put(store, draft(b"x"))
    store.close()
    store = open_store(disk, library=library)
    assert store.run_aside("TopicA", 0, 0, 1) is None
    store.close()
