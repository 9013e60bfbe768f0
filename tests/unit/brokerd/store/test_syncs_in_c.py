"""The flusher's syncs in C, on real files: what they say is durable, who makes them stop, and what is left to Python."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from brokerd.native import syncs as native_syncs
from brokerd.native.library import Library
from brokerd.native.syncs import Ending, NativeSyncs
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.log.file_turns import Contents
from brokerd.store.log.flusher import Flusher
from brokerd.store.log.syncs_in_c import SyncsInC
from remoting.disk import LocalDisk, LocalSegment
from remoting.errors import StorageError
from tests.support.disks import MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, bodies, dispatch_all, draft, open_store, payloads, put

DEADLINE_S = 60


@pytest.fixture
def library() -> Library:
    return native_library()


class Broker:
    """A store on disk, and its flusher. `heard` has how far all was durable whenever the loop was told; `in_python` has the syncs
    that were not made in C."""

    def __init__(self, directory: Path, library: Library) -> None:
        self.directory = directory
        self.disk = LocalDisk(directory)
        self.store = open_store(self.disk, library=library)
        self.flusher = Flusher(self.store, in_c=SyncsInC(self.store.commitlog, NativeSyncs(library)))
        self.flusher.listeners.append(self._on_flushed)
        self.store.failure_listeners.append(self._on_failure)
        self.heard: list[int] = []
        self.failures: list[StorageError] = []
        self.in_python: list[str] = []
        self._changed = asyncio.Event()

    @property
    def log(self) -> CommitLog:
        return self.store.commitlog

    def _on_flushed(self) -> None:
        assert self.log.flushed_offset <= self.log.end_offset
        self.heard.append(self.log.flushed_offset)
        self._changed.set()

    def _on_failure(self, error: StorageError) -> None:
        self.failures.append(error)
        self._changed.set()

    def append(self, body: bytes) -> None:
        put(self.store, draft(body))
        self.flusher.request()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def all_is_durable(self) -> None:
        await self.until(lambda: self.log.flushed_offset == self.log.end_offset)

    async def stop(self) -> None:
        await self.flusher.stop()
        self.store.abandon()
        self.disk.close()

    def found_by_a_start(self) -> list[bytes]:
        disk = LocalDisk(self.directory)
        store = open_store(disk)
        dispatch_all(store)
        found = bodies(store)
        store.close()
        disk.close()
        return found


@pytest.fixture
async def broker(tmp_path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    broker = Broker(tmp_path / "data", library)
    sync = LocalSegment.sync

    def seen(self: LocalSegment) -> None:
        broker.in_python.append(self.path)
        sync(self)

    broker.flusher.start()
    broker.append(b"the first file is made, and synced once")
    await broker.all_is_durable()
    monkeypatch.setattr(LocalSegment, "sync", seen)
    yield broker
    await broker.flusher.stop()


async def test_each_request_is_answered_by_syncs_that_need_no_interpreter(broker: Broker) -> None:
    for n in range(10):
        broker.append(b"%d" % n)
        await broker.all_is_durable()
    assert len(broker.heard) >= 11
    assert broker.heard == sorted(broker.heard)
    assert broker.in_python == []


async def test_what_many_append_meanwhile_is_durable_in_all_files(broker: Broker) -> None:
    for n, body in enumerate(payloads(200, 200)):
        broker.append(body)
        if n % 7 == 0:
            await asyncio.sleep(0)
    await broker.all_is_durable()
    assert len(broker.log.segment_starts()) > 10
    assert broker.heard == sorted(broker.heard)
    await broker.stop()
    # each new file is synced once in Python, with the one before it
    assert {int(path.rpartition("/")[2]) // SEGMENT_BYTES for path in broker.in_python} >= {0, 1, 2}
    assert broker.found_by_a_start()[1:] == list(payloads(200, 200))


async def test_syncs_are_counted_with_their_durations(broker: Broker) -> None:
    await broker.flusher.stop()
    before = len(broker.heard)
    assert sum(broker.flusher.durations.counts) == before
    assert 0 < broker.flusher.durations.sum < DEADLINE_S


async def test_what_nobody_asked_for_is_not_synced(broker: Broker) -> None:
    before = len(broker.heard)
    put(broker.store, draft(b"nobody waits for this"))
    await broker.flusher.stop()
    assert len(broker.heard) == before
    assert broker.log.flushed_offset < broker.log.end_offset


async def test_a_stop_finishes_what_was_asked_for(broker: Broker) -> None:
    for n in range(20):
        broker.append(b"%d" % n)
    await broker.flusher.stop()
    assert broker.log.flushed_offset == broker.log.end_offset
    for thread in [thread for thread in threading.enumerate() if thread.name == "flusher"]:
        await asyncio.to_thread(thread.join, DEADLINE_S)  # that it ends is the last that it said
        assert not thread.is_alive()


async def test_word_of_syncs_is_left_for_a_start(broker: Broker) -> None:
    """Not of each at once, but also when nothing comes any more."""
    noted = asyncio.Event()
    loop = asyncio.get_running_loop()
    note = broker.store.durable.note_flushed

    def seen(mark: SyncMark) -> None:
        note(mark)
        loop.call_soon_threadsafe(noted.set)

    broker.store.durable.note_flushed = seen  # type: ignore[method-assign]
    broker.append(b"the last one")
    async with asyncio.timeout(DEADLINE_S):
        while broker.store.durable.positions.flushed_offset != broker.log.end_offset:
            await noted.wait()
            noted.clear()


async def test_a_cut_takes_its_turn_and_syncs_go_on_behind_it(broker: Broker) -> None:
    for round_ in range(30):
        boundary = broker.log.end_offset
        for body in payloads(5, 30):
            broker.append(body)
        if round_ % 2:
            await broker.all_is_durable()
        broker.store.truncate(boundary)
        assert broker.log.flushed_offset <= boundary
        broker.append(b"kept %d" % round_)
        await broker.all_is_durable()
    await broker.stop()
    assert broker.found_by_a_start()[1:] == [b"kept %d" % n for n in range(30)]


async def test_a_log_that_is_thrown_away_is_not_durable_as_far_as_the_old_one_was(broker: Broker) -> None:
    for body in payloads(40, 200):
        broker.append(body)
    await broker.all_is_durable()
    content = broker.log.read(0, 400)
    broker.store.set_appendable(False)
    broker.store.reset(0)
    broker.heard.clear()
    size = int.from_bytes(content[:4], "big")
    broker.store.append_replicated(0, content[:size])
    broker.flusher.request()
    await broker.all_is_durable()
    assert set(broker.heard) <= {0, size}


async def test_who_writes_damaged_bytes_again_has_his_turn_while_syncs_go_on(broker: Broker) -> None:
    whole = broker.log.read(0, 50)
    over = threading.Event()

    def repair() -> int:
        times = 0
        while not over.is_set() or not times:
            assert broker.log.rewrite(0, whole, broker.log.generation)
            times += 1
        return times

    with ThreadPoolExecutor(1) as pool:
        repairs = pool.submit(repair)
        try:
            for n in range(100):
                broker.append(b"%d" % n)
                await broker.all_is_durable()
        finally:
            over.set()
        assert repairs.result(DEADLINE_S) >= 1
    assert broker.log.read(0, 50) == whole


async def test_a_sync_that_fails_is_told_once_and_ends_all_appends(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()  # which cannot be synced
    try:
        with broker.log.turns.contents:
            monkeypatch.setattr(LocalSegment, "descriptor", property(lambda _self: writing))
        broker.append(b"lost")
        await broker.until(lambda: bool(broker.failures))
        broker.flusher.request()
        await broker.flusher.stop()
    finally:
        os.close(reading)
        os.close(writing)
    [error] = broker.failures
    assert "cannot sync commitlog/00000000000000000000: Invalid argument" in str(error)
    assert broker.store.refusal is not None
    with pytest.raises(StorageError):
        broker.log.append(b"x" * 100, 100)
    assert broker.log.flushed_offset < broker.log.end_offset


async def test_what_a_repair_lost_no_later_sync_makes_durable(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells of it once, to whoever syncs the file first."""
    sync = LocalSegment.sync

    def lose(self: LocalSegment) -> None:
        monkeypatch.setattr(LocalSegment, "sync", sync)
        raise StorageError(f"cannot sync {self.path}: Input/output error")

    put(broker.store, draft(b"waits for a sync"))
    flushed = broker.log.flushed_offset
    monkeypatch.setattr(LocalSegment, "sync", lose)
    with pytest.raises(StorageError):
        await asyncio.to_thread(broker.log.rewrite, 0, broker.log.read(0, 50), broker.log.generation)
    broker.flusher.request()
    await broker.until(lambda: bool(broker.failures) or broker.log.flushed_offset > flushed)
    assert broker.log.flushed_offset == flushed
    assert "Input/output error" in str(broker.failures[0])


