"""Power loss at every sync point of a short life, and the death of the process at every write.

A `Life` is the same scripted sequence of appends, syncs, dispatches, checkpoints, cuts, retention and restarts each time; it
knows what it appended and what it was told is durable. The machine stops in the n-th sync point, for every n. Then the store is
opened again, and must hold everything that was durable, nothing that was never appended, dense queues, and an index that finds
every message of the log and no other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from brokerd.store.index import key_index
from brokerd.store.index.postings import keys_of
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.store import MessageStore
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.support.disks import FaultyDisk, PowerLost
from tests.unit.brokerd.store.index.finding import catch_up, find
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    Clock,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    log_entries,
    make_store,
    open_store,
    put,
    queue_contents,
    sync,
)


class Life:
    """What one store went through, seen from outside. `log` are all bytes ever appended (cut bytes excluded)."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.log = bytearray()
        self.min_offset = 0
        self.durable_offset = 0
        self.cutting_to: int | None = None
        self.number = 0
        self.restarts = 0

    def live(self) -> None:
        store = open_store(self.disk, Clock())
        self.put(store, 12)
        self.sync(store)
        self.put(store, 5)
        store.checkpoint()
        self.durable(store)
        self.put(store, 9)
        store.commitlog.prepare_next()
        self.sync(store)
        self.put(store, 3, dispatch=False)
        self.cut(store, back=5)
        self.put(store, 6)
        store.checkpoint()
        self.durable(store)
        self.put(store, 4)
        self.sync(store)
        self.expire(store)
        self.put(store, 2)
        store.close()
        self.durable_offset = len(self.log)
        self.restarts += 1
        self.disk.kill()
        store = open_store(self.disk, Clock())
        self.put(store, 4)
        self.sync(store)
        store.checkpoint()
        self.put(store, 3)

    def put(self, store: MessageStore, count: int, *, dispatch: bool = True) -> None:
        for _ in range(count):
            size = (self.number * 397) % 1100
            before = store.commitlog.end_offset
            try:
                put(
                    store,
                    draft(
                        bytes([65 + self.number % 26]) * size,
                        queue_id=self.number % 3,
                        properties=encode_properties(
                            {"UNIQ_KEY": f"U{self.number}", "KEYS": f"k{self.number % 5} all"}
                        ),
                    ),
                    visible=dispatch,
                )
                if self.number % 4:
                    catch_up(store)
            finally:
                self.number += 1
                self.note_appended(store, before)

    def note_appended(self, store: MessageStore, before: int) -> None:
        """Take the bytes from the store's files as they are now, also when power went while it rolled."""
        image = bytearray()
        offset = before
        while offset < store.commitlog.end_offset:
            start = offset - offset % SEGMENT_BYTES
            stop = min(start + SEGMENT_BYTES, store.commitlog.end_offset)
            file = self.disk.files.get(f"commitlog/{start:020d}")
            if file is not None:
                image += file.seen.read(offset - start, stop - offset)
            offset = stop
        self.log += image

    def sync(self, store: MessageStore) -> None:
        self.durable_offset = sync(store)

    def durable(self, store: MessageStore) -> None:
        self.durable_offset = store.commitlog.flushed_offset

    def cut(self, store: MessageStore, *, back: int) -> None:
        offset = log_entries(store)[-back][3]
        self.cutting_to = offset
        store.truncate(offset)
        self.cutting_to = None
        del self.log[offset:]
        self.durable_offset = min(self.durable_offset, offset)

    def expire(self, store: MessageStore) -> None:
        for removal in store.apply_retention(RetentionDecision(1, False)):
            removal()
        self.min_offset = store.commitlog.min_offset

    def check(self, store: MessageStore) -> None:
        """Compare a store that was opened after the crash with what is known."""
        found = log_bytes(store)
        begin = store.commitlog.min_offset
        end = store.commitlog.end_offset
        least = self.durable_offset if self.cutting_to is None else min(self.durable_offset, self.cutting_to)
        assert begin <= self.min_offset + SEGMENT_BYTES
        assert end >= least, "durable records are gone"
        assert found == bytes(self.log[begin:end]), "the log holds something that was never appended"
        dispatch_all(store)
        check_queues(store)
        catch_up(store)
        check_index(store)


def check_queues(store: MessageStore) -> None:
    """Every queue holds exactly its records of the log, numbered without a gap, and the next numbers follow."""
    expected: dict[tuple[str, int], list[tuple[int, tuple[int, int, int]]]] = {}
    for topic, queue_id, queue_offset, physical_offset, size, code, _, _ in log_entries(store):
        expected.setdefault((topic, queue_id), []).append((queue_offset, (physical_offset, size, code)))
    contents = queue_contents(store)
    assert set(contents) == set(expected)
    for key, units in expected.items():
        first, found = contents[key]
        assert found == [unit for _, unit in units]
        assert [number for number, _ in units] == list(range(first, first + len(units)))
        assert store.queue_offsets.table[key] == first + len(units)


