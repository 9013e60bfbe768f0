"""The message store of a broker: the log, what is derived from it, and the one place where they change together.

There is one way into the log, whatever a record's origin (a send's kernel, a draft, the tables of the system): `begin_run`, lay
out records in the run, `append_laid_out`, without a wait in between. That appends all of the run in one write, takes its numbers
and hands its entries to dispatch, or does nothing of that. Then ask the flusher (`Flusher.request`). When the confirm offset
moved, `dispatch(confirm_offset)` puts what became visible into the consume queues and tells the listeners, once per queue and
round; call it again while `dispatch_offset` moves.

Invariants: consumers see exactly what was dispatched, and nothing behind the confirm offset was; queue offsets are dense; store
timestamps do not decrease along the log. Time comes in as `now_ms`, files through the disk seam, so a simulator can run it all.
One thread (the event loop's) calls everything except `sync`, `note_flushed` and `StoreCheckpoint.run`. `log_recovery` says what a
start does with the log, `durable` how far the files are durable.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest

from brokerd.store.again import Copies, Looked, Names
from brokerd.store.derived.dispatcher import Arrival, Dispatcher
from brokerd.store.derived.followers import Follower, finish_all
from brokerd.store.draft import Draft, check_draft, draft_size, lay_out_draft
from brokerd.store.index.key_index import KeyIndex
from brokerd.store.index.layout import IndexShape
from brokerd.store.log.begin_times import BeginTimes
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.log.layout import must_roll
from brokerd.store.log.retention import FileAge, RetentionDecision
from brokerd.store.native_again import again_for
from brokerd.store.queues import queue_ends, rotten
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.queue_offsets import QueueKey, QueueOffsets
from brokerd.store.read_levels import ColdFirst, ReadLevel, never_in_memory
from brokerd.store.run import AppendResult, Run
from brokerd.store.seams import NO_SEAMS, StoreSeams
from brokerd.store.settings import StoreSettings
from brokerd.store.start import checkpoint_page, decisions
from brokerd.store.start.checkpoint_page import ABORT_PATH, Checkpoint
from brokerd.store.start.durable_positions import DurablePositions, StoreCheckpoint
from brokerd.store.start.log_recovery import RecoveredLog, recover_log
from brokerd.store.start.suspicion import SuspectEnd, SuspicionFile, set_aside
from brokerd.store.store_reads import StoreReads, Suspicion
from brokerd.store.unit import Unit
from brokerd.store.wanted_files import WantedFiles
from remoting import codes
from remoting.disk import Bytes, Disk
from remoting.errors import DamagedRecord, NotMaster, RequestError, StorageError
from remoting.record import checksum
from remoting.record.layout import FILLER_BYTES

log = logging.getLogger(__name__)

# Records that are larger than this on average are gathered by the write itself, smaller ones before it.
_LARGE_BYTES = 4096
# Units that may wait in memory for a checkpoint: 40 MB. Each checkpoint of thousands of queues costs a sync for each of them.
_MAX_BUFFERED_UNITS = 1 << 21
_NO_ROOM = (
    "this broker's disk is full: it has no room for a message; delete data or add room, it then goes on by itself"
)


class MessageStore(StoreReads):
    """Appends, dispatches, reads and checkpoints as one.

    Make it, `load()` it, `close()` it; a loaded store refuses appends until `set_appendable(True)`.
    """

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        now_ms: Callable[[], int],
        store_host: bytes,
        seams: StoreSeams = NO_SEAMS,
    ) -> None:
        rules, library = seams.rules, seams.library
        self._disk = disk
        self._settings = settings
        self._now_ms = now_ms
        self._store_host = store_host
        self._rules = rules
        self.adds_checksums = settings.record_checksums
        self._appendable = False
        self._resets = 0  # how often the log was thrown away
        self.is_full = False
        self._full_reason = ""
        self._takes_own = False  # what the broker itself appends, though it is full
        self._takes_moves = False  # of that what lets files go
        self._is_making_room = False
        self._failure: StorageError | None = None
        self.cold = seams.cold if seams.read_level is not ReadLevel.DISABLE else None
        self.cold_first = None
        if self.cold is not None and seams.read_level in (ReadLevel.NOT_IN_MEM, ReadLevel.FORCE):
            is_forced = seams.read_level is ReadLevel.FORCE
            self.cold_first = ColdFirst(self.cold.run_end, never_in_memory if is_forced else self.is_in_memory)
        self.going_offset = 0
        self.retention_doubt = ""  # why files stay that would go by this machine's clock; "" = none does
        self._page_written_ms = disk.modified_ms(checkpoint_page.PATH)
        self.left_behind_ms: Sequence[int] = ()  # times of the last run, or before it; known after `load`
        page = Checkpoint(disk)
        self.is_sealed = page.known  # nobody else went on with the directory
        self.commitlog = CommitLog(disk, settings, is_ours=self.is_sealed, library=library)
        self._again = again_for(library, store_host, settings.largest_record_bytes)
        self.begin_times = BeginTimes(self.commitlog)
        self.durable = DurablePositions(page, self.commitlog)
        self.queues = ConsumeQueues(disk, settings, library=library)
        self.wanted = WantedFiles(self.commitlog, self.queues, self.begin_times, seams.wishes)
        self._queue_offsets = QueueOffsets()
        self.take_back: Callable[[], None] | None = (
            None  # the log's end, of who may append to it by himself: it is settled then
        )
        self._most_run_bytes = self.commitlog.segment_size_bytes - FILLER_BYTES
        self.dispatcher = Dispatcher(self.commitlog, self.queues, settings.dispatch_chunk_bytes, rules)
        self.index: KeyIndex | None = None
        self.followers: list[Follower] = []
        if settings.index_enabled:
            self.index = KeyIndex(disk, self.commitlog, IndexShape(settings.index_slots, settings.index_items), library)
            self.followers.append(self.index)
        self.last_timestamp_ms = 0
        self.found_timestamp_ms = 0  # the last message's when this broker began to append, or started; 0 without one
        self.ended_cleanly = True  # the last run closed its files; known after `load`
        self.gave_up_durable = False  # bytes that had been durable are gone, as the settings said; likewise
        self.suspicion: SuspectEnd | None = None  # the log may lack what was durable; likewise, until that is settled
        self._suspicion_file = SuspicionFile(disk)
        self._is_judged = False  # those who elect have decided without what this log may lack
        not_yet: RequestError | None = NotMaster("this broker's store is not loaded yet; try again")
        self.refusal = not_yet
        self.own_refusal = not_yet  # of what the broker itself appends, which it does while it takes no sends
        self.lost_ends: dict[QueueKey, int] = {}  # of queues that were made again from a log without their last message
        self.truncate_listeners: list[Callable[[int], None]] = []
        self.full_listeners: list[Callable[[], None]] = []  # the disk became full, or has room again
        self.failure_listeners: list[Callable[[StorageError], None]] = []
        self.damage_listeners: list[Callable[[Suspicion], None]] = []
        self.position_holders: list[Callable[[], int | None]] = []
        self.expected_holders: list[Callable[[], int | None]] = []  # who count only while there is room for messages

    # -- start and end -----------------------------------------------------------------------------------------------------

    def load(self, *, ask_first: bool = False) -> None:
        """Recover what the last run left behind: cut the torn tail, bring the consume queues up to the confirm offset.

        Raises CorruptedFile when something that had been durable is damaged; the text says what can be done. With `ask_first` a
        log that is suspect, and was not at an earlier start, is a SuspectLog. Running it twice does what running it once does.
        """
        self.ended_cleanly = clean = not self._disk.exists(ABORT_PATH)
        known = self.durable.known
        ask_first = ask_first and self._suspicion_file.load(0) is None
        found = recover_log(self.commitlog, known, self._settings, clean=clean, ask_first=ask_first)
        end, self.last_timestamp_ms, self.gave_up_durable = found.end, found.last_timestamp_ms, found.gave_up_durable
        self.found_timestamp_ms = found.last_timestamp_ms
        self._remember(found)
        start = decisions.decide_queues_start(known, self.commitlog.min_offset, end)
        if known is None or not self._recover_queues(start, found.latest, clean=clean):
            self.lost_ends = self.queues.expired_ends(self.commitlog, end)
            self.queues.clear()
            start = self.commitlog.min_offset
        self.dispatcher.restart(start)
        confirm_offset = decisions.decide_confirm_offset(known, start, end, marked=found.confirmed)
        for follower in self.followers:
            follower.load(known=known is not None, clean=clean)
        self.durable.begin(flushed=end, queues=start, confirm=confirm_offset, checked_from=found.checked_from)
        rotten.unmark(self._disk)
        if clean:  # otherwise it is there, and the disk may have no room for another one
            self._disk.replace_bytes(ABORT_PATH, str(os.getpid()).encode())
        while (before := self.dispatch_offset) < confirm_offset:
            self.dispatch(confirm_offset)
            if self.dispatch_offset == before:
                break
            if self.checkpoint_is_due:
                self.checkpoint()
        times = (self._page_written_ms, self.last_timestamp_ms or None)
        self.left_behind_ms = [each for each in times if each is not None]
        self._update_refusal()
        log.info("the commitlog holds %d to %d, dispatched to %d", self.commitlog.min_offset, end, self.dispatch_offset)

    def _remember(self, found: RecoveredLog) -> None:
        """A suspicion is durable before anything else is changed; one of an earlier start lasts until it is settled."""
        self.suspicion = self._suspicion_file.load(found.end)
        if found.suspicion is not None:
            self.suspicion = found.suspicion.and_earlier(self.suspicion)
            self._suspicion_file.save(self.suspicion)
        elif self.suspicion is not None and self._settings.truncate_damaged_log:
            self.gave_up_durable = True
            self.suspicion = None
            self._suspicion_file.remove()

    def judged(self) -> None:
        """Whoever elects knows that this log is suspect, and counts on others that have everything: it is a log like any other,
        and what was kept behind its end is not the last copy."""
        self._is_judged = True
        try:
            self.give_up_rest()
        except StorageError as error:
            self.fail(error)

    def elected(self) -> None:
        """This broker is to lead with its log as it is: what that lacks may be nowhere else, and is set aside for a person.

        Raises StorageError.
        """
        if self.suspicion is not None and self.commitlog.keeps_rest:
            set_aside(self._disk, self.suspicion, self.commitlog.segment_size_bytes)
            log.warning("what stands behind the damage at %d is kept in damaged/", self.suspicion.start)
        self.judged()

    def give_up_rest(self) -> None:
        """Before the log changes: remove what a suspect one keeps behind its end. The suspicion lasts until it is judged."""
        self.commitlog.give_up_rest()
        if self._is_judged and self.suspicion is not None:
            self.suspicion = None
            self._suspicion_file.remove()

    def close(self) -> None:
        """Make everything durable and close the files; after that a start is a clean one."""
        self.settle()
        if self._failure is None:
            finish_all(self.followers, self.dispatch_offset)
            self.checkpoint(closing=True)
            if self.dispatch_offset == self.commitlog.end_offset:  # the original would not index what is left
                self._leave_queue_ends()
                self._disk.remove(ABORT_PATH)
        self.abandon()

    def _leave_queue_ends(self) -> None:
        """Only a shortcut for the next start, so a disk that has no room for it is no failure."""
        try:
            self._disk.replace_bytes(queue_ends.PATH, self.queues.ends(self.durable.positions.queues_offset))
        except StorageError as error:
            log.warning("the next start will look at every consume queue: %s", error)
            self._disk.remove(queue_ends.PATH)

    def abandon(self) -> None:
        """Close the files and save nothing, as after a failure of the disk."""
        self.settle()
        self.refusal = self.own_refusal = NotMaster("this broker is stopping; try another one")
        self.commitlog.close()
        self.queues.close()
        for follower in self.followers:
            follower.close()
        self.durable.close()

    def _recover_queues(self, start: int, latest: Mapping[QueueKey, int], *, clean: bool) -> bool:
        if rotten.is_marked(self._disk):
            log.error("all consume queues are made again: an earlier start met a unit that the log contradicts")
            return False
        if not self.queues.recover(self.commitlog, start, latest, clean=clean):
            return False
        # Without a single queue somebody removed the files, to have them made again.
        return bool(self.queues.table) or start == self.commitlog.min_offset

    # -- appending ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take note of all that was appended by who may do so by himself, who appends nothing more before he is asked again."""
        if self.take_back is not None:
            self.take_back()

    @property
    def queue_offsets(self) -> QueueOffsets:
        """What comes next in each queue."""
        self.settle()
        return self._queue_offsets

    def set_appendable(self, appendable: bool) -> None:
        """Begin or stop to take messages: a master appends, a replica only copies.

        To begin, a part of a record at the log's end (never acknowledged) is cut, and the numbers of all messages in the log
        are taken, also of those that are not confirmed yet.
        """
        self.settle()
        if appendable and not self._appendable:
            self.give_up_rest()
            if self.commitlog.complete_offset < self.commitlog.end_offset:
                self.truncate(self.commitlog.complete_offset)
            self._take_queue_offsets()
        self._appendable = appendable
        self._update_refusal()

    def seal_records(self, on: bool) -> None:
        """End new records with checksums, if the settings want them, or not: others of the group may not know them."""
        self.settle()
        self.adds_checksums = on and self._settings.record_checksums

    def set_full(
        self, full: bool, reason: str = _NO_ROOM, *, takes_own: bool = False, takes_moves: bool = False
    ) -> None:
        """Refuse appends for the reason, or take them again, because of the room on the disk; a full one may have room for what
        the broker itself appends, or for that part of it which lets files go (`making_room`)."""
        self.settle()
        has_changed = full != self.is_full
        self.is_full, self._full_reason = full, reason
        self._takes_own, self._takes_moves = takes_own, takes_moves
        self._update_refusal()
        if has_changed:
            log.warning("%s", reason if full else "the disk has room again")
            for listener in self.full_listeners:
                listener()

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """What the broker appends inside lets files of the log go: it is taken on a disk that is too full for all else."""
        self._is_making_room = True
        self._update_refusal()
        try:
            yield
        finally:
            self._is_making_room = False
            self._update_refusal()

    def next_timestamp(self) -> int:
        """The store timestamp for the next record: now, but never before an earlier one."""
        self.last_timestamp_ms = max(self.last_timestamp_ms, self._now_ms())
        return self.last_timestamp_ms

    def check_draft(self, draft: Draft) -> int:
        """How many bytes the draft's record takes. Raises RequestError naming the rule that it breaks."""
        return check_draft(draft, len(self._store_host), self._settings.largest_record_bytes)

    def look_again(self, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        """Look at records that units name, to store their messages again; see `again.Again.look`."""
        content, there = self.commitlog.reads.unchecked(units)
        return self._again.look(content, there, places, names)

    def append_messages(
        self, drafts: Sequence[Draft | Copies], *, together: bool = False, own: bool = False
    ) -> list[AppendResult]:
        """Append the messages; `together` keeps them contiguous in one file. What copies are has one place and size for all.
        `own` are the broker's, which go on for a while when the disk is too full for what clients send.

        Raises RequestError, with nothing appended, when the store takes no messages or one draft breaks a rule
        (`check_draft`); StorageError when the disk refused: messages before the one it refused may then be in the log.
        """
        self._check_takes(own)
        size = messages = 0
        for draft in drafts:
            if isinstance(draft, Copies):
                size += draft.size_bytes
                messages += draft.messages
            else:
                size += self.check_draft(draft)
                messages += 1
        if not together:
            return self.append_checked(drafts, own=own)
        file_bytes = self.commitlog.segment_size_bytes
        if must_roll(size, file_bytes):
            raise RequestError(codes.MESSAGE_ILLEGAL, f"a batch of {size} bytes does not fit into one commitlog file")
        sealed_size = size + messages * (checksum.TAIL_BYTES + 1)
        if self.adds_checksums and not must_roll(sealed_size, file_bytes):
            return self.append_checked(drafts, sealed_size, own=own)
        return self.append_checked(drafts, size, seals=False, own=own)

    def append_checked(
        self,
        drafts: Sequence[Draft | Copies],
        size: int = 0,
        *,
        seals: bool = True,
        own: bool = False,
        entry_codes: Sequence[int | None] = (),
    ) -> list[AppendResult]:
        """Append messages that passed `check_draft`, the first `size` bytes of them in one file, without checksums unless it
        `seals` them; raises like `append_messages`. `entry_codes` are those of their entries, as far as they are known."""
        results: list[AppendResult] = []
        run = self.begin_run(size, own=own)
        run.seals = run.seals and seals
        for draft, code in zip_longest(drafts, entry_codes):
            place = self.lay_out(run, draft, code)
            if place is None:
                self.append_laid_out(run)
                run = self.begin_run(run.room + 1, own=own)
                place = self.lay_out(run, draft, code)
                assert place is not None, "a checked draft fits into a file"
            results.append(place)
        self.append_laid_out(run)
        return results

    def stored_size(self, draft: Draft) -> int:
        """How many bytes the record of a draft that passed `check_draft` takes at most, with its checksum."""
        size = draft_size(draft, len(self._store_host))
        return size + checksum.TAIL_BYTES + 1 if self.adds_checksums else size

    def lay_out(self, run: Run, draft: Draft | Copies, code: int | None = None) -> AppendResult | None:
        """Lay out what passed `check_draft`; None when the run has no room. `code` is that of a draft's entry, if it is known."""
        if isinstance(draft, Copies):
            return self._again.lay_out(run, draft)
        return lay_out_draft(run, draft, self._store_host, self._rules, self._settings.largest_record_bytes, code)

    def begin_run(self, size: int = 0, *, own: bool = False) -> Run:
        """A run at the end of the log, in the next file when the current one has less room than `size` bytes; `own` as for
        `append_messages`.

        Raises RequestError when the store takes no messages, StorageError when the disk refused the next file.
        """
        self.settle()
        self._check_takes(own)
        commitlog = self.commitlog
        room = commitlog.segment_remaining() - FILLER_BYTES
        if size > room:
            try:
                commitlog.roll()
            except StorageError as error:
                self.note_append_error(error)
                raise
            room = commitlog.segment_remaining() - FILLER_BYTES
        start = commitlog.end_offset
        taking = self._queue_offsets.taking()
        run = Run(start, start + room, self._most_run_bytes, self.next_timestamp(), taking, self.adds_checksums)
        run.is_own = own
        return run

    def append_laid_out(self, run: Run) -> None:
        """Append all of a run, which nobody adds to any more: its records in one write, its numbers, its entries for dispatch.

        Raises RequestError when the store takes no messages, StorageError when the disk refused. Then nothing of the run is in
        the log, and its numbers are not taken.
        """
        self._check_takes(run.is_own)
        if not run.records:
            return
        assert run.start == self.commitlog.end_offset, "something was appended since the run began"
        records, size = run.records, run.size
        try:
            self.commitlog.append(records if size > _LARGE_BYTES * len(records) else b"".join(records), size)
        except StorageError as error:
            self.note_append_error(error)
            raise
        self._note_appended(run)

    def note_appended(self, run: Run) -> None:
        """Somebody else put the records of a run at the log's end by himself."""
        self.commitlog.note_appended(run.size)
        self._note_appended(run)

    def _note_appended(self, run: Run) -> None:
        self._queue_offsets.advance(run.taken)
        for start, entries, end in run.offers():
            self.dispatcher.offer(start, entries, end)
        for told in run.appended:
            told()

    def _check_takes(self, own: bool) -> None:
        """Raises RequestError while it takes no messages."""
        refusal = self.own_refusal if own else self.refusal
        if refusal is not None:
            raise refusal.with_traceback(None)

    def note_append_error(self, error: StorageError) -> None:
        """The disk refused an append: a full disk is waited out, anything else is final."""
        if error.is_out_of_space:
            self.set_full(True)
        else:
            self.fail(error)

    def append_replicated(self, physical_offset: int, data: Bytes) -> int:
        """Append bytes of the master's log; see `CommitLog.append_replicated`. Nothing stays of a record that is damaged."""
        assert not self._appendable, "a master does not copy another master"
        if self.commitlog.keeps_rest:
            self.give_up_rest()
        try:
            end = self.commitlog.append_replicated(physical_offset, data)
        except DamagedRecord:
            self.truncate(self.commitlog.complete_offset)
            raise
        except StorageError as error:
            if error.is_out_of_space:
                self.set_full(True)
            raise
        if self.dispatch_offset < self.commitlog.min_offset:  # an empty log began at its master's first file
            self.dispatcher.restart(self.commitlog.min_offset)
        return end

    def _take_queue_offsets(self) -> None:
        self._queue_offsets.rebuild(self.queues.max_offsets())
        found_ms = max(self.found_timestamp_ms, self.dispatcher.last_timestamp_ms)
        for piece in self.dispatcher.undispatched():
            self._queue_offsets.take(piece.entries)
            found_ms = max(found_ms, piece.store_timestamp_ms)
        self.found_timestamp_ms = found_ms
        self.last_timestamp_ms = max(self.last_timestamp_ms, found_ms)

    def begin_queues(self) -> None:
        """Know where queues begin of which the log has nothing that was dispatched. For who becomes the master: what residents
        read of the log behind the dispatch offset goes on at the ends of the queues."""
        if self.commitlog.min_offset > 0:
            entries = (entry for piece in self.dispatcher.undispatched() for entry in piece.entries)
            self.queues.begin_later(entries, self.commitlog.min_offset)

    def restart_queue_offsets(self, deleted_at: Mapping[str, int]) -> None:
        """These topics were deleted at positions that dispatch has not reached: their queues start again with what the log holds
        behind those. It is read once for all of them."""
        for topic in deleted_at:
            self.queue_offsets.forget(topic)
        for piece in self.dispatcher.undispatched():
            ours = [entry for entry in piece.entries if entry[0] in deleted_at and entry[3] >= deleted_at[entry[0]]]
            self.queue_offsets.take(ours)

    # -- dispatch ----------------------------------------------------------------------------------------------------------

    @property
    def confirm_offset(self) -> int:
        """The highest confirm offset that dispatch was told, within the log."""
        return self.dispatcher.confirm_offset

    def dispatch(self, confirm_offset: int) -> Sequence[Arrival]:
        """Make visible what lies before the confirm offset; see `Dispatcher.dispatch`."""
        return self.dispatcher.dispatch(confirm_offset)

    # -- durability --------------------------------------------------------------------------------------------------------

    def sync(self) -> SyncMark:
        """Make the log durable; blocks, for the flusher's thread. The loop's thread calls `mark_flushed` with the result."""
        return self.commitlog.sync()

    def mark_flushed(self, mark: SyncMark) -> int:
        """Take note of a finished sync; returns the flushed offset."""
        return self.commitlog.mark_flushed(mark)

    def note_flushed(self, mark: SyncMark) -> None:
        """Leave word of a finished sync in the checkpoint, for a start after the death of this process; any thread."""
        self.durable.note_flushed(mark)

    def prepare_next_segment(self) -> None:
        """Create the log's next file ahead of need; for the flusher's thread."""
        self.commitlog.prepare_next()

    def fail(self, error: StorageError) -> None:
        """The disk failed: refuse everything from now on, and have the daemon ended, so that another replica takes over."""
        self.settle()
        log.critical("the store stops: %s", error)
        first = self._failure is None
        self._failure = error
        self._update_refusal()
        if first:
            for listener in self.failure_listeners:
                listener(error)

    @property
    def checkpoint_is_due(self) -> bool:
        """Whether so much waits in memory that the next checkpoint should not wait for its time."""
        return self.queues.buffered_units >= _MAX_BUFFERED_UNITS

    def begin_checkpoint(self, *, closing: bool = False) -> StoreCheckpoint:
        """Take a consistent view of what is to be written; then `run` it in a helper thread and `finish_checkpoint`.

        `closing`: the store is closed next, so nothing is left for a later one.
        """
        checkpoint = self.begin_checkpoint_in_slices(closing=closing)
        while self.queues.take_slice(checkpoint.write):
            pass
        return checkpoint

    def begin_checkpoint_in_slices(self, *, closing: bool = False) -> StoreCheckpoint:
        """The same; it may be run when the queues' `take_slice` says that it is whole."""
        positions = self.durable.next_positions(
            dispatch_offset=self.dispatch_offset,
            confirm_offset=self.confirm_offset,
            dispatched_timestamp_ms=self.dispatcher.last_timestamp_ms,
            index_timestamp_ms=self.index.durable_timestamp_ms if self.index is not None else 0,
        )
        writes = [(each, write) for each in self.followers if (write := each.begin_write(closing=closing)) is not None]
        queues = self.queues.begin_write_in_slices()
        return StoreCheckpoint(self.durable, queues, writes, positions, self.commitlog.generation)

    def finish_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        self.queues.finish_write(checkpoint.write)
        for follower, write in checkpoint.follower_writes:
            follower.finish_write(write)

    def abandon_checkpoint(self, checkpoint: StoreCheckpoint) -> None:
        """Its `run` failed; everything is written again by the next one."""
        self.queues.abandon_write(checkpoint.write)
        for follower, write in checkpoint.follower_writes:
            follower.abandon_write(write)

    def checkpoint(self, *, closing: bool = False) -> None:
        """Sync the log and make a checkpoint in one go; blocks."""
        mark = self.sync()
        self.mark_flushed(mark)
        self.note_flushed(mark)
        checkpoint = self.begin_checkpoint(closing=closing)
        checkpoint.run()
        self.finish_checkpoint(checkpoint)

    # -- cutting and deleting ----------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Cut the log at a record boundary, and everything derived from it; durable when it returns.

        Raises ProtocolError when no record starts there.
        """
        self.settle()
        if offset == self.commitlog.end_offset:
            return
        self.commitlog.check_boundary(offset)
        self.durable.truncate(offset)
        self.queues.truncate(offset)
        self.dispatcher.truncate(offset)
        for follower in self.followers:
            follower.truncate(offset)
        if self._appendable:
            self._take_queue_offsets()
        for listener in self.truncate_listeners:
            listener(offset)

    def reset(self, offset: int = 0) -> None:
        """Throw everything away: the log has nothing in common with its master's and is copied from `offset` on."""
        assert not self._appendable, "a master does not throw its log away"
        self._resets += 1
        self.durable.reset(offset)
        self.queues.clear()
        self._queue_offsets = QueueOffsets()
        self._most_run_bytes = self.commitlog.segment_size_bytes - FILLER_BYTES
        self.dispatcher.restart(offset)
        for follower in self.followers:
            follower.restart(offset)
        for listener in self.truncate_listeners:
            listener(offset)

    def empty_queues(self, ends: Mapping[QueueKey, int]) -> None:
        """These queues hold no message any more, and go on at their ends; their files go with the next checkpoint."""
        self.queues.empty(ends, self.commitlog.min_offset)
        if self._appendable:
            self.queue_offsets.advance({key: max(end, self.queue_offsets.get(key)) for key, end in ends.items()})

    def expired_queues(self) -> dict[QueueKey, int]:
        """The ends of queues that had messages, but none that is still in the log. On the master."""
        offsets = self.queue_offsets  # before the queues' ends
        dispatched = self.queues.expired(self.commitlog.min_offset)
        return {key: end for key, end in dispatched.items() if offsets.next(*key) == end}

    def topics_with_queues(self) -> set[str]:
        """The topics that have a queue here."""
        return {topic for topic, _ in self.queues.table}

    # -- retention ---------------------------------------------------------------------------------------------------------

    def file_ages(self) -> list[FileAge]:
        """The log's files, oldest first."""
        return self.begin_times.ages()

    def held_offset(self) -> int:
        """The smallest offset of the log that somebody still needs, or will need; the latter stands back for new messages."""
        holders = self.position_holders if self.is_full else [*self.position_holders, *self.expected_holders]
        held = [holder() for holder in holders]
        own = min(self.dispatch_offset, self.commitlog.flushed_offset)
        return min([own, *(offset for offset in held if offset is not None)])

    def wall_ms(self) -> int:
        """The time by this machine's clock."""
        return self._now_ms()

    def apply_retention(
        self, decision: RetentionDecision, reason: str = _NO_ROOM, doubt: str = ""
    ) -> list[Callable[[], None]]:
        """Take the files out of the log; the results remove them from disk, in order, and may run in a helper thread. `reason` is
        what appends are refused with, if they are to be; `doubt` why files stay that would go by this machine's clock."""
        if bool(doubt) != bool(self.retention_doubt):
            log.warning("%s", doubt or "retention believes this machine's clock again, or no file is old by it")
        self.retention_doubt = doubt
        removals = [self.commitlog.forget_oldest() for _ in range(decision.remove)]
        if removals:
            log.info("%d commitlog files expired; the log begins at %d", len(removals), self.commitlog.min_offset)
            begin = self.commitlog.min_offset
            paths = self.queues.forget_expired(begin)
            for follower in self.followers:
                paths += follower.forget_expired(begin)
            removals += self.removals_of(paths)
        takes_own, takes_moves = not decision.refuse_own, not decision.refuse_moves
        self.set_full(decision.refuse, reason, takes_own=takes_own, takes_moves=takes_moves)
        return removals

    def removals_of(self, paths: Sequence[str]) -> list[Callable[[], None]]:
        """What removes forgotten files of queues and indexes, in a helper thread. When the log is thrown away first they are
        gone with it, and a new copy may have made others of their names."""

        def remove(path: str, resets: int) -> None:
            if resets == self._resets:
                self._disk.remove(path)

        return [partial(remove, path, self._resets) for path in paths]

    # -- refusing ----------------------------------------------------------------------------------------------------------

    def _update_refusal(self) -> None:
        if self._failure is not None:
            self.refusal = RequestError(codes.SERVICE_NOT_AVAILABLE, f"this broker's disk failed: {self._failure}")
        elif not self._appendable:
            self.refusal = NotMaster()
        elif self.is_full:
            self.refusal = RequestError(codes.SERVICE_NOT_AVAILABLE, self._full_reason)
        else:
            self.refusal = None
        waits_for_room = self._failure is None and self._appendable and self.is_full
        takes = self._takes_own or (self._takes_moves and self._is_making_room)
        self.own_refusal = None if waits_for_room and takes else self.refusal