async def test_files_without_a_descriptor_are_synced_in_python(library: Library) -> None:
    store = open_store(MemoryDisk(), library=library)
    flusher = Flusher(store, in_c=SyncsInC(store.commitlog, NativeSyncs(library)))
    changed = asyncio.Event()
    flusher.listeners.append(changed.set)
    flusher.start()
    for n in range(3):
        put(store, draft(b"%d" % n))
        flusher.request()
        async with asyncio.timeout(DEADLINE_S):
            while store.commitlog.flushed_offset < store.commitlog.end_offset:
                changed.clear()
                await changed.wait()
    await flusher.stop()
    store.close()


# -- the calls themselves --------------------------------------------------------------------------------------------------------


def test_serving_ends_at_the_end_of_a_file_and_when_asked(
    library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_syncs, "NOTE_AFTER_MS", 1_000_000)  # however long a sync takes
    syncs = NativeSyncs(library)
    with open(tmp_path / "file", "wb") as file:
        syncs.leave()
        assert syncs.serve(0, file.fileno(), 0, 1000) is Ending.LEFT
        assert (syncs.answered, list(syncs.durations_ns)) == (0, [])
        syncs.want(1, 100, 90)
        assert syncs.serve(0, file.fileno(), 0, 1000) is Ending.LEFT
        assert (syncs.answered, len(syncs.durations_ns)) == (1, 1), "once, since that is wanted"
        syncs.stay()
        syncs.want(2, 1001, 1000)
        assert syncs.serve(1, file.fileno(), 0, 1000) is Ending.PAST_FILE
        assert syncs.answered == 1
        syncs.set_back(500)
        monkeypatch.setattr(native_syncs, "NOTE_AFTER_MS", 0)
        assert syncs.serve(1, file.fileno(), 0, 1000) is Ending.TO_NOTE
        assert (syncs.answered, syncs.durable, len(syncs.durations_ns)) == (2, (500, 500), 1)
        assert syncs.hear() == 500
        syncs.set_back(300)
        assert syncs.durable[0] == 300
        syncs.want(3, 300, 300)
        syncs.leave()
        assert syncs.serve(2, -1, 0, 1000) is Ending.LEFT, "all of it is durable"
        assert (syncs.answered, list(syncs.durations_ns), syncs.hear()) == (3, [], 300)
        syncs.stay()
        syncs.want(4, 301, 301)
        with pytest.raises(OSError, match="Bad file descriptor"):
            syncs.serve(3, -1, 0, 1000)
    syncs.close()