def check_index(store: MessageStore) -> None:
    """Every key of the log's messages finds exactly them; keys of messages that are gone find nothing."""
    expected: dict[str, list[int]] = {"all": []} | {f"U{number}": [] for number in range(60)}
    for entry in log_entries(store):
        record = decode_record(store.commitlog.record_at(entry[3]) or b"")
        for key in keys_of(record.properties):
            expected.setdefault(key.decode(), []).append(entry[3])
    assert {key: find(store, "TopicA", key, most=1000) for key in expected} == expected


@pytest.fixture(autouse=True, scope="module")
def _every_checkpoint_writes_the_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_PATIENCE", 1)
        yield


@cache
def count_sync_points() -> int:
    disk = FaultyDisk(Random(0))
    Life(disk).live()
    return disk.counters.sync_points


def open_store_again(disk: FaultyDisk) -> MessageStore:
    disk.kill()
    return open_store(disk, Clock())


def crashes(seeds: range) -> Iterator[tuple[int, Life]]:
    """A life for every sync point and seed, ended there."""
    total = count_sync_points()
    for sync_point in range(1, total + 1):
        for seed in seeds:
            life = Life(FaultyDisk(Random(seed * 1000 + sync_point)))
            life.disk.lose_power_at(sync_point)
            try:
                life.live()
            except PowerLost:
                life.disk.crash()
                yield sync_point, life


def test_a_life_without_faults_reaches_everything() -> None:
    disk = FaultyDisk(Random(0))
    life = Life(disk)
    life.live()
    assert life.restarts == 1
    assert life.min_offset == SEGMENT_BYTES
    assert len(life.log) > 5 * SEGMENT_BYTES
    life.check(open_store_again(disk))
    assert disk.counters.sync_points > 40


@pytest.mark.parametrize("seeds", [range(0, 2), range(2, 4)])
def test_power_loss_at_every_sync_point_keeps_what_was_durable_and_invents_nothing(seeds: range) -> None:
    lives = kept = dropped = torn = 0
    for _, life in crashes(seeds):
        life.check(open_store(life.disk, Clock()))
        lives += 1
        kept, dropped, torn = (
            kept + life.disk.counters.kept,
            dropped + life.disk.counters.dropped,
            torn + life.disk.counters.torn,
        )
    assert lives == len(seeds) * count_sync_points()
    assert min(kept, dropped, torn) > 100


def test_after_a_power_loss_appends_go_on_and_survive_the_next_one() -> None:
    lives = 0
    for _, life in crashes(range(6, 7)):
        store = open_store(life.disk, Clock())
        life.log = bytearray(life.log[: store.commitlog.end_offset])
        life.cutting_to = None
        life.put(store, 7)
        life.sync(store)
        life.put(store, 2)
        life.disk.crash()
        life.check(open_store(life.disk, Clock()))
        lives += 1
    assert lives == count_sync_points()


def test_a_second_power_loss_in_the_recovery_changes_nothing() -> None:
    second_losses = 0
    for sync_point, life in crashes(range(7, 8)):
        life.disk.lose_power_at(1 + sync_point % 7)
        try:
            make_store(life.disk, Clock()).load()
        except PowerLost:
            second_losses += 1
        life.disk.crash()
        life.check(open_store(life.disk, Clock()))
    assert second_losses > 20


def test_the_death_of_the_process_loses_nothing_that_was_appended() -> None:
    """Stop after each sync point's success instead: the page cache keeps every write."""
    deaths = 0
    for sync_point in range(1, count_sync_points() + 1):
        life = Life(FaultyDisk(Random(sync_point)))
        life.disk.lose_power_at(sync_point)
        try:
            life.live()
        except PowerLost:
            life.disk.kill()
            deaths += 1
        store = open_store(life.disk, Clock())
        life.check(store)
        if life.cutting_to is None:
            assert store.commitlog.end_offset == len(life.log)
    assert deaths == count_sync_points()


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_checkpoint_left_out_because_of_a_cut_is_in_the_next_one(fails: bool) -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, draft(b"kept 0", topic="Kept"))
    store.checkpoint()
    put(store, draft(b"kept 1", topic="Kept"), draft(b"kept 2", topic="Kept"))
    [cut] = put(store, draft(topic="Kept"))
    sync(store)
    checkpoint = store.begin_checkpoint()
    store.truncate(cut.physical_offset)
    if fails:
        store.abandon_checkpoint(checkpoint)
    else:
        checkpoint.run()
        store.finish_checkpoint(checkpoint)
    store.checkpoint()
    disk.crash()
    again = open_store(disk)
    dispatch_all(again)
    assert bodies(again, "Kept") == [b"kept 0", b"kept 1", b"kept 2"]
