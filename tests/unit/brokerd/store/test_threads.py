"""The threads that touch files of the log, in every order: `brokerd/store/log/file_turns.py` has their rule."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.derive import derive
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.store import MessageStore
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk, MemorySegment
from tests.support.interleaving import interrupt
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SHAPE,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    make_store,
    open_store,
    payloads,
    put,
)
from tests.unit.brokerd.store.stores import (
    sync as flush,
)

DEADLINE_S = 60
LOG = {"brokerd.store.log.commitlog", "brokerd.store.log.file_turns", "brokerd.store.log.segment"}


def master_log() -> tuple[bytes, list[int]]:
    """The bytes of a log, and where its records begin and end."""
    master = open_store(FaultyDisk(Random(0)))
    put(master, *(draft(body) for body in payloads(12, 200)))
    content = log_bytes(master)
    return content, [0, *(entry[3] + entry[4] for entry in derive(content, 0, SHAPE).entries)]


def replica_with(content: bytes) -> MessageStore:
    store = make_store(FaultyDisk(Random(1)))
    store.load()
    store.append_replicated(0, content)
    return store


# The locks of `FileTurns` that a thread takes
TURNS_OF = {
    "sync": ("contents",),
    "append": ("names",),
    "prepare": ("names",),
    "roll": ("names",),
    "cut": ("contents", "names"),
    "remove": ("removals", "contents"),
    "copy_anew": ("removals", "contents", "names"),
    "write_again": ("contents",),
}


def in_every_order(
    make: Callable[[], MessageStore],
    first: Callable[[MessageStore], object],
    second: Callable[[MessageStore], object],
) -> Iterator[MessageStore]:
    """The store after `second` ran in the middle of `first`, for every place where it does not have to wait for a lock."""
    waits_for = TURNS_OF[second.__name__]
    for at in itertools.count():
        store = make()

        def waits(store: MessageStore = store) -> bool:
            return any(getattr(store.commitlog.turns, each).locked() for each in waits_for)

        if not interrupt(
            lambda store=store: first(store),
            lambda store=store: second(store),
            at,
            within=LOG,
            unless=waits,
        ):
            assert at > 3, "nothing was interrupted"
            return
        yield store


def reopen(store: MessageStore, *, power_loss: bool = False) -> MessageStore:
    disk = store._disk
    assert isinstance(disk, FaultyDisk)
    if power_loss:
        disk.crash()
    else:
        disk.kill()
    again = make_store(disk)
    again.load()
    return again


# -- a sync beside an append of copied bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sync_is_interrupted", [False, True])
def test_a_sync_beside_a_copy_tells_a_record_boundary_that_it_made_durable(sync_is_interrupted: bool) -> None:
    content, boundaries = master_log()
    cut = boundaries[3] + 90  # a transfer that ends inside a record
    marks: list[SyncMark] = []

    def append(store: MessageStore) -> None:
        store.append_replicated(cut, content[cut : boundaries[7]])

    def sync(store: MessageStore) -> None:
        marks.append(store.sync())

    orders = (sync, append) if sync_is_interrupted else (append, sync)
    for store in in_every_order(lambda: replica_with(content[:cut]), *orders):
        mark = marks.pop()
        assert mark.complete_offset in boundaries
        assert mark.complete_offset <= mark.offset
        store.mark_flushed(mark)
        store.note_flushed(mark)
        assert reopen(store, power_loss=True).commitlog.end_offset >= mark.complete_offset


def test_a_checkpoint_beside_a_copy_lets_a_killed_replica_start() -> None:
    content, boundaries = master_log()
    cut = boundaries[3] + 90

    marks: list[SyncMark] = []

    def append(store: MessageStore) -> None:
        store.append_replicated(cut, content[cut : boundaries[7]])

    def sync(store: MessageStore) -> None:
        marks.append(store.sync())

    for store in in_every_order(lambda: replica_with(content[:cut]), append, sync):
        mark = marks.pop()
        store.mark_flushed(mark)
        store.note_flushed(mark)
        store.dispatch(store.commitlog.complete_offset)
        checkpoint = store.begin_checkpoint()
        checkpoint.run()
        store.finish_checkpoint(checkpoint)
        assert store.durable.positions.queues_offset in boundaries
        again = reopen(store)
        assert again.commitlog.end_offset == boundaries[7]


def test_a_sync_while_bytes_are_being_written_says_nothing_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The write itself takes time: the flusher runs while the loop is inside it."""
    content, boundaries = master_log()
    cut = boundaries[3] + 90
    store = replica_with(content[:cut])
    inside, synced = threading.Event(), threading.Event()
    marks: list[SyncMark] = []
    write = MemorySegment.write

    def slowly(self: MemorySegment, position: int, buffers: list[bytes]) -> int:
        inside.set()
        assert synced.wait(DEADLINE_S)
        return write(self, position, buffers)

    def flusher() -> None:
        assert inside.wait(DEADLINE_S)
        marks.append(store.sync())
        synced.set()

    thread = threading.Thread(target=flusher)
    thread.start()
    monkeypatch.setattr(MemorySegment, "write", slowly)
    store.append_replicated(cut, content[cut : boundaries[7]])
    thread.join()
    assert marks == [SyncMark(cut, boundaries[3], store.commitlog.generation)]


