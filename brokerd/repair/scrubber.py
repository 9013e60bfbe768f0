"""Reads all of the log again, slowly and for ever, holds what is derived from it against it, and has what is wrong put right.

A round goes over the whole log, from its begin to what is durable and dispatched, at `scrub.bytes_per_s`; the next one begins
`scrub.round_ms` after this one began. How far it is survives a restart (`store/scrub/progress.py`). What was damaged and what it
became is in `repairer.ledger`. While the process is busy, slices are rare.

What readers find damaged comes in by `suspect`, is looked at before the round goes on, and at once. Nobody waits for it: who met
it asks again. The queue is bounded; what does not fit is found by whoever reads it next, or by the round.

Checks run on the loop in slices of a millisecond or two; reads and writes of files run in a helper thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerd.repair.repairer import Repairer
from brokerd.repair.settings import ScrubSettings
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.scrub import progress
from brokerd.store.scrub.inspection import Inspection, Inspector, WrongUnits
from brokerd.store.scrub.log_files import LogFiles
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Suspicion
from brokerd.store.unit import UNIT_BYTES
from remoting.disk import Disk
from remoting.errors import StorageError
from remoting.record.codec import encode_filler
from remoting.record.layout import FILLER_BYTES
from remoting.record.walk import Stop
from remoting.settings import Live
from remoting.transport.tasks import end_tasks

log = logging.getLogger(__name__)

_MOST_SUSPICIONS: Final = 1024
_LEAST_SLICE_BYTES: Final = 1 << 14
_MOST_SLICE_BYTES: Final = 1 << 18
_SLICE_S: Final = 0.002
_BUSY: Final = 0.5  # a process that worked for so much of its time is busy,
_BUSY_PAUSES: Final = 10  # and is left alone for so many times as long
_LEAST_PAUSE_S: Final = 0.001
_MOST_TRIES: Final = 3  # at one place, which is looked at again when it was repaired
_RETRY_S: Final = 20.0
_SAVE_S: Final = 30.0
_IDLE_S: Final = 5.0  # at the end of what there is, and between two rounds


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the scrubber works on. `cpu_s` is the processor time that this process has used, `time_s` a steady clock,
    `wall_ms` the time of day, which alone goes on while the process does not."""

    disk: Disk
    time_s: Callable[[], float]
    cpu_s: Callable[[], float]
    wall_ms: Callable[[], int]


