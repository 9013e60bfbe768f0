"""One flipped bit of a unit, where units are searched and not only read: nothing is passed over because of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from brokerd.store.queues import rotten
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.settings import StoreSettings
from brokerd.store.start.mending import DamagedLog
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Suspicion
from brokerd.store.unit import UNIT_BYTES
from remoting.errors import CorruptedFile, DamagedRange
from tests.support.disks import FaultyDisk, PowerLost
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    Clock,
    bodies,
    dispatch_all,
    draft,
    make_store,
    open_store,
    payloads,
    put,
    sync,
)

COUNT = 50
FILE_UNITS = SETTINGS.queue_file_units


def stored(*, covered: bool = True) -> FaultyDisk:
    """A disk with messages of one queue, a second between each two, behind a clean end."""
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    for body in payloads(COUNT, 300):
        put(store, draft(body))
        clock.now_ms += 1000
    store.close()
    if not covered:
        disk.remove("queueChecks")
    return disk


def started(disk: FaultyDisk) -> MessageStore:
    store = make_store(disk)
    store.load()
    dispatch_all(store)
    return store


def flip(disk: FaultyDisk, unit: int, byte: int, bit: int) -> None:
    path = f"consumequeue/TopicA/0/{unit // FILE_UNITS * FILE_UNITS * UNIT_BYTES:020d}"
    disk.flip_bit(path, unit % FILE_UNITS * UNIT_BYTES + byte, bit)


def queue_of(store: MessageStore) -> ConsumeQueue:
    return store.queues.table[("TopicA", 0)]


@pytest.mark.parametrize("unit", range(COUNT))
def test_a_queue_does_not_begin_behind_a_unit_that_rots(unit: int) -> None:
    """The search for the first message that is still there met a place before the log: what precedes it seemed to be gone."""
    disk = stored()
    store = started(disk)
    flip(disk, unit, 0, 7)
    assert store.min_offset("TopicA", 0) == 0
    assert store.queues.forget_expired(store.commitlog.min_offset) == []


@pytest.mark.parametrize("unit", range(COUNT))
@pytest.mark.parametrize("byte", [0, 6])
def test_retention_takes_no_queue_file_that_is_needed_because_a_unit_rots(unit: int, byte: int) -> None:
    disk = stored()
    store = started(disk)
    store.commitlog.forget_oldest()
    first = next(n for n, (at, _, _) in enumerate(queue_of(store).units(0, COUNT)) if at >= store.commitlog.min_offset)
    flip(disk, unit, byte, 7 if byte == 0 else 4)
    assert store.min_offset("TopicA", 0) <= first
    if unit < first - 1:
        assert store.min_offset("TopicA", 0) == first, "those behind it say that it is gone"
    store.queues.forget_expired(store.commitlog.min_offset)
    assert queue_of(store).first_offset <= first


@pytest.mark.parametrize("unit", range(COUNT))
def test_a_search_by_time_passes_nothing_over_because_a_unit_rots(unit: int) -> None:
    disk = stored()
    store = started(disk)
    times = [store.store_timestamp("TopicA", 0, n) for n in range(COUNT)]
    flip(disk, unit, 0, 7)
    assert all(store.offset_by_time("TopicA", 0, at) <= n for n, at in enumerate(times))


@pytest.mark.parametrize("unit", [3, 17, 33, 48])
def test_a_cut_leaves_what_precedes_it_in_its_queue(unit: int) -> None:
    disk = stored()
    store = started(disk)
    place = next(iter(queue_of(store).units(40, 1)))[0]
    flip(disk, unit, 0, 7)
    store.truncate(place)
    assert queue_of(store).max_offset == 40
    if unit < 40:
        queue_of(store).rest()
        with pytest.raises(CorruptedFile):
            store.read_messages("TopicA", 0, unit, 1, 10_000)


@pytest.mark.parametrize("unit", range(COUNT))
@pytest.mark.parametrize(("byte", "bit"), [(0, 7), (0, 0), (4, 5)])
def test_a_place_that_the_log_never_had_is_damage_also_where_nothing_covers_it(unit: int, byte: int, bit: int) -> None:
    """Of an earlier release, or behind a crash: such a message was left out of the answer, as if it had expired."""
    disk = stored(covered=False)
    store = started(disk)
    told: list[Suspicion] = []
    store.damage_listeners.append(told.append)
    flip(disk, unit, byte, bit)
    result = store.read_messages("TopicA", 0, 0, COUNT, 1 << 20) if unit else None
    if result is not None:
        assert (len(result.records), result.next_offset) == (unit, unit)
    with pytest.raises(CorruptedFile):
        store.read_messages("TopicA", 0, unit, COUNT, 1 << 20)
    with pytest.raises(CorruptedFile):
        store.read_joined("TopicA", 0, unit, COUNT, 1 << 20)
    assert told[-1].queue_offset == unit


def test_what_a_crash_leaves_of_a_block_stays_covered() -> None:
    """A start cuts what the log does not bear out; what precedes it in its block is as well known as before."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, *(draft(body) for body in payloads(10, 100)))
    store.checkpoint()
    sync(store)
    queue_of(store).cut(6)
    checks = disk.open(f"queueChecks/TopicA/0/{0:020d}").read(0, 8)
    assert int.from_bytes(checks[:4], "big") == 6
    queue_of(store).rest()
    assert len(bodies(store)) == 6
    flip(disk, 3, 19, 0)
    with pytest.raises(CorruptedFile):
        bodies(store)