# -- the file made ahead beside a cut ------------------------------------------------------------------------------------------


def four_files() -> MessageStore:
    store = open_store(FaultyDisk(Random(1)))
    put(store, *(draft(body) for body in payloads(45, 200)))
    flush(store)
    assert len(store.commitlog.segment_starts()) >= 4
    store.set_appendable(False)
    return store


def boundary_in_the_second_file() -> int:
    derived = derive(log_bytes(four_files())[: 2 * SEGMENT_BYTES], 0, SHAPE)
    return next(entry[3] for entry in derived.entries if entry[3] > SEGMENT_BYTES)


def check_files(store: MessageStore) -> None:
    """What is on disk are the log's files and perhaps the next one; a killed process can start with them."""
    starts = store.commitlog.segment_starts()
    found = [int(name) for name in store._disk.names("commitlog")]
    assert found in (starts, [*starts, starts[-1] + SEGMENT_BYTES] if starts else [])
    end = store.commitlog.end_offset
    assert reopen(store).commitlog.end_offset == end


@pytest.mark.parametrize("cut_is_interrupted", [False, True])
def test_the_next_file_that_is_made_beside_a_cut_leaves_no_hole(cut_is_interrupted: bool) -> None:
    cut_to = boundary_in_the_second_file()

    def cut(store: MessageStore) -> None:
        store.truncate(cut_to)

    def prepare(store: MessageStore) -> None:
        store.prepare_next_segment()

    for store in in_every_order(four_files, *((cut, prepare) if cut_is_interrupted else (prepare, cut))):
        assert store.commitlog.end_offset == cut_to
        check_files(store)


@pytest.mark.parametrize("roll_is_interrupted", [False, True])
def test_the_next_file_that_is_made_beside_a_roll_is_the_one_that_the_log_goes_on_with(
    roll_is_interrupted: bool,
) -> None:
    def roll(store: MessageStore) -> None:
        store.commitlog.roll()
        store.append_messages([draft(b"behind the roll")])

    def prepare(store: MessageStore) -> None:
        store.prepare_next_segment()

    def one_file() -> MessageStore:
        store = open_store(FaultyDisk(Random(1)))
        put(store, draft(b"in the first file"))
        return store

    for store in in_every_order(one_file, *((roll, prepare) if roll_is_interrupted else (prepare, roll))):
        check_files(store)


# -- removals beside a reset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset_is_interrupted", [False, True])
def test_a_file_that_retention_removes_late_is_not_the_one_that_a_new_copy_has_made_in_its_place(
    reset_is_interrupted: bool,
) -> None:
    content, _ = master_log()
    removals: list[Callable[[], None]] = []

    def with_a_file_on_its_way_out() -> MessageStore:
        store = four_files()
        removals[:] = [store.commitlog.forget_oldest()]
        return store

    def remove(store: MessageStore) -> None:
        removals[0]()

    def copy_anew(store: MessageStore) -> None:
        store.reset(0)
        store.append_replicated(0, content)

    orders = (copy_anew, remove) if reset_is_interrupted else (remove, copy_anew)
    for store in in_every_order(with_a_file_on_its_way_out, *orders):
        flush(store)
        again = reopen(store)
        dispatch_all(again)
        assert bodies(again) == list(payloads(12, 200))


def test_a_reset_that_is_killed_leaves_no_hole_before_what_retention_had_not_removed_yet() -> None:
    store = four_files()
    store.commitlog.forget_oldest()
    store.reset(8 * SEGMENT_BYTES)
    again = reopen(store)
    assert (again.commitlog.min_offset, again.commitlog.end_offset) == (0, 0)