def test_a_lock_that_is_held_for_long_is_had_by_all_who_want_it_first() -> None:
    contents = Contents()
    told = threading.Semaphore(0)
    contents.when_wanted = told.release
    order: list[str] = []

    def other(name: str) -> None:
        with contents:
            order.append(name)

    def again() -> None:
        with contents.while_nobody_wants():
            order.append("again")

    with ThreadPoolExecutor(4) as pool:
        with contents.while_nobody_wants():
            assert not contents.is_wanted
            assert contents.locked()
            work = [pool.submit(other, name) for name in ("a", "b")]
            for _ in work:
                assert told.acquire(timeout=DEADLINE_S)
            assert contents.is_wanted
            work.append(pool.submit(again))
        for each in work:
            each.result(DEADLINE_S)
    assert sorted(order[:2]) == ["a", "b"]
    assert order[2] == "again"
    assert not contents.is_wanted


def test_a_lock_that_somebody_wants_over_and_over_is_had_by_who_waits() -> None:
    contents, over, began = Contents(), threading.Event(), threading.Event()

    def wants_again() -> None:
        while not over.is_set():
            with contents:
                began.set()

    def holds_often() -> int:
        times = 0
        for _ in range(200):
            with contents.while_nobody_wants():
                times += 1
        return times

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(wants_again) for _ in range(2)]
        try:
            assert began.wait(DEADLINE_S)
            assert pool.submit(holds_often).result(DEADLINE_S) == 200
        finally:
            over.set()
        for each in others:
            each.result(DEADLINE_S)
    assert not contents.locked()
