"""Uploads of single queues, some at a time: build a batch, put its two objects, say so (shell over an object store).

A put whose outcome is not known is made again under another name, a few times; then the queue goes back to those that wait, and
nothing is tried for a while. Nobody names what may be there under the first name (`docs/decisions/0018-tiers.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from brokerd.loop.cold_line import Clocks, Shortly
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.tiers.objects.interface import AlreadyThere, ObjectStore, ObjectStoreError, Unknown
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.batches import Batch, Builder, Source
from brokerd.tiers.upload.buffers import Buffers
from brokerd.tiers.upload.pending import Pending, Waiting
from remoting.errors import CorruptedFile
from remoting.settings import Live
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment

log = logging.getLogger(__name__)

_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_LEAST_PAUSE_S: Final = 0.01


class Loop(NamedTuple):
    """What a broker's event loop does for tiers: time, tasks, and pauses of tasks; a pause of 0 is the next turn. `aside` has a
    helper thread do work, which touches nothing that anybody else does, and gives its result. `clocks`,
    `shortly` and `give_way` are for the line of who reads."""

    scheduler: Scheduler
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    pause: Callable[[float], Awaitable[None]]
    wall_ms: Callable[[], int]
    aside: Callable[[Callable[[], Any]], Awaitable[Any]]
    clocks: Clocks
    shortly: Shortly | None = None
    give_way: Callable[[], None] | None = None


async def in_turn(work: Callable[[], Any]) -> Any:
    """`Loop.aside` where there are no threads."""
    return work()


def no_loop(scheduler: Scheduler, wall_ms: Callable[[], int]) -> Loop:
    """For a broker without a tier: it has the time, and begins no tasks."""

    def spawn(work: Coroutine[Any, Any, None], what: str) -> None:
        work.close()
        raise AssertionError(f"without a tier nobody has to {what}")

    async def pause(_seconds: float) -> None:
        raise AssertionError("without a tier nobody pauses")

    return Loop(scheduler, spawn, pause, wall_ms, in_turn, Clocks(scheduler.time, scheduler.time))


class Target(Protocol):
    """Where uploads go on."""

    @property
    def epoch(self) -> int:
        """The master's; objects are named by it."""

    def base_of(self, queue: Queue) -> int:
        """Where the bytes of the queue's next segment begin."""

    def next_number(self) -> int:
        """One that no object of this epoch was ever named by."""

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        """Whether messages that end there in the log are of an earlier topic of the name: nobody would commit them."""

    def stored(self, queue: Queue, segment: Segment, index_items: bytes) -> None:
        """Both objects are there, whose messages are found by these; `Uploader.finished` follows."""

    def passed(self, queue: Queue, queue_offset: int) -> None:
        """There is nothing to upload before that offset."""

    def troubled(self, error: ObjectStoreError | None) -> None:
        """The object store does not do what it should; None: it does again."""


