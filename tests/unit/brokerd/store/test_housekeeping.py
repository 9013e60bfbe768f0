from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from brokerd.loop.believed_clock import BelievedClock
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.queues import consume_queues
from brokerd.store.settings import HOUR_MS, RetentionSettings
from brokerd.store.store import MessageStore, StoreCheckpoint
from remoting.disk import DiskUsage
from remoting.errors import StorageError
from remoting.settings import Live
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    SETTINGS,
    Clock,
    bodies,
    draft,
    make_store,
    open_store,
    payloads,
    put,
    sync,
)

DEADLINE_S = 60
RETENTION = RetentionSettings(interval_ms=10)


def keep_house(
    store: MessageStore, disk: MemoryDisk, clock: Clock, failures: list[StorageError], **settings: int
) -> Housekeeper:
    store.failure_listeners.append(failures.append)
    return Housekeeper(store, disk, replace(SETTINGS, **settings), Live(RETENTION), clock)


class Rounds:
    """Tells when steps of a housekeeper that works by itself have ended."""

    def __init__(self, housekeeper: Housekeeper) -> None:
        self._ended = asyncio.Event()
        housekeeper.make_checkpoint = self._watched(housekeeper.make_checkpoint)  # type: ignore[method-assign]
        housekeeper.remove_old_files = self._watched(housekeeper.remove_old_files)  # type: ignore[method-assign]

    def _watched(self, step: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def watched() -> None:
            try:
                await step()
            finally:
                self._ended.set()

        return watched

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._ended.clear()
                await self._ended.wait()
                await asyncio.sleep(0)  # its own handling of the outcome comes first


async def test_a_checkpoint_makes_the_next_start_short() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    put(store, *(draft(body, queue_id=n % 4) for n, body in enumerate(payloads(50))))
    sync(store)
    housekeeper = keep_house(store, disk, clock, [])
    await housekeeper.make_checkpoint()
    await housekeeper.stop()
    disk.crash()
    again = make_store(disk, clock)
    again.load()
    assert again.dispatch_offset == again.commitlog.end_offset
    assert again.queues.buffered_units == 0
    assert sum(len(bodies(again, queue_id=n)) for n in range(4)) == 50


async def test_messages_that_arrive_while_a_checkpoint_runs_are_in_the_next() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    put(store, *(draft(body) for body in payloads(20)))
    housekeeper = keep_house(store, disk, clock, [])
    running = asyncio.create_task(housekeeper.make_checkpoint())
    await asyncio.sleep(0)
    put(store, *(draft(body) for body in payloads(20, start=20)))
    await running
    assert store.queues.buffered_units == 20
    sync(store)
    await housekeeper.make_checkpoint()
    await housekeeper.stop()
    disk.crash()
    assert bodies(open_store(disk, clock)) == list(payloads(40))


async def test_it_works_by_itself_and_removes_what_expired() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    put(store, *(draft(body) for body in payloads(60, 200)))
    sync(store)
    housekeeper = keep_house(store, disk, clock, [], checkpoint_interval_ms=10)
    rounds = Rounds(housekeeper)
    housekeeper.start()
    clock.now_ms += RETENTION.reserved_time_ms + 1
    last = store.commitlog.segment_starts()[-1]
    await rounds.until(lambda: disk.names("commitlog") == [f"{last:020d}"] and not store.queues.buffered_units)
    await housekeeper.stop()
    assert store.commitlog.min_offset == last
    assert disk.exists("consumequeue/TopicA/0")


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def several_files(disk: MemoryDisk, clock: Clock) -> MessageStore:
    store = open_store(disk, clock)
    for body in payloads(60, 200):
        clock.now_ms += 10
        put(store, draft(body))
    sync(store)
    return store


async def keep_house_after_a_boot(
    disk: FaultyDisk, clock: Clock, monotonic: Monotonic, others: Sequence[int] = ()
) -> tuple[MessageStore, Housekeeper]:
    store = open_store(disk, clock)
    believed = BelievedClock(clock, monotonic, lambda: others, store.left_behind_ms)
    return store, Housekeeper(store, disk, SETTINGS, Live(RETENTION), believed)


@pytest.mark.parametrize("has_file_times", [False, True])
async def test_a_boot_with_a_clock_days_ahead_removes_nothing_and_says_so(has_file_times: bool) -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    if has_file_times:
        disk.wall_ms = clock
    several_files(disk, clock).close()
    clock.now_ms += 4 * 24 * HOUR_MS
    store, housekeeper = await keep_house_after_a_boot(disk, clock, Monotonic())
    files = len(store.commitlog.segment_starts())
    for _ in range(3):
        await housekeeper.remove_old_files()
    assert len(store.commitlog.segment_starts()) == files
    assert "does not believe this machine's clock" in store.retention_doubt
    clock.now_ms -= 4 * 24 * HOUR_MS  # somebody sets it right
    await housekeeper.remove_old_files()
    assert len(store.commitlog.segment_starts()) == files
    assert store.retention_doubt == ""
    await housekeeper.stop()


async def test_after_days_off_what_is_old_goes_as_soon_as_another_clock_says_so() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    several_files(disk, clock).close()
    clock.now_ms += 4 * 24 * HOUR_MS
    monotonic = Monotonic()
    store, housekeeper = await keep_house_after_a_boot(disk, clock, monotonic, [clock.now_ms + 3000])
    await housekeeper.remove_expired_now()
    assert len(store.commitlog.segment_starts()) > 1
    assert "does not believe" in store.retention_doubt, "the other one may have begun with the same wrong time"
    monotonic.now_s += 600
    await housekeeper.remove_expired_now()
    assert len(store.commitlog.segment_starts()) == 1
    assert store.retention_doubt == ""
    await housekeeper.stop()


async def test_one_message_of_the_future_keeps_no_file_for_ever() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    disk.wall_ms = clock
    store = several_files(disk, clock)
    clock.now_ms += 3650 * 24 * HOUR_MS
    put(store, draft(b"stamped ten years ahead"))
    clock.now_ms -= 3650 * 24 * HOUR_MS
    for body in payloads(60, 200):
        clock.now_ms += HOUR_MS
        put(store, draft(body))
    sync(store)
    housekeeper = keep_house(store, disk, clock, [])
    first = store.commitlog.segment_starts()
    await housekeeper.remove_expired_now()
    assert store.commitlog.segment_starts() == first, "nothing is three days old"
    clock.now_ms += 48 * HOUR_MS
    await housekeeper.remove_expired_now()
    kept = store.commitlog.segment_starts()
    assert len(first) // 2 - 2 <= len(kept) < len(first), "what was written in the last day is there"
    clock.now_ms += 48 * HOUR_MS
    await housekeeper.remove_expired_now()
    assert len(store.commitlog.segment_starts()) == 1
    await housekeeper.stop()


async def test_a_full_disk_is_refused_and_gone_on_with() -> None:
    disk, clock = MemoryDisk(capacity_bytes=100_000), Clock()
    store = open_store(disk, clock)
    housekeeper = keep_house(store, disk, clock, [])
    usage = DiskUsage(1000, 50)
    disk.usage = lambda: usage  # type: ignore[method-assign]
    await housekeeper.remove_old_files()
    assert store.is_full
    usage = DiskUsage(1000, 500)
    await housekeeper.remove_old_files()
    assert store.refusal is None
    await housekeeper.stop()


async def test_queues_that_cannot_be_written_stop_the_store() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    put(store, draft())
    failures: list[StorageError] = []
    housekeeper = keep_house(store, disk, clock, failures, checkpoint_interval_ms=10)
    disk.fail_write_at(1)
    rounds = Rounds(housekeeper)
    housekeeper.start()
    await rounds.until(lambda: bool(failures))
    await housekeeper.stop()
    assert "disk failed" in str(store.refusal)
    assert disk.counters.write_errors == 1


async def test_queues_that_find_no_room_are_written_when_there_is_some() -> None:
    disk, clock = FaultyDisk(Random(1), capacity_bytes=SEGMENT_BYTES * 2), Clock()
    store = open_store(disk, clock)
    put(store, *(draft(body) for body in payloads(30)))
    sync(store)
    failures: list[StorageError] = []
    housekeeper = keep_house(store, disk, clock, failures)
    disk.capacity_bytes = 0
    with pytest.raises(StorageError):
        await housekeeper.make_checkpoint()
    disk.capacity_bytes = 1 << 20
    await housekeeper.make_checkpoint()
    await housekeeper.stop()
    disk.crash()
    again = make_store(disk, clock)
    again.load()
    assert again.queues.buffered_units == 0
    assert bodies(again) == list(payloads(30))
    assert failures == []


async def test_a_mistake_of_ours_fails_the_store(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    put(store, draft(b"x"))
    sync(store)
    (queue,) = store.queues.table.values()
    queue.max_offset += 1
    failures: list[StorageError] = []
    housekeeper = keep_house(store, disk, clock, failures, checkpoint_interval_ms=10)
    rounds = Rounds(housekeeper)
    housekeeper.start()
    await rounds.until(lambda: bool(failures))
    await housekeeper.stop()
    assert "end is not that of its units" in str(failures[0])
    assert "Traceback" in caplog.text


async def test_a_stop_waits_for_the_step_that_runs_and_nothing_is_lost() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    put(store, *(draft(body) for body in payloads(30)))
    housekeeper = keep_house(store, disk, clock, [], checkpoint_interval_ms=10)
    begun = asyncio.Event()
    loop, begin = asyncio.get_running_loop(), store.begin_checkpoint_in_slices

    def begin_checkpoint() -> StoreCheckpoint:
        checkpoint = begin()
        run = checkpoint.run

        def run_noisily() -> None:
            loop.call_soon_threadsafe(begun.set)
            run()

        checkpoint.run = run_noisily  # type: ignore[method-assign]
        return checkpoint

    store.begin_checkpoint_in_slices = begin_checkpoint  # type: ignore[method-assign]
    housekeeper.start()
    async with asyncio.timeout(DEADLINE_S):
        await begun.wait()
    await housekeeper.stop()
    store.begin_checkpoint_in_slices = begin  # type: ignore[method-assign]
    store.close()
    disk.remove("queueChecks")  # that is not synced: it is made again
    disk.crash()
    again = make_store(disk, clock)
    again.load()
    assert bodies(again) == list(payloads(30))
    assert not disk.counters.dropped


async def test_the_loop_goes_on_between_slices_of_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with what changes the queues that it is about."""
    monkeypatch.setattr(consume_queues, "_SLICE_QUEUES", 2)
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    for turn in range(3):
        put(store, *(draft(b"%d of turn %d" % (queue_id, turn), queue_id=queue_id) for queue_id in range(9)))
    housekeeper = keep_house(store, disk, clock, [])
    turns = 0
    slices: list[int] = []
    take, finish = store.take_slice, store.finish_slice

    def noted(checkpoint: StoreCheckpoint, do: Callable[[StoreCheckpoint], bool]) -> bool:
        slices.append(turns)
        return do(checkpoint)

    monkeypatch.setattr(store, "take_slice", lambda checkpoint: noted(checkpoint, take))
    monkeypatch.setattr(store, "finish_slice", lambda checkpoint: noted(checkpoint, finish))
    making = asyncio.create_task(housekeeper.make_checkpoint())
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
        if turns < 20:
            put(store, draft(b"between %d" % turns, queue_id=turns % 9))
    await making
    assert len(slices) >= 10
    assert slices == sorted(set(slices)), "one in each turn"
    stored = bodies(store)
    store.close()
    disk.remove("queueChecks")
    disk.crash()
    again = make_store(disk, clock)
    again.load()
    assert bodies(again) == stored


async def test_a_round_that_is_wanted_goes_by_the_rules_of_now() -> None:
    disk, clock = MemoryDisk(capacity_bytes=100_000), Clock()
    store = open_store(disk, clock)
    retention = Live(RetentionSettings())
    housekeeper = Housekeeper(store, disk, SETTINGS, retention, clock)
    disk.usage = lambda: DiskUsage(1000, 50)  # type: ignore[method-assign]
    await housekeeper.remove_expired_now()
    assert store.is_full
    retention.change(RetentionSettings(refuse_percent=97, force_percent=96))
    await housekeeper.remove_expired_now()
    assert not store.is_full
    await housekeeper.stop()


async def test_a_checkpoint_that_takes_long_comes_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    store = open_store(disk, clock)
    housekeeper = keep_house(store, disk, clock, [], checkpoint_interval_ms=10)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def pause_after_s(took_s: float) -> float:
        slept.clear()
        housekeeper._checkpoint_s = took_s
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "sleep", sleep)
            await housekeeper._wait_for_checkpoint()
        return sum(slept)

    assert await pause_after_s(0.0) == pytest.approx(0.01)
    assert await pause_after_s(0.1) == pytest.approx(2.0, abs=0.02)
    assert await pause_after_s(3600.0) == pytest.approx(20.0, abs=0.02)
    store.queues.buffered_units = 1 << 20  # so much waits in memory that it must not wait longer
    assert await pause_after_s(3600.0) == pytest.approx(0.01)
    await housekeeper.stop()
    store.abandon()
