"""The store's slow work, beside the event loop: checkpoints of the consume queues, and retention.

Decisions are taken on the loop between two awaits, so they see one state; what blocks (writing queues, asking for the disk's
usage, removing files) runs in one helper thread. A failed write of a queue file stops the store like a failed sync of the log;
a full disk is waited out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import TypeVar

from brokerd.store.log.retention import (
    FileAge,
    RetentionDecision,
    believe_ages,
    claims_the_future,
    decide_going,
    decide_retention,
    describe_doubt,
    expired_files,
    is_full,
    overruled_text,
    refusal_text,
    soon_ms,
    surplus_files,
)
from brokerd.store.queues.consume_queue import DIRECTORY
from brokerd.store.settings import RetentionSettings, StoreSettings
from brokerd.store.store import MessageStore
from remoting.disk import Disk, DiskUsage
from remoting.errors import StorageError
from remoting.settings import Live
from remoting.transport.beats import until_last_beat

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHECKPOINT_SHARE = 20  # a pause before a checkpoint is so many times as long as the last one took
_LONGEST_PAUSE_S = 20.0
_LOOK_MS = 1000  # how often the disk is asked how full it is
_LOOKS_IN_BETWEEN = 50  # at queues, till it is asked again in a round of retention
_FUTURE_TIMES = "store times of the log lie in the future: retention takes the ages of such files from the file system"


InThread = Callable[[Callable[[], None]], Awaitable[None]]  # runs something that blocks


class Housekeeper:
    """Started and stopped by its owner on the loop."""

    def __init__(
        self,
        store: MessageStore,
        disk: Disk,
        settings: StoreSettings,
        retention: Live[RetentionSettings],
        now_ms: Callable[[], int],
        write_config: Callable[[InThread], Awaitable[None]] | None = None,
    ) -> None:
        """`now_ms` is the time that retention may go by; the store's own clock only says what it would remove otherwise."""
        self._store = store
        self._disk = disk
        self._settings = settings
        self._retention = retention
        self._now_ms = now_ms
        self._write_config = write_config
        self._has_future_times = False
        self._checkpoint_s = 0.0  # how long the last one took
        self._round = asyncio.Lock()  # of retention: also who asks has one, and each looks by its own time
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="housekeeper")
        self._tasks: list[asyncio.Task[None]] = []
        self._room_changed = asyncio.Event()
        store.full_listeners.append(self._room_changed.set)

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._repeat(self.make_checkpoint, self._wait_for_checkpoint)),
            asyncio.create_task(self._repeat(self.remove_old_files, self._wait_for_disk_check)),
            asyncio.create_task(self._repeat(self.write_config, _every(self._settings.config_interval_ms))),
        ]

    async def stop(self) -> None:
        """End the work; a step that already runs is finished first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._executor.shutdown)

    async def make_checkpoint(self) -> None:
        """Write and sync the consume queues and the page that says so. What the loop does for that it does in slices."""
        began_s = perf_counter()
        checkpoint = self._store.begin_checkpoint_in_slices()
        try:
            await _in_turns(partial(self._store.queues.take_slice, checkpoint.write))
            await self._in_thread(checkpoint.run)
        except (StorageError, asyncio.CancelledError):
            self._store.abandon_checkpoint(checkpoint)
            raise
        try:
            await _in_turns(partial(self._store.queues.finish_slice, checkpoint.write))
        finally:
            self._store.finish_checkpoint(checkpoint)
        self._checkpoint_s = perf_counter() - began_s

    async def _wait_for_checkpoint(self) -> None:
        """One of ten thousand queues takes a second and more, most of it for files and not for what is written to them: then it
        comes less often. A start reads what came behind the last one from the log, which is why there is a longest pause."""
        interval_s = self._settings.checkpoint_interval_ms / 1000
        left_s = max(interval_s, min(self._checkpoint_s * _CHECKPOINT_SHARE, _LONGEST_PAUSE_S))
        while left_s > 0:
            await asyncio.sleep(min(left_s, interval_s))
            left_s -= interval_s
            if self._store.checkpoint_is_due:
                break

    async def remove_old_files(self) -> None:
        """One round of retention; behind the one that somebody else began."""
        async with self._round:
            await self._remove_old_files()

    async def _remove_old_files(self) -> None:
        now_ms, own_ms = self._now_ms(), self._store.wall_ms()
        ages, usage = await self._ages(now_ms, own_ms)
        store, retention = self._store, self._retention.value
        store.going_offset = decide_going(ages, usage, now_ms, retention)
        held_offset = store.held_offset()
        decision = decide_retention(ages, usage, held_offset, now_ms, store.is_full, retention)
        by_own_clock = decide_retention(ages, usage, held_offset, own_ms, store.is_full, retention)
        doubt = describe_doubt(now_ms, own_ms, by_own_clock.remove - decision.remove)
        self._note_wanted(ages, decision, usage, now_ms, own_ms)
        for removal in store.apply_retention(decision, refusal_text(usage, retention), doubt):
            await self._in_thread(removal)

    async def _ages(self, now_ms: int, own_ms: int) -> tuple[list[FileAge], DiskUsage]:
        """The ages of the log's files, and how long topics want those that would go by one of the times, or soon; and how full
        the disk is. Some queues are looked at in each turn of the loop; what is told is as it is now. A disk that takes no
        messages waits for no more than what it will tell of the files that go for that."""
        store, wanted = self._store, self._store.wanted
        usage, looks = await self._usage(), 0
        while True:
            if looks % _LOOKS_IN_BETWEEN == _LOOKS_IN_BETWEEN - 1:
                usage = await self._usage()
            ages, retention = await self._believed_ages(now_ms), self._retention.value
            latest_ms = max(soon_ms(now_ms, retention), own_ms)
            surplus = min(surplus_files(ages, usage, retention), retention.files_per_round)
            count = max(expired_files(ages, latest_ms, retention), surplus)
            files = [age for age in ages[:count] if age.end <= store.dispatch_offset]  # the queues have all of these
            is_hurried = surplus > 0 and is_full(usage, store.is_full, retention)
            terms = files, surplus, now_ms, latest_ms, retention.reserved_time_ms
            if not wanted.look_on(*terms, is_hurried=is_hurried):
                return wanted.marked(ages, is_hurried=is_hurried), usage
            looks += 1
            await asyncio.sleep(0)

    def _note_wanted(
        self, ages: list[FileAge], decision: RetentionDecision, usage: DiskUsage, now_ms: int, own_ms: int
    ) -> None:
        kept = self._store.wanted.kept
        kept_before, overruled_before = kept.files, kept.overruled
        self._store.wanted.note(ages, decision, now_ms, own_ms)
        if kept.files and not kept_before:
            log.info("files of the log stay that are old, since topics want messages in them, first %s", kept.topic)
        if overruled := kept.overruled - overruled_before:
            log.warning("%s", overruled_text(usage, overruled, kept.overruled_topic, self._retention.value))

    async def _believed_ages(self, now_ms: int) -> list[FileAge]:
        """The ages of the log's files; what claims to be of the future is asked of the file system."""
        store = self._store
        ages = store.file_ages()
        claims = claims_the_future(ages, now_ms)
        if claims != self._has_future_times:
            self._has_future_times = claims
            log.warning("%s", _FUTURE_TIMES if claims else "no store time of the log lies in the future any more")
        if not claims:
            return ages
        starts, written_ms = store.commitlog.segment_starts(), store.commitlog.written_ms
        written = await self._in_thread(lambda: {start: written_ms(start) for start in starts})
        return believe_ages(store.file_ages(), written, now_ms)

    async def remove_expired_now(self) -> int:
        """Rounds of retention until nothing is left to remove, for somebody who asks; how many files of the log went."""
        store = self._store
        before = len(store.commitlog.segment_starts())
        first = -1
        while store.commitlog.min_offset != first:
            first = store.commitlog.min_offset
            await self.remove_old_files()
        return max(0, before - len(store.commitlog.segment_starts()))

    async def remove_queue_files(self) -> int:
        """Remove the queues' files in front of the log's begin; how many."""
        paths = self._store.queues.forget_expired(self._store.commitlog.min_offset)
        for removal in self._store.removals_of(paths):
            await self._in_thread(removal)
        return sum(path.startswith(f"{DIRECTORY}/") for path in paths)

    async def write_config(self) -> None:
        """Write what is derived for others."""
        if self._write_config is not None:
            await self._write_config(self._in_thread)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _usage(self) -> DiskUsage:
        return await self._in_thread(self._disk.usage)

    async def _wait_for_disk_check(self) -> None:
        """A disk that becomes full is found soon, on a replica, too; one that is full is looked at often: sends are refused."""
        left_ms = self._retention.value.interval_ms
        self._room_changed.clear()
        while not self._store.is_full and left_ms > 0:
            wait_ms = min(left_ms, _LOOK_MS)
            left_ms -= wait_ms
            await until_last_beat(wait_ms / 1000, self._room_changed)
            if self._room_changed.is_set() or is_full(await self._usage(), False, self._retention.value):
                break
        if self._store.is_full:
            await asyncio.sleep(self._retention.value.full_interval_ms / 1000)

    async def _repeat(
        self, step: Callable[[], Coroutine[None, None, None]], pause: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        while True:
            try:
                await pause()
                await step()
            except StorageError as error:
                if not error.is_out_of_space:
                    self._store.fail(error)
                    return
                log.warning("no room for the consume queues: %s", error)
                self._store.set_full(True)
            except Exception as error:  # the outermost edge: the daemon must learn that nobody keeps house
                log.exception("the housekeeper broke")
                self._store.fail(StorageError(f"the housekeeper broke: {error}"))
                return


def _every(interval_ms: int) -> Callable[[], Coroutine[None, None, None]]:
    return lambda: asyncio.sleep(interval_ms / 1000)


async def _in_turns(goes_on: Callable[[], bool]) -> None:
    """Call it until it is done, once in each turn of the loop."""
    for _ in iter(goes_on, False):
        await asyncio.sleep(0)