class Uploader:
    """One life of it: from when the tier is open until this broker is not the master any more."""

    def __init__(
        self,
        pending: Pending,
        source: Source,
        objects: ObjectStore,
        target: Target,
        loop: Loop,
        settings: Live[TierSettings],
    ) -> None:
        self._pending = pending
        self._source = source
        self._objects = objects
        self._target = target
        self._loop = loop
        self._settings = settings
        self._buffers = Buffers()
        self._running = 0
        self._buffered_bytes = 0
        self._timer: Timer | None = None
        self._rest: Timer | None = None  # until it nothing is tried
        self._failures = 0
        self._stopped = self._is_in_trouble = False

    def wake(self) -> None:
        """Something may be due."""
        if self._stopped or self._rest is not None:
            return
        if self._is_in_trouble and not len(self._pending):  # what could not be uploaded is not wanted any more
            self._end_trouble()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        settings = self._settings.value
        now_ms = self._loop.wall_ms()
        free = self._free_slots(settings)
        for queue in self._pending.take(now_ms, settings.commit_interval_ms, free) if free > 0 else ():
            self._running += 1
            self._buffered_bytes += settings.commit_bytes
            self._loop.spawn(self._upload(queue, settings), f"upload {queue.topic}/{queue.queue_id}")
        due_ms = self._pending.next_due_ms(settings.commit_interval_ms)
        if due_ms is not None and self._free_slots(settings) > 0:
            delay_s = max(_LEAST_PAUSE_S, (due_ms - now_ms) / 1000)
            self._timer = self._loop.scheduler.call_later(delay_s, self._timer_fired)

    def finished(self, queue: Queue) -> None:
        """What was `stored` of the queue is committed, or came to nothing: it may have its next turn."""
        self._pending.give_back(queue)
        self.wake()

    def stop(self) -> None:
        """Begin nothing more; what is under way ends without being told to anybody."""
        self._stopped = True
        for timer in (self._timer, self._rest):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest = None

    def _free_slots(self, settings: TierSettings) -> int:
        room = (settings.buffer_bytes - self._buffered_bytes) // settings.commit_bytes
        # one queue at least, however large its batches are
        return min(settings.requests_in_flight - self._running, max(room, 1 - self._running))

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    async def _upload(self, queue: Queue, settings: TierSettings) -> None:
        try:
            stored = await self._put(queue, settings)
        except CorruptedFile as error:
            log.warning("the upload of %s/%d waits for a repair: %s", *queue, error)
            self._failed(queue)
        except ObjectStoreError as error:
            if not self._stopped:
                self._is_in_trouble = True
                self._target.troubled(error)
            self._failed(queue)
        else:
            if not self._stopped:
                self._succeeded(queue, stored)
        finally:
            self._running -= 1
            self._buffered_bytes -= settings.commit_bytes
            self.wake()

    async def _put(self, queue: Queue, settings: TierSettings) -> tuple[Segment, bytes] | None:
        """Store the next batch of the queue; None when there is none."""
        waiting = self._pending.of(queue)
        if waiting is None:
            return None
        base = self._target.base_of(queue)
        offsets = range(waiting.first, waiting.end)
        builder = Builder(self._source, self._buffers, queue, offsets, base, settings.commit_bytes)
        while await self._go_on(builder):
            if self._stopped:
                builder.give_up()
                return None
        batch = builder.batch()
        if batch is None:
            self._target.passed(queue, builder.passed)
            self._require_progress(queue, waiting, "nothing can be read")
            return None
        if self._target.is_of_deleted(queue, batch.log_end):
            self._buffers.give_back(batch.buffer)
            self._require_progress(
                queue, waiting, "what is there is of an earlier topic of that name, which was deleted"
            )
            return None
        for tries in range(_TRIES):
            segment = batch.segment(self._target.epoch, self._target.next_number())
            try:
                await self._put_both(batch, segment)
            except (Unknown, AlreadyThere):  # the latter: it was carried out when it was not known, and asked for again
                if tries == _TRIES - 1 or self._stopped:
                    raise
                await self._loop.pause(_FIRST_PAUSE_S)
            else:
                break
        self._buffers.give_back(batch.buffer)
        return segment, batch.index_items

    def _require_progress(self, queue: Queue, before: Waiting, why: str) -> None:
        """Nothing was uploaded. Raises CorruptedFile when the queue's next turn begins where this one did, as each after it."""
        now = self._pending.of(queue)
        if now is not None and (now.first, now.position) == (before.first, before.position):
            raise CorruptedFile(f"nothing can be uploaded of {queue.topic}/{queue.queue_id} from {now.first} on: {why}")

    async def _go_on(self, builder: Builder) -> bool:
        """Make the next portion; whether there may be more. Raises CorruptedFile."""
        aside = builder.aside()
        if aside is not None:
            return builder.took(await self._loop.aside(aside))
        if not builder.step():
            return False
        await self._loop.pause(0)
        return True

    async def _put_both(self, batch: Batch, segment: Segment) -> None:
        """Messages before the entries that point to them (storage.md 4.3)."""
        await self._objects.put(segment.messages_name(*batch.queue), [batch.messages])
        await self._objects.put(segment.entries_name(*batch.queue), batch.entries)

    def _succeeded(self, queue: Queue, stored: tuple[Segment, bytes] | None) -> None:
        self._end_trouble()
        if stored is None:
            self._pending.give_back(queue)
        else:
            self._target.stored(queue, *stored)

    def _end_trouble(self) -> None:
        self._failures, self._is_in_trouble = 0, False
        self._target.troubled(None)

    def _failed(self, queue: Queue) -> None:
        """Try nothing for a while, longer each time."""
        if self._stopped:  # who leads again may have taken it
            return
        self._pending.give_back(queue)
        if self._rest is not None:
            return
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._failures)
        self._failures += 1
        self._rest = self._loop.scheduler.call_later(pause_s, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self.wake()
