"""Uploads of single queues, some at a time: build a batch, put its two objects, say so (shell over an object store).

A put whose outcome is not known is made again under another name, a few times; then the queue goes back to those that wait, and
nothing is tried for a while. Nobody names what may be there under the first name (`docs/decisions/0018-tiers.md`).

Where the store can append, a small batch makes the objects of the queue's last segment longer. Only an uploader that put them
does, as long as each of its appends ended well: it asks no store how long they are. After any other end the batch is put like a
large one, under new names, and whatever became of the append is behind what anybody is told to read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from brokerd.loop.cold_line import Clocks, Shortly
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.tiers.objects.interface import (
    PAST_CACHE_BYTES,
    AlreadyThere,
    ObjectStore,
    ObjectStoreError,
    Unknown,
)
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.batches import Batch, Builder, Source
from brokerd.tiers.upload.buffers import KEPT_BYTES, Buffers
from brokerd.tiers.upload.pending import Pending, Waiting
from remoting.errors import CorruptedFile
from remoting.settings import Live
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Segment

log = logging.getLogger(__name__)

_TRIES: Final = 3
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 60.0
_LEAST_PAUSE_S: Final = 0.01
_ASIDE_BYTES: Final = 64 * 1024  # more is looked at by a helper thread
_LONG_MESSAGES: Final = 4096  # a batch of more is made in several portions
_LONG_AT_ONCE: Final = 2  # so many of these are made; more would only share processors, each with memory of its own
_IDLE_S: Final = 10.0  # after which memory of uploads goes, some of it


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


class Stored(NamedTuple):
    """What is in the store now: a segment, and what finds the messages that were uploaded. `grew_from` is what the segment was
    before they came to it; None: it is new."""

    segment: Segment
    index_items: bytes
    grew_from: Segment | None = None

    @property
    def messages(self) -> int:
        """How many were uploaded."""
        return self.segment.messages - (self.grew_from.messages if self.grew_from is not None else 0)


class Target(Protocol):
    """Where uploads go on."""

    @property
    def epoch(self) -> int:
        """The master's; objects are named by it."""

    def base_of(self, queue: Queue) -> int:
        """Where the bytes of the queue's next segment begin."""

    def growing(self, queue: Queue, first_ms: int) -> Segment | None:
        """The queue's last segment, when messages whose first one was stored then may come to it: nobody is about to take it out,
        and nobody does while `Uploader.is_growing`."""

    def next_number(self) -> int:
        """One that no object of this epoch was ever named by."""

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        """Whether messages that end there in the log are of an earlier topic of the name: nobody would commit them."""

    def stored(self, queue: Queue, stored: Stored) -> None:
        """It is in both objects; `Uploader.finished` follows."""

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
        self._buffers = Buffers(settings.value.buffer_bytes)
        self._running = 0
        self._buffered_bytes = 0
        self._long: set[Queue] = set()  # of which a long batch is being made
        self._line: deque[tuple[Queue, TierSettings]] = deque()  # that are about to, and wait for these
        self._timer: Timer | None = None
        self._rest: Timer | None = None  # until it nothing more is taken
        self._idle: Timer | None = None
        # The number and the end of the segment of each queue that was put here last, and is known to end there
        self._ends: dict[Queue, tuple[int, int]] = {}
        self._growing: set[Queue] = set()  # from before the append until that is committed, or came to nothing
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
            self._begin(queue, settings)
        due_ms = self._pending.next_due_ms(settings.commit_interval_ms)
        if due_ms is not None and self._free_slots(settings) > 0:
            delay_s = max(_LEAST_PAUSE_S, (due_ms - now_ms) / 1000)
            self._timer = self._loop.scheduler.call_later(delay_s, self._timer_fired)

    def finished(self, queue: Queue) -> None:
        """What was `stored` of the queue is committed, or came to nothing: it may have its next turn."""
        self._growing.discard(queue)
        self._pending.give_back(queue)
        self.wake()

    def is_growing(self, queue: Queue) -> bool:
        """Whether something is on its way into the queue's last segment."""
        return queue in self._growing

    def forget(self, topic: str) -> None:
        """It was deleted: nothing of it grows any more."""
        for queue in [queue for queue in self._ends if queue.topic == topic]:
            del self._ends[queue]

    def stop(self) -> None:
        """Begin nothing more; what is under way ends without being told to anybody."""
        self._stopped = True
        for timer in (self._timer, self._rest, self._idle):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest = self._idle = None
        self._line.clear()

    def _free_slots(self, settings: TierSettings) -> int:
        room = (settings.buffer_bytes - self._buffered_bytes) // settings.commit_bytes
        # one queue at least, however large its batches are
        return min(settings.requests_in_flight - self._running, max(room, 1 - self._running))

    def _timer_fired(self) -> None:
        self._timer = None
        self.wake()

    def _begin(self, queue: Queue, settings: TierSettings) -> None:
        waiting = self._pending.of(queue)
        if waiting is not None and waiting.end - waiting.first > _LONG_MESSAGES:
            if len(self._long) >= _LONG_AT_ONCE:
                self._line.append((queue, settings))
                return
            self._long.add(queue)
        self._loop.spawn(self._upload(queue, settings), f"upload {queue.topic}/{queue.queue_id}")

    def _made(self, queue: Queue) -> None:
        """Its batch is, or there will be none."""
        self._long.discard(queue)
        while self._line and len(self._long) < _LONG_AT_ONCE:
            self._begin(*self._line.popleft())

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
            self._made(queue)
            self._running -= 1
            self._buffered_bytes -= settings.commit_bytes
            self.wake()
            self._note_idle()

    def _note_idle(self) -> None:
        """Nothing is under way, maybe for long."""
        if self._running or self._stopped or self._buffers.free_bytes <= KEPT_BYTES:
            return
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._loop.scheduler.call_later(_IDLE_S, self._idled)

    def _idled(self) -> None:
        self._idle = None
        if not self._running:
            self._buffers.rest()

    async def _put(self, queue: Queue, settings: TierSettings) -> Stored | None:
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
        self._made(queue)
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
        stored = await self._grown(batch) or await self._new(batch)
        self._buffers.give_back(batch.buffer)
        if self._objects.appends:
            self._ends[queue] = stored.segment.number, stored.segment.end
        return stored

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

    async def _grown(self, batch: Batch) -> Stored | None:
        """Append the batch to the queue's last segment; None where that is not to be, or did not end well: it is for the objects
        of `_new` to tell whether the store takes nothing at all. Raises ObjectStoreError when this life ended."""
        last = self._growing_by(batch)
        if last is None:
            return None
        self._growing.add(batch.queue)
        try:
            aside = batch.message_bytes > _ASIDE_BYTES
            segment: Segment = await self._loop.aside(partial(batch.behind, last)) if aside else batch.behind(last)
            await self._append_both(batch, last)
        except ObjectStoreError as error:
            self._growing.discard(batch.queue)
            if self._stopped:
                raise
            log.info("%s grows no more: %s", last.messages_name(*batch.queue), error)
            return None
        return Stored(segment, batch.index_items, last)

    def _growing_by(self, batch: Batch) -> Segment | None:
        """The segment that the batch is to be appended to. Until that ended well, it is not known any more where it ends."""
        known = self._ends.pop(batch.queue, None)
        if known is None or batch.message_bytes >= PAST_CACHE_BYTES:
            return None
        last = self._target.growing(batch.queue, batch.first_ms)
        if last is None or (last.epoch, last.number, last.end) != (self._target.epoch, *known):
            return None
        return last if batch.follows(last) else None

    async def _append_both(self, batch: Batch, last: Segment) -> None:
        """Messages before the entries that point to them, as below."""
        messages, entries = last.names(*batch.queue)
        await self._objects.append(messages, last.stored_bytes, [batch.messages])
        await self._objects.append(entries, last.messages * ENTRY_BYTES, batch.entries)

    async def _new(self, batch: Batch) -> Stored:
        """Put the batch as a segment of its own. Raises ObjectStoreError."""
        for _ in range(_TRIES - 1):
            try:
                return await self._put_both(batch)
            except (Unknown, AlreadyThere):  # the latter: it was carried out when it was not known, and asked for again
                if self._stopped:
                    raise
                await self._loop.pause(_FIRST_PAUSE_S)
        return await self._put_both(batch)

    async def _put_both(self, batch: Batch) -> Stored:
        """Messages before the entries that point to them (storage.md 4.3)."""
        segment = batch.segment(self._target.epoch, self._target.next_number())
        await self._objects.put(segment.messages_name(*batch.queue), [batch.messages])
        await self._objects.put(segment.entries_name(*batch.queue), batch.entries)
        return Stored(segment, batch.index_items)

    def _succeeded(self, queue: Queue, stored: Stored | None) -> None:
        if stored is None:  # and the store was not asked for anything, so nobody knows more of it
            self._pending.give_back(queue)
        else:
            self._end_trouble()
            self._target.stored(queue, stored)

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
