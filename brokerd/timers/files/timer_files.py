"""The timer files: derived from the timer topic's queue, in RocketMQ's layout, with their own checkpoint and truncation.

Invariant: every entry of the queue below `applied` that is behind the cursor and not done with is in the files. Entries that the
cursor had passed when they were come to are left out, so timers that are due before the files get to them cost nothing; so are
those within a fence. What the page vouches for is on disk, and whatever a crash leaves beyond it is taken back. Files that
contradict the page, the queue or themselves are removed, all of them, and made again, and so they are when the cursor goes back:
they are never a reason not to start.

On disk the order is: records, sync, slots, sync, page. So a slot on disk never names a record that is not there, and a slot that
a crash left ahead of the page leads back, from record to record, to what it was.

A `Follower` of the log and a `Far`: one thread calls everything but `TimerWrite.run`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.native.library import Library
from brokerd.store.derived.followers import FollowerWrite
from brokerd.store.unit import BLANK_SIZE, Unit
from brokerd.timers.codes import RECALL, SLOT_MS, Key, due_of, key_of, kind_of
from brokerd.timers.done import Done
from brokerd.timers.files.layout import LOG_DIRECTORY, WHEEL_PATH, DamagedTimerFiles, Shape
from brokerd.timers.files.native_chain import walk_for
from brokerd.timers.files.native_link import NativeLink
from brokerd.timers.files.page import PATH, Page, read_page, write_page
from brokerd.timers.files.pending import PendingTimers
from brokerd.timers.files.source import TimerSource
from brokerd.timers.files.timer_log import LogWrite
from brokerd.timers.files.timer_reads import MOST_RECORDS, Question, TimerReads
from brokerd.timers.files.wheel import write_slots
from brokerd.timers.said import CODE, ROW, SIZE, latest_ms
from remoting.disk import Disk
from remoting.errors import StorageError

log = logging.getLogger(__name__)

_BYTES_OF_ENTRY: Final = 1 << 9  # of what a slice may read, for each entry that it takes
_APART: Final = 16  # entries that are looked at one by one, before many are tried again
# Records in memory from which on a checkpoint writes them, and from which on no more are taken until it has: 14 MB.
_WORTH_WRITING_RECORDS: Final = 1 << 14
_MOST_UNSAVED_RECORDS: Final = 1 << 18
# Little is written when this many checkpoints went by: a page of slots is written for a single timer.
_PATIENCE: Final = 12


class TimerWrite:
    """The state of the files on its way to disk. `run` blocks; it does nothing when the log was cut meanwhile."""

    def __init__(
        self,
        files: TimerFiles,
        records: LogWrite,
        slots: Sequence[tuple[int, bytes]],
        page: Page,
        doomed: Sequence[str],
        generation: int,
    ) -> None:
        """`doomed` are files that the page lets go."""
        self._files = files
        self.records = records
        self.slots = slots
        self.page = page
        self.doomed = doomed
        self.generation = generation

    def run(self) -> None:
        self._files.run_write(self)


class TimerFiles:
    """The files, and how far they follow."""

    def __init__(
        self,
        disk: Disk,
        source: TimerSource,
        shape: Shape | None = None,
        most_records: int = MOST_RECORDS,
        library: Library | None = None,
    ) -> None:
        """`most_records` are looked at in a call of `between`."""
        self._disk = disk
        self._source = source
        self._pending = PendingTimers(disk, shape if shape is not None else Shape())
        self._walk = walk_for(library)
        self._link = None if library is None else NativeLink(library)
        self._reads = TimerReads(self._pending.wheel, self._pending.log, self._walk, most_records)
        self._lock = threading.Lock()  # files and page change on disk under it
        self._generation = 0
        self.times_begun_again = 0  # since the start, which may have been one of them
        self._begin(source.log_range()[0])

    def _begin(self, offset: int) -> None:
        """Have nothing."""
        self._pending.clear()
        self._reads.reset()
        self._question: Question | None = None  # that is being answered
        self._code_of: dict[int, int] = {}  # codes of what was found for it, by queue offset
        self.offset, self._applied = offset, 0
        self._done = Done()  # as far as the cursor is known
        self._is_proven = True  # what a start found fits the log, as far as that was dispatched then
        self._last: Unit | None = None  # what its page says of the entry before `_applied`, until that is proven
        self._ran: TimerWrite | None = None  # it is on disk, and `finish_write` is still to come
        self._doomed: list[str] = []  # files that the page has to let go first
        self._skipped_writes = 0
        self._left_at = -1  # where the log stood when all was made ready for a broker of the original
        self._durable = self._pending.page(offset, 0, 0)

    @property
    def applied(self) -> int:
        """See `Far.applied`; 0 as long as it is not known whether what a start found fits the log."""
        return self._applied if self._is_proven else 0

    @property
    def pending_messages(self) -> int:
        """How many messages wait in the files; those of the cursor's second count until it is over, and recalled ones count."""
        return self._pending.messages

    @property
    def durable_position(self) -> int:
        """Up to which position the timer log is on disk."""
        return self._durable.end

    @property
    def span_ms(self) -> int:
        """For how long the slots of the wheel reach."""
        return self._pending.shape.slots * SLOT_MS

    def look(self) -> TimerReads:
        """For who looks at timers beside their delivery: a question of his own. He holds `times_begun_again` against what it was
        before, and may miss what comes in the meantime."""
        return TimerReads(self._pending.wheel, self._pending.log, self._walk)

    # -- following the queue -----------------------------------------------------------------------------------------------

    def take(self, limit_offset: int, most_bytes: int) -> int:
        if self.offset >= limit_offset or not self._follow_cursor():
            return 0
        self._prove()
        low, high = self._source.queue_range()
        if self._applied > high:
            self._begin_again(f"the queue ends at {high}, before {self._applied}")
        before = self.offset
        self._applied = max(self._applied, low)
        room = _MOST_UNSAVED_RECORDS - self._pending.log.unsaved_records
        wanted = max(0, min(room, max(1, most_bytes // _BYTES_OF_ENTRY), high - self._applied))
        if wanted and not self._apply_together(wanted):
            for unit in self._source.units(self._applied, wanted if self._link is None else min(wanted, _APART)):
                if not self._apply(*unit):
                    break
        elif self._applied == high:
            self.offset = limit_offset
        return self.offset - before

    def _apply_together(self, wanted: int) -> bool:
        """Take the next entries, up to one that `_apply` has to look at; False for none."""
        if self._link is None or self._applied < self._done.moved:
            return False
        first = self._applied
        said = self._source.said(first, wanted, latest_ms(self._done))
        count = 0 if said is None else self._pending.put_all(self._link, said, first)
        if said is None or not count:
            return False
        if self._reads.is_asked:
            for offset, code in enumerate(said.column(CODE)[:count], first):
                self._reads.added(key_of(code, offset))
        *_, offset, size = said.rows[(count - 1) * ROW : (count - 1) * ROW + SIZE + 1]
        self.offset = max(self.offset, offset + size)
        self._applied += count
        return True

    def _apply(self, physical_offset: int, size: int, code: int) -> bool:
        """Take the next entry; False when there is no room for it yet."""
        key = Key(due_of(code), self._applied)
        if size != BLANK_SIZE:
            kind, is_ahead = kind_of(code), not self._done.has(key)
            if is_ahead or kind == RECALL:
                origin = self._source.origin(physical_offset, size)
                if is_ahead and not self._pending.put(key, physical_offset, size, kind, origin):
                    return False
                if is_ahead:
                    self._reads.added(key)
                if kind == RECALL:
                    self._pending.put_elsewhere(key, physical_offset, size, origin, is_ahead=is_ahead)
            self.offset = max(self.offset, physical_offset + size)
        self._applied += 1
        return True

    def _follow_cursor(self) -> bool:
        """Take note of what was delivered; False while nobody knows, or less of the log was dispatched than was before."""
        delivered = self._source.delivered()
        if delivered is None or delivered.known_at < self._pending.known_at:
            return False
        if delivered.done.cursor < self._pending.passed:
            self._begin_again(f"the cursor of the timers went back to {delivered.done.cursor}")
        self._pending.move_to(delivered)
        self._done = delivered.done
        return True

    def _prove(self) -> None:
        """After a start, once, and when as much of the queue was dispatched as before: hold the last entry that was taken and
        the last record against it."""
        low, high = self._source.queue_range()
        if self._is_proven or self._applied > high:
            return
        self._is_proven = True
        last, self._last = self._last, None
        if last is not None and low < self._applied:
            units = self._source.known_units(self._applied - 1, 1)
            if [tuple(unit) for unit in units] != [tuple(last)]:
                self._begin_again("they were followed to another entry than the queue has there")
                return
        if self._pending.log.first == self._pending.log.end:
            return
        try:
            record = self._pending.log.record(self._pending.log.end - 1)
        except DamagedTimerFiles as problem:
            self._begin_again(str(problem))
            return
        if record.queue_offset < low:
            return
        units = self._source.known_units(record.queue_offset, 1) if record.queue_offset < high else []
        place = (record.physical_offset, record.size)
        if [unit[:2] for unit in units] != [place] or not (record.is_elsewhere or due_of(units[0][2]) == record.due_ms):
            self._begin_again("their last record is not that of its entry in the queue")

    # -- finding timers ----------------------------------------------------------------------------------------------------

    def between(self, after: Key, until_ms: int, limit: int) -> Sequence[tuple[int, int]] | None:
        """See `Far.between`. Timers that the cursor passed are not found any more: who asks for them knows that it went back, and
        these files do not, yet."""
        if not self._is_proven:
            return []
        if after < self._pending.passed:
            self._begin_again(f"timers behind {after} are asked for")
            return []
        question = Question(after, until_ms, limit)
        if question != self._question:
            self._question, self._code_of = question, {}
        code_of, least_offset = self._code_of, self._source.queue_range()[0]
        try:
            keys = self._reads.between(question, least_offset)
            for run in _runs([key for key in self._reads.found if key.offset not in code_of]):
                code_of.update(self._entries(run))
        except DamagedTimerFiles as problem:
            self._begin_again(str(problem))
            return []
        if keys is None:
            return None
        self._question = None
        if any(key.offset not in code_of for key in keys):  # they went with the log's first files while this was asked
            return None
        return [(code_of[key.offset], key.offset) for key in keys]

    def _entries(self, keys: Sequence[Key]) -> Iterator[tuple[int, int]]:
        """Queue offset and code of entries that follow one another, but for those whose records are not in the log any more."""
        low, high = self._source.queue_range()
        keys = [key for key in keys if key.offset >= low]
        if not keys:
            return
        if keys[-1].offset >= high:
            raise DamagedTimerFiles(f"the queue has no entry {keys[-1].offset}")
        codes: list[int] = []
        while len(codes) < len(keys):
            units = self._source.known_units(keys[len(codes)].offset, len(keys) - len(codes))
            if not units:
                raise DamagedTimerFiles(f"the queue has no entry {keys[len(codes)].offset}")
            codes += [code for _, _, code in units]
        for key, code in zip(keys, codes, strict=True):
            if due_of(code) != key.due_ms:
                raise DamagedTimerFiles(
                    f"the entry {key.offset} of the queue is due at {due_of(code)}, not {key.due_ms}"
                )
            yield key.offset, code

    def held_queue_offset(self, done: Done) -> int:
        """See `Far.held_queue_offset`."""
        if done.cursor < self._pending.passed or not self._is_proven:
            return 0
        try:
            oldest = self._reads.oldest(done)
        except DamagedTimerFiles as problem:
            self._begin_again(str(problem))
            return 0
        return self._applied if oldest is None else oldest

    def step(self) -> bool:
        """What is behind is taken as a follower of the log; here only what a start found is believed, when it can be."""
        if not self._is_proven and self._follow_cursor():
            self._prove()
        return False

    def arrived(self, end: int, codes: Sequence[int]) -> None:
        """The queue itself is followed, at another pace."""

    def truncated(self, end: int) -> None:
        """The log was cut before, and these files with it."""
        self._reads.reset()  # what was done with by the part that was cut is not
        self._question = None
        if self._applied > end:
            self._begin_again(f"the queue ends at {end}, before {self._applied}")

    def rebuild(self) -> None:
        """See `Far.rebuild`."""
        self._begin_again("this was asked for")

    def _begin_again(self, reason: str) -> None:
        if self._pending.log.end:
            log.warning("the timer files are made again from the queue: %s", reason)
        self.restart(self._source.log_range()[0])

    # -- finding the files at start ----------------------------------------------------------------------------------------

    def load(self, *, known: bool, clean: bool) -> None:
        """See `Follower.load`. What another program wrote since is not known by its page, and made again."""
        log_min_offset, log_end_offset = self._source.log_range()
        try:
            page = read_page(self._disk) if known else None
            if page is None:
                raise DamagedTimerFiles("nothing is known about them")
            self._begin(page.offset)
            self._pending.load(page, clean=clean)
            self._applied, self._durable, self._is_proven, self._last = page.applied, page, False, page.last
            self._doomed = self._pending.log.left_behind()
        except StorageError as problem:
            if self._disk.names(LOG_DIRECTORY):
                log.warning("the timer files are made again from the queue: %s", problem)
            self.restart(log_min_offset)
        if max(self.offset, self._pending.known_at) > log_end_offset:
            self._applied = 0  # the queue was not brought up to date yet: the last record says how far it went
            self.truncate(log_end_offset)

    # -- writing -----------------------------------------------------------------------------------------------------------

    def begin_write(self, *, closing: bool) -> TimerWrite | None:
        try:
            self._doomed += self._pending.drop_files(self._source.log_range()[0])
        except DamagedTimerFiles as problem:
            self._begin_again(str(problem))
        unsaved = self._pending.log.unsaved_records
        if not self._pending.log.end and not self._applied:
            return None  # there never was a timer
        is_saved = self.offset == self._durable.offset and not unsaved and not self._doomed
        if is_saved and (not closing or self._left_at == self.offset):
            return None
        self._skipped_writes += 1
        if not closing and unsaved < _WORTH_WRITING_RECORDS and self._skipped_writes < _PATIENCE:
            return None
        self._skipped_writes = 0
        is_slot_done = closing and self._leave()
        self._left_at = self.offset if closing else -1
        page = self._pending.page(self.offset, self._applied, self._durable.counter + 1, is_slot_done=is_slot_done)
        page = page._replace(last=self._last_entry())
        records, slots = self._pending.log.begin_write(), self._pending.wheel.begin_write()
        return TimerWrite(self, records, slots, page, tuple(self._doomed), self._generation)

    def _last_entry(self) -> Unit | None:
        """The last entry that was taken; None when it is not in the queue any more."""
        if not self._is_proven:
            return self._last
        last, (low, high) = self._applied - 1, self._source.queue_range()
        units = self._source.known_units(last, 1) if low <= last < high else ()
        return units[0] if units else None

    def _leave(self) -> bool:
        """Have a broker of the original that opens the directory next go on where this one stops: whether nothing is left in the
        cursor's slot."""
        try:
            last, (low, high) = self._applied - 1, self._source.queue_range()
            for physical_offset, size, _ in self._source.known_units(last, 1) if low <= last < high else ():
                if size != BLANK_SIZE:
                    self._pending.leave(physical_offset, size, last)
            return self._pending.is_slot_done()
        except DamagedTimerFiles:
            return False  # who reads the files finds that, too

    def run_write(self, write: TimerWrite) -> None:
        """What `TimerWrite.run` does."""
        with self._lock:
            if write.generation != self._generation:
                return
            if write.records.records:
                write.records.run(self._disk, self._pending.shape)
            if write.slots:
                write_slots(self._disk, self._pending.shape, write.slots)
            write_page(self._disk, write.page)
            self._durable, self._ran = write.page, write
            for path in write.doomed:
                self._disk.remove(path)

    def finish_write(self, write: FollowerWrite) -> None:
        assert isinstance(write, TimerWrite)
        if write is self._ran:
            self._take_note(write)
            self._pending.wheel.finish_write()
        else:
            self.abandon_write(write)

    def _take_note(self, write: TimerWrite) -> None:
        """It is on disk."""
        self._ran = None
        self._pending.log.finish_write(write.records)
        self._doomed = [path for path in self._doomed if path not in write.doomed]

    def abandon_write(self, write: FollowerWrite) -> None:
        assert isinstance(write, TimerWrite)
        if write is self._ran:  # it failed behind the page
            self._take_note(write)
        if write.generation == self._generation:
            self._pending.wheel.abandon_write()

    # -- cutting and deleting ----------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        if self._pending.known_at > offset:
            self._begin_again("what the log said of delivered timers was cut")
        if offset >= self.offset:
            return
        with self._lock:
            self._generation += 1
            if self._ran is not None:
                self._take_note(self._ran)
            try:
                last_offset = self._pending.forget_behind(offset)
            except DamagedTimerFiles as problem:
                log.warning("the timer files are made again from the queue: %s", problem)
                self._remove_all(self._source.log_range()[0])
                return
            self._reads.reset()
            self._question = self._last = None
            self.offset = offset
            self._applied = max(last_offset + 1, min(self._applied, self._source.queue_range()[1]))
            if self._durable.offset > offset:
                # All that is left is on disk. First on the page: what it vouches for must never be more than what is there.
                self._durable = self._pending.page(offset, self._applied, self._durable.counter + 1)
                write_page(self._disk, self._durable)
                self._pending.write_cut()

    def restart(self, offset: int) -> None:
        with self._lock:
            self._remove_all(offset)

    def _remove_all(self, offset: int) -> None:
        self._generation += 1
        self.times_begun_again += 1
        self._pending.log.close()
        for path in (PATH, WHEEL_PATH, LOG_DIRECTORY):  # the page first: nothing vouches for the others then
            self._disk.remove(path)
        self._begin(offset)

    def forget_expired(self, log_min_offset: int) -> Sequence[str]:
        """The next checkpoint finds what is not needed any more."""
        return ()

    def close(self) -> None:
        self._pending.log.close()


def _runs(keys: Sequence[Key]) -> Iterator[list[Key]]:
    """The keys in order of their queue offsets, those that follow one another together."""
    run: list[Key] = []
    for key in sorted(keys, key=lambda each: each.offset):
        if run and key.offset != run[-1].offset + 1:
            yield run
            run = []
        run.append(key)
    if run:
        yield run
