from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.flusher import Flusher
from brokerd.store.store import MessageStore
from remoting.disk import LocalDisk
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.stores import bodies, dispatch_all, draft, open_store, payloads, put

DEADLINE_S = 60


class Gate:
    """A store whose syncs wait until the test lets them end, and which counts what is asked of it."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard
        self.end_offset = self.flushed_offset = 0
        self.entered = threading.Semaphore(0)
        self.drop_content = threading.Semaphore(0)
        self.syncs = 0
        self.noted: list[int] = []
        self.prepared = 0
        self.error: Exception | None = None
        self.prepare_errors: list[StorageError | None] = []
        self.note_error: StorageError | None = None
        self.failed: list[StorageError] = []

    def sync(self) -> SyncMark:
        mark = SyncMark(self.end_offset, self.end_offset, 0)
        self.syncs += 1
        self.entered.release()
        assert self.drop_content.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            raise self.error
        return mark

    def note_flushed(self, mark: SyncMark) -> None:
        self.noted.append(mark.offset)
        if self.note_error is not None:
            raise self.note_error

    def mark_flushed(self, mark: SyncMark) -> None:
        self.flushed_offset = mark.offset

    def prepare_next_segment(self) -> None:
        self.prepared += 1
        error = self.prepare_errors.pop(0) if self.prepare_errors else None
        if error is not None:
            raise error

    def fail(self, error: StorageError) -> None:
        self.failed.append(error)
        self.heard.on_failure(error)


class Heard:
    """What a flusher told the loop, and a way to wait for it."""

    def __init__(self) -> None:
        self.flushed: list[int] = []
        self.failures: list[StorageError] = []
        self._changed = asyncio.Event()

    def on_flushed(self, offset: int) -> None:
        self.flushed.append(offset)
        self._changed.set()

    def on_failure(self, error: StorageError) -> None:
        self.failures.append(error)
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
async def heard() -> Heard:
    return Heard()


@pytest.fixture
async def gate(heard: Heard) -> Gate:
    return Gate(heard)


@pytest.fixture
async def flusher(gate: Gate, heard: Heard) -> AsyncIterator[Flusher]:
    flusher = Flusher(gate)
    flusher.listeners.append(lambda: heard.on_flushed(gate.flushed_offset))
    flusher.start()
    yield flusher
    for _ in range(10):
        gate.drop_content.release()
    await flusher.stop()


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.acquire, timeout=DEADLINE_S)


async def test_requests_during_a_sync_are_answered_by_one_more(gate: Gate, heard: Heard, flusher: Flusher) -> None:
    gate.end_offset = 100
    flusher.request()
    await entered(gate)
    for _ in range(50):
        gate.end_offset += 10
        flusher.request()
    gate.drop_content.release()
    await entered(gate)
    gate.drop_content.release()
    await heard.until(lambda: heard.flushed == [100, 600])
    assert gate.syncs == 2
    assert gate.prepared >= 1
    assert gate.noted[0] == 100


async def test_a_request_while_it_sleeps_wakes_it_every_time(gate: Gate, heard: Heard, flusher: Flusher) -> None:
    for n in range(1, 30):
        gate.end_offset = n
        gate.drop_content.release()
        flusher.request()
        await heard.until(lambda n=n: heard.flushed[-1:] == [n])
    assert gate.syncs == 29


async def test_nothing_is_synced_that_nobody_asked_for(gate: Gate, heard: Heard, flusher: Flusher) -> None:
    gate.end_offset = 5
    gate.drop_content.release()
    flusher.request()
    await heard.until(lambda: heard.flushed == [5])
    gate.end_offset = 9
    await flusher.stop()
    assert gate.syncs == 1


async def test_a_stop_finishes_what_was_asked_for(gate: Gate, heard: Heard, flusher: Flusher) -> None:
    gate.end_offset = 7
    flusher.request()
    gate.drop_content.release()
    await flusher.stop()
    assert heard.flushed == [7]
    assert gate.syncs == 1
    assert sum(flusher.durations.counts) == 1


async def test_a_failed_sync_is_told_once_and_ends_the_thread(gate: Gate, heard: Heard, flusher: Flusher) -> None:
    gate.error = StorageError("cannot sync")
    flusher.request()
    gate.drop_content.release()
    await heard.until(lambda: bool(heard.failures))
    flusher.request()
    await flusher.stop()
    assert heard.failures == [gate.error]
    assert gate.failed == [gate.error]
    assert heard.flushed == []
    assert gate.syncs == 1


async def test_a_bug_in_the_thread_is_a_failure_too(
    gate: Gate, heard: Heard, flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    gate.error = ValueError("a bug")
    flusher.request()
    gate.drop_content.release()
    await heard.until(lambda: bool(heard.failures))
    assert "a bug" in str(heard.failures[0])
    assert "Traceback" in caplog.text


async def test_a_file_that_cannot_be_made_ahead_is_only_mentioned(
    gate: Gate, heard: Heard, flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    """Once for all the time in which it cannot be: it is tried behind each sync."""
    no_space = StorageError("no space")
    gate.prepare_errors = [no_space, no_space, None, no_space, no_space]
    for n in range(1, 6):
        gate.end_offset = n
        gate.drop_content.release()
        flusher.request()
        await heard.until(lambda n=n: heard.flushed[-1:] == [n])
    assert heard.failures == []
    await flusher.stop()
    assert caplog.text.count("ahead of need: no space") == 2


async def test_a_page_that_finds_no_room_ends_nothing_and_one_that_fails_does(
    gate: Gate, heard: Heard, flusher: Flusher, caplog: pytest.LogCaptureFixture
) -> None:
    gate.note_error = StorageError("full")
    gate.note_error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    for n in (1, 2):
        gate.end_offset = n
        gate.drop_content.release()
        flusher.request()
        await heard.until(lambda n=n: heard.flushed[-1:] == [n])
    assert heard.failures == []
    gate.note_error = StorageError("cannot write checkpoint")
    gate.end_offset = 3
    gate.drop_content.release()
    flusher.request()
    await heard.until(lambda: heard.failures == [gate.note_error])
    await flusher.stop()
    assert caplog.text.count("no room to note how far the log is durable: full") == 1


# -- on stores -------------------------------------------------------------------------------------------------------------------


def started(store: MessageStore, heard: Heard) -> Flusher:
    flusher = Flusher(store)
    flusher.listeners.append(lambda: heard.on_flushed(store.commitlog.flushed_offset))
    store.failure_listeners.append(heard.on_failure)
    flusher.start()
    return flusher


async def flush_all(store: MessageStore, heard: Heard, flusher: Flusher) -> None:
    flusher.request()
    end = store.commitlog.end_offset
    await heard.until(lambda: store.commitlog.flushed_offset >= end)


async def test_a_real_log_is_appended_to_while_it_is_synced(tmp_path: Path, heard: Heard) -> None:
    disk = LocalDisk(tmp_path / "data")
    store = open_store(disk)
    flusher = started(store, heard)
    for body in payloads(300, 200):
        put(store, draft(body))
        flusher.request()
        if body.startswith(b"0001"):
            await asyncio.sleep(0)
    await flush_all(store, heard, flusher)
    assert heard.flushed == sorted(heard.flushed)
    assert len(heard.flushed) == sum(flusher.durations.counts) <= 301
    await flusher.stop()
    store.abandon()
    disk.close()
    again = open_store(LocalDisk(tmp_path / "data"))
    dispatch_all(again)
    assert bodies(again) == list(payloads(300, 200))
    assert again.commitlog.flushed_offset == again.commitlog.end_offset
    again.close()


async def test_what_a_flusher_said_is_flushed_survives_a_power_loss(heard: Heard) -> None:
    disk = FaultyDisk(Random(4))
    store = open_store(disk)
    flusher = started(store, heard)
    for n, body in enumerate(payloads(60, 200)):
        put(store, draft(body))
        if n == 40:
            await flush_all(store, heard, flusher)
    await flusher.stop()
    disk.crash()
    again = open_store(disk)
    dispatch_all(again)
    found = bodies(again)
    assert len(found) >= 41
    assert found == list(payloads(60, 200))[: len(found)]


async def test_after_a_failed_sync_the_store_refuses_and_what_was_flushed_is_there(heard: Heard) -> None:
    disk = FaultyDisk(Random(4))
    store = open_store(disk)
    flusher = started(store, heard)
    put(store, draft(b"flushed"))
    await flush_all(store, heard, flusher)
    put(store, draft(b"lost"))
    disk.fail_sync_at(1)
    flusher.request()
    await heard.until(lambda: bool(heard.failures))
    await flusher.stop()
    assert store.refusal is not None
    assert "disk failed" in str(store.refusal)
    store.close()
    disk.crash()
    again = open_store(disk)
    dispatch_all(again)
    assert bodies(again) == [b"flushed"]