@pytest.mark.parametrize("was_clean", [False, True])
def test_a_queue_whose_oldest_file_was_removed_by_hand_is_derived_again(was_clean: bool) -> None:
    """That looked like retention, which takes a file only when the log has none of its messages any more."""
    disk = stored()
    store = started(disk)
    if was_clean:
        store.close()
    disk.kill()
    disk.remove(f"consumequeue/TopicA/0/{0:020d}")
    store = started(disk)
    assert bodies(store) == list(payloads(COUNT, 300))


@pytest.mark.parametrize("files", [1, 3])
def test_what_retention_has_removed_of_a_queue_is_not_looked_for(files: int, caplog: pytest.LogCaptureFixture) -> None:
    store = started(disk := stored())
    for _ in range(files):
        store.commitlog.forget_oldest()()
    for path in store.queues.forget_expired(store.commitlog.min_offset):
        disk.remove(path)
    first = store.min_offset("TopicA", 0)
    disk.kill()
    store = started(disk)
    assert store.min_offset("TopicA", 0) == first
    assert "do not fit together" not in caplog.text


@pytest.mark.parametrize("was_clean", [False, True])
@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, segment_size_bytes=1 << 20)])
def test_a_queue_whose_newest_files_are_gone_is_derived_again(settings: StoreSettings, was_clean: bool) -> None:
    """Its end seemed to be earlier: messages were hidden, and their numbers would have been given to others."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk, settings=settings)
    put(store, *(draft(body) for body in payloads(COUNT, 100)))
    put(store, *(draft(b"others", queue_id=1) for _ in range(30 if was_clean else 1)))
    sync(store)
    store.checkpoint()
    if was_clean:
        store.close()
        store = make_store(disk, settings=settings)
        store.load()
    disk.kill()
    for file in (2, 3):
        disk.remove(f"consumequeue/TopicA/0/{file * FILE_UNITS * UNIT_BYTES:020d}")
    store = make_store(disk, settings=settings)
    store.load()
    dispatch_all(store)
    assert bodies(store) == list(payloads(COUNT, 100))
    store.set_appendable(True)
    assert put(store, draft(b"next"))[0].queue_offset == COUNT


def met_by(store: MessageStore, unit: int) -> DamagedRange:
    """What a start meets that follows the unit."""
    place, size, _ = queue_of(store).unit(unit)
    return DamagedRange(place, size)


@pytest.mark.parametrize(("byte", "bit"), [(7, 5), (6, 0), (3, 2), (0, 6), (11, 4)])
def test_a_unit_that_names_no_record_is_blamed_and_queues_are_derived_again(byte: int, bit: int) -> None:
    """Behind a clean end nothing of a unit is read before somebody follows it."""
    disk = stored(covered=False)
    flip(disk, 20, byte, bit)
    store = started(disk)
    met = met_by(store, 20)
    store.close()
    assert DamagedLog(disk, SETTINGS).blame_queue(met)
    again = started(disk)
    assert bodies(again) == list(payloads(COUNT, 300))
    assert not DamagedLog(disk, SETTINGS).blame_queue(met_by(again, 20))
    again.close()
    assert not rotten.is_marked(disk)


def test_a_record_that_is_damaged_is_not_blamed_on_its_unit() -> None:
    disk = stored()
    store = started(disk)
    met = met_by(store, 20)
    store.close()
    disk.flip_bit(f"commitlog/{met.offset // SEGMENT_BYTES * SEGMENT_BYTES:020d}", met.offset % SEGMENT_BYTES + 60, 3)
    assert not DamagedLog(disk, SETTINGS).blame_queue(met)
    assert not rotten.is_marked(disk)


def test_queues_are_derived_again_until_the_page_says_so() -> None:
    """A start that ends between the two leaves it to the next one."""
    disk = stored(covered=False)
    flip(disk, 20, 7, 5)
    rotten.mark(disk, "a test")
    store = make_store(disk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.durable, "begin", lambda **_positions: (_ for _ in ()).throw(PowerLost))
        with pytest.raises(PowerLost):
            store.load()
    store.abandon()
    assert rotten.is_marked(disk)
    assert bodies(started(disk)) == payloads(COUNT, 300)