def test_queue_files_that_retention_removes_late_are_not_those_that_a_new_copy_has_made_in_their_place() -> None:
    content, _ = master_log()
    store = open_store(FaultyDisk(Random(1)))
    put(store, *(draft(body) for body in payloads(60, 200)))
    store.checkpoint()
    removals = store.apply_retention(RetentionDecision(3, False))
    queue_file = f"consumequeue/TopicA/0/{0:020d}"
    assert store._disk.exists(queue_file)
    store.set_appendable(False)
    store.reset(0)
    store.append_replicated(0, content)
    dispatch_all(store)
    store.checkpoint()
    for removal in removals:
        removal()
    assert store._disk.exists(queue_file)
    assert bodies(store) == list(payloads(12, 200))


# -- damaged bytes written again -----------------------------------------------------------------------------------------------


def test_damaged_bytes_are_written_again_in_any_file_and_only_while_they_are_in_the_log() -> None:
    store = four_files()
    log, disk = store.commitlog, store._disk
    assert isinstance(disk, FaultyDisk)
    good = log_bytes(store)
    generation = log.generation
    for position in (10, 2 * SEGMENT_BYTES + 10, log.end_offset - 10):
        path = f"commitlog/{position - position % SEGMENT_BYTES:020d}"
        disk.flip_bit(path, position % SEGMENT_BYTES, 3)
        assert log_bytes(store) != good
        assert log.rewrite(position, good[position : position + 1], generation)
        assert log_bytes(store) == good
    store.truncate(boundary_in_the_second_file())
    assert not log.rewrite(10, good[10:11], generation), "the log was cut since the damage was seen"
    assert not log.rewrite(3 * SEGMENT_BYTES, good[:1], log.generation), "the file is not in the log any more"


@pytest.mark.parametrize("cut_is_interrupted", [False, True])
def test_what_is_written_again_beside_a_cut_does_not_come_back_behind_it(cut_is_interrupted: bool) -> None:
    cut_to = boundary_in_the_second_file()
    intact = four_files()
    content, generation = log_bytes(intact)[cut_to : cut_to + 100], intact.commitlog.generation

    def cut(store: MessageStore) -> None:
        store.truncate(cut_to)

    def write_again(store: MessageStore) -> None:
        store.commitlog.rewrite(cut_to, content, generation)

    for store in in_every_order(four_files, *((cut, write_again) if cut_is_interrupted else (write_again, cut))):
        behind = store._disk.open(f"commitlog/{SEGMENT_BYTES:020d}").read(cut_to - SEGMENT_BYTES, SEGMENT_BYTES)
        assert not any(behind)


# -- who looks at mappings, beside who cuts the files ----------------------------------------------------------------------------


def _cut_off(store: MessageStore, _disk: FaultyDisk) -> None:
    boundary = store.commitlog.end_offset
    put(store, draft(b"is cut off"))
    store.truncate(boundary)


def _fill_disk(store: MessageStore, disk: FaultyDisk) -> None:
    """A part of a record is written, and zeros over it have no room either."""
    disk.capacity_bytes = disk.used_bytes + 100
    with pytest.raises(StorageError):
        put(store, draft(bytes(500)))


@pytest.mark.parametrize("shorten", [_cut_off, _fill_disk])
def test_nobody_looks_at_a_file_of_the_log_while_it_is_cut(
    shorten: Callable[[MessageStore, FaultyDisk], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is gone ends the process of whoever looks at it."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, draft(b"stays"))
    looks, ended, cuts = store.commitlog.turns.looks, list[str](), list[int]()
    truncate = MemorySegment.truncate

    def may_begin_to_look() -> bool:
        found: list[bool] = []
        other = threading.Thread(target=lambda: found.append(looks._changed.acquire(blocking=False)))
        other.start()
        other.join()
        return found[0]

    def watched(self: MemorySegment, size_bytes: int) -> None:
        if self.path.startswith("commitlog/") and size_bytes < SEGMENT_BYTES:
            assert ended, "the carrier's answers are done"
            assert not may_begin_to_look()
            cuts.append(size_bytes)
        truncate(self, size_bytes)

    looks.enders.append(lambda: ended.append("carrier"))
    monkeypatch.setattr(MemorySegment, "truncate", watched)
    shorten(store, disk)
    assert len(cuts) == 1