class Scrubber:
    """Started and stopped by its owner on the loop. `progress` is the present round's."""

    def __init__(
        self,
        store: MessageStore,
        inspector: Inspector,
        repairer: Repairer,
        settings: Live[ScrubSettings],
        machine: Machine,
    ) -> None:
        self._store = store
        self._log = store.commitlog
        self._inspector = inspector
        self._machine = machine
        self._settings = settings
        self._files = LogFiles(machine.disk, store.commitlog.segment_size_bytes)
        self._suspicions: dict[Suspicion, None] = {}
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._slice_bytes = _LEAST_SLICE_BYTES
        self._again = 0  # how often the round looked at one place without getting on
        self._used = (machine.time_s(), machine.cpu_s())
        self._retry_at_s = machine.time_s() + _RETRY_S
        self._saved_at_s = machine.time_s()
        self.repairer = repairer
        self.progress = progress.decode(machine.disk.read_bytes(progress.PATH))
        self.rounds = 0  # that ended since the start
        self.read_bytes = 0
        if not store.commitlog.is_record_boundary(self.progress.offset):  # the log was cut since
            self.progress.offset -= self.progress.offset % store.commitlog.segment_size_bytes
        store.damage_listeners.append(self.suspect)
        store.truncate_listeners.append(self._cut)

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the work and note how far it came."""
        if self._task is not None:
            await end_tasks([self._task])
            with contextlib.suppress(StorageError):  # then the next start goes over a part of the round again
                await asyncio.to_thread(self._save)

    def suspect(self, suspicion: Suspicion) -> None:
        """A reader met damage there: look at it soon."""
        if suspicion.physical_offset in self.repairer.ledger.unrepaired:
            return  # it is asked for again and again
        if len(self._suspicions) < _MOST_SUSPICIONS:
            self._suspicions[suspicion] = None
            self._woken.set()

    def _cut(self, offset: int) -> None:
        """The log was cut: what comes behind the cut is another log, whose records begin elsewhere."""
        self.progress.offset = min(self.progress.offset, offset)
        self.repairer.ledger.cut(offset)
        self._suspicions = {each: None for each in self._suspicions if each.physical_offset < offset}

    @property
    def limit(self) -> int:
        """Up to where there is something to look at."""
        return min(self.repairer.limit, self._store.dispatch_offset)

    # -- the worker --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            pause_s = await self._step_unless_it_fails()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()

    async def _step_unless_it_fails(self) -> float:
        try:
            return await self.step()
        except StorageError as error:
            log.warning("looking for damage goes on in a while: %s", error)
            return _RETRY_S
        except Exception:  # the outermost edge: a broker must not lose its scrubber for good
            log.exception("the scrubber broke, and goes on in a while")
            return _RETRY_S

    async def step(self) -> float:
        """Do what is most urgent; returns the seconds after which to come again. Raises StorageError."""
        self._woken.clear()
        while self._suspicions:
            suspicion = next(iter(self._suspicions))
            del self._suspicions[suspicion]
            await self._examine(suspicion)
        if self._machine.time_s() >= self._retry_at_s:
            self._retry_at_s = self._machine.time_s() + _RETRY_S
            await self.repairer.retry()
        pause_s = await self._go_on()
        if self._log.refusal is not None:  # a sync failed: what is durable is unknown
            self._store.fail(self._log.refusal)
        return pause_s

    async def _go_on(self) -> float:
        """One slice of the round."""
        settings, present = self._settings.value, self.progress
        if not settings.bytes_per_s:
            return _IDLE_S
        now_ms = self._machine.wall_ms()
        if present.ended_ms >= 0 or present.began_ms < 0:
            if 0 <= now_ms - present.began_ms < settings.round_ms and present.began_ms >= 0:
                return _IDLE_S
            self.progress = present = progress.Progress(self._log.min_offset, now_ms)
        present.offset = max(present.offset, self._log.min_offset)
        if present.offset >= self.limit:
            present.ended_ms = now_ms
            self.rounds += 1
            await asyncio.to_thread(self._save)
            return _IDLE_S
        before, pauses, generation = present.offset, self._pauses(), self._log.generation
        after = await self._look(before, self._slice_bytes, self.limit)
        if generation != self._log.generation:
            return _LEAST_PAUSE_S
        self._again = self._again + 1 if after == before else 0
        if self._again > _MOST_TRIES:
            log.error(
                "what is at offset %d of the log is found damaged and intact in turn; the round goes on behind it",
                before,
            )
            after = self._end_of_file(before)
        present.offset = after
        if self._machine.time_s() - self._saved_at_s >= _SAVE_S:
            await asyncio.to_thread(self._save)
        return max(_LEAST_PAUSE_S, pauses * max(0, present.offset - before) / settings.bytes_per_s)

    def _pauses(self) -> int:
        before_s, before_cpu_s = self._used
        self._used = now_s, cpu_s = self._machine.time_s(), self._machine.cpu_s()
        passed_s = now_s - before_s
        return _BUSY_PAUSES if passed_s > 0 and (cpu_s - before_cpu_s) / passed_s > _BUSY else 1

    def _save(self) -> None:
        self._saved_at_s = self._machine.time_s()
        self._machine.disk.replace_bytes(progress.PATH, progress.encode(self.progress))

    # -- looking -----------------------------------------------------------------------------------------------------------

    async def _look(self, start: int, length: int, limit: int) -> int:
        """Look at about so many bytes from the record boundary `start` on, and have what is wrong put right; returns where to go
        on: a record boundary, at `limit` at most, and behind `start`."""
        generation = self._log.generation
        data = await asyncio.to_thread(self._files.read, start, min(length, limit - start))
        begin_s = self._machine.time_s()
        inspection = self._inspector.inspect(data, start)
        self._adapt(self._machine.time_s() - begin_s)
        derived = inspection.derived
        if generation != self._log.generation:
            return start  # the log was cut meanwhile: nothing is known of what is there now
        self.read_bytes += derived.end_offset - start
        await self._put_right(inspection)
        for queue, offset in list(self._inspector.uncovered(derived.entries)):
            self._cover(queue, offset)
        if derived.stop is Stop.DAMAGED:
            return await self._pass_damage(derived.end_offset)
        if derived.end_offset > start:
            return derived.end_offset
        if derived.needs and data[:FILLER_BYTES] == encode_filler(derived.needs):
            return start + derived.needs  # the filler that ends a file
        if length < derived.needs <= limit - start:  # a record longer than a slice
            return await self._look(start, derived.needs, limit)
        if data:  # what seems to be a record goes beyond the end of the log
            return await self._pass_damage(start)
        return min(limit, self._end_of_file(start))  # the file went while it was read

    def _end_of_file(self, offset: int) -> int:
        """Where the file ends that holds the offset, or the log."""
        file_size = self._log.segment_size_bytes
        return min(self.limit, offset - offset % file_size + file_size)

    async def _pass_damage(self, start: int) -> int:
        """Have what is damaged from the record boundary on repaired; returns where to go on: there, when it was."""
        damaged = await self.repairer.examine(start)
        if damaged is None or await self.repairer.repair(damaged):
            return start
        return damaged.end

    async def _put_right(self, inspection: Inspection) -> None:
        for wrong in inspection.wrong_units:
            await self._write_units(wrong)
        index = self._store.index
        if inspection.index_begin is not None and index is not None:
            what = f"the index of keys, from offset {inspection.index_begin} of the log on"
            log.error("%s does not fit the log, and is made again from it", what)
            index.truncate(inspection.index_begin)
            self.repairer.ledger.derived_again(what, self._machine.wall_ms(), index=1)

    async def _write_units(self, wrong: WrongUnits) -> None:
        if wrong.first < wrong.queue.first_offset:
            return  # their file went meanwhile
        log.error("units of a consume queue do not fit the log, and are written again: %s", wrong)
        write = self._store.queues.rewrite(*wrong)
        await asyncio.to_thread(write.run)
        self.repairer.ledger.derived_again(
            f"units of a consume queue: {wrong}", self._machine.wall_ms(), units=len(wrong.units) // UNIT_BYTES
        )

    def _adapt(self, spent_s: float) -> None:
        """Large slices cost less, but nobody shall wait for one."""
        if spent_s > _SLICE_S:
            self._slice_bytes = max(_LEAST_SLICE_BYTES, self._slice_bytes // 2)
        elif spent_s < _SLICE_S / 2:
            self._slice_bytes = min(_MOST_SLICE_BYTES, 2 * self._slice_bytes)

    # -- what readers found ------------------------------------------------------------------------------------------------

    async def _examine(self, suspicion: Suspicion) -> None:
        place, topic, queue_id, queue_offset, size = suspicion
        if not topic:
            if not size or await self._ends_at_boundary(place, size):
                await self._pass_damage(place)
            return
        queue = self._store.queues.table.get((topic, queue_id))
        if queue is None or not queue.first_offset <= queue_offset < queue.max_offset:
            return
        if place < 0:
            await self._examine_block(queue, queue_offset)
            return
        physical_offset, size, _ = queue.unit(queue_offset)
        if physical_offset == place and size > 0 and await self._ends_at_boundary(place, size):
            await self._pass_damage(place)
            if self._log.record_at(place) is not None:
                return
        await self._look_between(*self._inspector.neighbours(queue, queue_offset))

    async def _examine_block(self, queue: ConsumeQueue, offset: int) -> None:
        """The units of a block, or what covers them, are not what was written: the log says which."""
        first, end = self._store.queues.block_of(queue, offset)
        if not self._inspector.block_is_right(queue, offset):
            start, _ = self._inspector.neighbours(queue, first)
            _, behind = self._inspector.neighbours(queue, end - 1)
            await self._look_between(start, behind)
        self._cover(queue, offset)

    def _cover(self, queue: ConsumeQueue, offset: int) -> None:
        """Have a checksum cover the written units of a block, if the log bears all of them out."""
        first, end = self._store.queues.block_of(queue, offset)
        if self._inspector.block_is_right(queue, offset):
            self._store.queues.cover(queue, first, end)

    async def _ends_at_boundary(self, place: int, size: int) -> bool:
        """Whether a unit tells the truth of where a damaged record is: then something intact starts where it ends."""
        end = place + size
        return end == self.repairer.limit or (end < self.repairer.limit and await self.repairer.examine(end) is None)

    async def _look_between(self, start: int, end: int) -> None:
        """Look at all of the log in between, both record boundaries."""
        end, generation, again = min(end, self.limit), self._log.generation, 0
        while start < end and generation == self._log.generation and again < _MOST_TRIES:
            before, start = start, await self._look(start, self._slice_bytes, end)
            again = again + 1 if start == before else 0
