"""The commitlog: one endless log in files of one size, read and appended by physical offset.

Owns the files under `commitlog/`, the end of the log and how far it is durable. Invariants:

- `min_offset <= flushed_offset <= end_offset`, and `complete_offset`, the end of the last whole record, is at most `end_offset`
  (they differ only on a replica that received a part of a record);
- bytes beyond `end_offset` are zero on disk, so that no crash can bring back a record that was cut or half appended; what a full
  disk does not let be removed at once is removed, durably, before anything is written behind the end; but while it
  `keeps_rest`, which a suspect log does until it is appended to or cut, since what is behind its damage may be the last copy;
- a failed sync, or a write that failed for another reason than a full disk, is final: every later append is refused. Behind a
  failed sync nothing more becomes durable: the system tells of what it lost once, to whoever syncs first.

One thread (the event loop) calls everything, except `sync`, `prepare_next`, `rewrite` and what `forget_oldest` returned, which
helper threads may run meanwhile; `file_turns` has the rule by which they do. A cut of the log starts a new generation; a sync
that began in an older one says nothing about the bytes there now.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from brokerd.native.library import Library
from brokerd.store.log.bad_sectors import PAGE_BYTES, is_unreadable, read_around, write_over
from brokerd.store.log.blocks_ahead import AHEAD_BYTES, LEAST_SYNCS, BlocksAhead
from brokerd.store.log.boundaries import BoundaryTracker, Fed
from brokerd.store.log.checked_reads import RecordReads
from brokerd.store.log.derive import RecordShape, intact_record_at
from brokerd.store.log.file_turns import FileTurns
from brokerd.store.log.layout import (
    check_file_starts,
    file_name,
    file_start,
    parse_file_name,
)
from brokerd.store.log.native_derive import NativeDeriver
from brokerd.store.log.record_checks import damage_finder
from brokerd.store.log.segment import Segment
from brokerd.store.settings import StoreSettings
from remoting.disk import Bytes, Disk
from remoting.errors import CorruptedFile, DamagedRange, DamagedRecord, ProtocolError, SettingsError, StorageError
from remoting.record.checksum import is_intact
from remoting.record.codec import encode_filler
from remoting.record.fields import STORE_TIMESTAMP_END, store_timestamp_of
from remoting.record.layout import BORDER, FILLER_BYTES

log = logging.getLogger(__name__)

DIRECTORY = "commitlog"
# Files at the log's end that are read through a mapping, if this process has written them: their pages are in memory anyway.
# Others are read with pread, in C too: a bad sector is damage of a record then, and not a signal that ends the process after each
# start.
_MAPPED_FILES = 2
_REWRITE_BYTES = 1 << 20


class SyncMark(NamedTuple):
    """What a finished sync proved: all bytes before `offset` are durable, as of `generation`. `complete_offset` is the last
    record boundary among them."""

    offset: int
    complete_offset: int
    generation: int


class CommitLog:
    """The files of one log as one range of offsets. These are plain attributes: read them as often as needed."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, *, is_ours: bool = True, library: Library | None = None
    ) -> None:
        """Open the files that are there; in a log that is not ours, none was left unfinished. The end is provisional (that of the
        last file) until `recovered` said where it is. With the library, records are walked and checked in C.

        Raises CorruptedFile or SettingsError when the files are not a log of this file size.
        """
        self._disk = disk
        self._size = settings.segment_size_bytes
        self._max_record_bytes = settings.largest_record_bytes
        self.first_damaged_of = damage_finder(library)
        deriver = None if library is None else NativeDeriver(library)
        self.shape = RecordShape(self._size, self._max_record_bytes, deriver=deriver)
        self._segments: dict[int, Segment] = {}
        self.turns = FileTurns()
        self.reads = RecordReads(self._segments, self._size, self.read, library, self.turns.looks)
        self._current: Segment | None = None
        self._spare: Segment | None = None
        self._leaving: list[Segment] = []  # taken out of the log, and still on disk
        self._synced_offset = 0
        self._unclean_end = 0  # up to where a failed write may have left bytes behind the end; 0 = it did not
        self.generation = 0
        self.keeps_rest = False
        self._rest: list[Segment] = []  # files that it keeps behind the one with its end
        self.refusal: StorageError | None = None
        self._failed_sync: StorageError | None = None  # after it none counts: the system tells of pages it dropped once
        self._ahead = BlocksAhead(0)
        self.set_back: Callable[[int], None] | None = None  # told when the log is cut, and where it ends then
        self.unreadable_offset = -1  # the highest offset from which on a read met what the disk refuses to give
        self._open_existing(self._find_files(), is_ours=is_ours)
        last = next(reversed(self._segments.values()), None)
        self.min_offset = self.flushed_offset = next(iter(self._segments), 0)
        self.end_offset = last.end if last is not None else 0
        self._tracker = BoundaryTracker(self.end_offset, self._size, self._max_record_bytes)

    # -- positions ---------------------------------------------------------------------------------------------------------

    @property
    def complete_offset(self) -> int:
        """The end of the last whole record."""
        return self._tracker.complete_offset

    @property
    def segment_size_bytes(self) -> int:
        return self._size

    def segment_remaining(self) -> int:
        """Bytes left in the current file."""
        return self._size - self.end_offset % self._size if self._current is not None else self._size

    def segment_starts(self) -> list[int]:
        """The first offset of each file, oldest first."""
        return list(self._segments)

    # -- appending ---------------------------------------------------------------------------------------------------------

    def append(self, records: bytes | Sequence[Bytes], total: int) -> int:
        """Append encoded whole records of `total` bytes, which fit into the current file; returns the new end.

        Raises StorageError when the disk refused; then nothing of them is in the log.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        position = self.end_offset
        segment = self._current or self._begin_segment(position)
        assert position + total + FILLER_BYTES <= segment.end, "the caller rolls before a record that does not fit"
        buffers = (records,) if isinstance(records, (bytes, bytearray, memoryview)) else records
        self._write(segment, position, buffers, total)
        end = position + total
        self.end_offset = end
        self._tracker.move(end)
        return end

    @property
    def file_to_lend(self) -> Segment | None:
        """The file to whose descriptor somebody else may append for a while; None when that is not to be."""
        segment = self._current
        is_as_usual = self.refusal is None and not self._unclean_end
        return segment if segment is not None and segment.file.descriptor >= 0 and is_as_usual else None

    def write_ahead_of(self, segment: Segment, total: int) -> None:
        """Somebody else appends about so many bytes to it next: write blocks before that, as `append` does. Raises
        StorageError."""
        position = self.end_offset
        if zeros := self._ahead.wanted(position, min(position + total, segment.end), segment.end):
            self._write_zeros(segment, position, zeros)

    def note_appended(self, total: int) -> int:
        """Somebody else appended whole records of so many bytes to the file's end, as `append` does; returns the new end."""
        self.end_offset += total
        self._tracker.move(self.end_offset)
        return self.end_offset

    def note_failed(self, segment: Segment, tried_end: int, error: StorageError) -> None:
        """His last write, behind the end, which was to go on to `tried_end`, failed for this reason."""
        self._clean_failed_write(segment, self.end_offset, tried_end - self.end_offset, error)

    def roll(self) -> int:
        """Declare the rest of the current file blank and go to the next one; returns the new end."""
        segment = self._current
        if segment is None:
            return self.end_offset
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        filler = encode_filler(segment.end - self.end_offset)
        self._write(segment, self.end_offset, (filler,), len(filler))
        self.end_offset = segment.end
        self._tracker.move(segment.end)
        self._current = None  # should the next file fail to open, the next append tries again
        self._begin_segment(segment.end)
        return self.end_offset

    def append_replicated(self, physical_offset: int, data: Bytes) -> int:
        """Append bytes of a master's log, cut anywhere, fillers included; returns the new end.

        They must start at the end of this log, or, when it is empty, at the start of any file. Raises ProtocolError for bytes
        that cannot be the log at that place, DamagedRecord for a record that is not what was stored (what of it came before is in
        the log, behind `complete_offset`), StorageError when the disk refused; the end then says what was taken.
        """
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if not self._segments and self.end_offset == 0 and physical_offset % self._size == 0:
            self._start_empty_at(physical_offset)
        if physical_offset != self.end_offset:
            raise ProtocolError(
                f"log bytes for offset {physical_offset} arrived, but this log ends at {self.end_offset}"
            )
        view = memoryview(data)
        while view:
            segment = self._current or self._begin_segment(self.end_offset)
            part = view[: segment.end - self.end_offset]
            tracker = self._tracker.copy()
            tracker.feed(self.end_offset, part, partial(self._check_received, part))
            self._write(segment, self.end_offset, (part,), len(part))
            self.end_offset += len(part)
            self._tracker = tracker  # a sync may run: a boundary is published behind the end that contains it
            view = view[len(part) :]
            if self.end_offset == segment.end:
                self._current = None
        return self.end_offset

    def _check_received(self, part: memoryview, fed: Fed) -> None:
        """Raise DamagedRecord unless the records that become whole by these bytes at the log's end are what was stored."""
        if fed.first:
            begun = self.read(fed.first.start, self.end_offset - fed.first.start)
            if not is_intact(b"".join((begun, part[: fed.first.stop - self.end_offset]))):
                raise DamagedRecord(DamagedRange(fed.first.start, len(fed.first)))
        damaged = self.first_damaged_of(part, fed.others)
        if damaged is not None:
            raise DamagedRecord(DamagedRange(self.end_offset + damaged, BORDER.unpack_from(part, damaged)[0]))

    def prepare_next(self) -> None:
        """Create the file after the current one, so that a roll finds it; a helper thread calls this."""
        with self.turns.names:
            current = self._current  # the loop forgets it when it is full, and then takes what follows it from here
            if current is not None and self._spare is None and not self.keeps_rest:
                self._spare = self._open(current.end, create=True)

    def write_ahead(self, ahead_bytes: int = AHEAD_BYTES, least_syncs: int = LEAST_SYNCS) -> None:
        """Somebody waits for each sync: from now on, write blocks of the file before records come to them (`blocks_ahead`)."""
        self._ahead = BlocksAhead(ahead_bytes, least_syncs)

    def _write(self, segment: Segment, position: int, buffers: Sequence[Bytes], total: int) -> None:
        if self._unclean_end:
            self._clean(segment)
        if zeros := self._ahead.wanted(position, position + total, segment.end):
            self._write_zeros(segment, position, zeros)
        try:
            segment.file.write(position - segment.start, buffers)
        except StorageError as error:
            self._clean_failed_write(segment, position, total, error)
            if self.refusal is not None and self.refusal is not error:
                raise self.refusal from error  # the disk is not only full
            raise

    def _write_zeros(self, segment: Segment, position: int, count: int) -> None:
        """Where zeros are, so nothing changes but that the file has blocks there. Records may find room that these do not."""
        try:
            segment.file.write(position - segment.start, (bytes(count),))
        except StorageError as error:
            if not error.is_out_of_space:
                self.refusal = error
                raise

    def _clean_failed_write(self, segment: Segment, position: int, total: int, error: StorageError) -> None:
        """A record that a failed write left behind the end could follow a later append, or be the log's last at a start."""
        if not error.is_out_of_space:
            self.refusal = error
            return
        self._unclean_end = position + total
        try:
            self._clean(segment)
        except StorageError as again:
            if not again.is_out_of_space:
                self.refusal = again  # otherwise the next write tries it first

    def _clean(self, segment: Segment) -> None:
        """Zero, durably, what failed writes may have left behind the end. Raises StorageError, and then appends nothing."""
        start = self.end_offset
        with self.turns.contents:
            try:
                segment.file.write(start - segment.start, (bytes(self._unclean_end - start),))
            except StorageError as error:
                if not error.is_out_of_space:
                    raise
                # Where nothing is overwritten in place zeros need room, too, and the old bytes stay; to cut them off needs none.
                with self.turns.looks.nobody():
                    segment.unmap()
                    segment.file.truncate(start - segment.start)
                    self._ahead.forget()
            if segment.file.size_bytes < self._size:
                segment.file.truncate(self._size)
                self._map_recent()
            self._sync_segment(segment)
        self._unclean_end = 0

    def _begin_segment(self, start: int) -> Segment:
        with self.turns.names:
            if self._spare is not None and self._spare.start != start:
                self._drop_spare()
            segment = self._spare or self._open(start, create=True)
            self._spare = None
            self._segments[start] = segment
            self._current = segment
        self._map_recent()
        return segment

    def _start_empty_at(self, offset: int) -> None:
        assert not self._segments
        if self.set_back is not None:
            self.set_back(offset)
        self.min_offset = self.end_offset = self.flushed_offset = self._synced_offset = offset
        self._tracker.move(offset)

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read(self, physical_offset: int, length: int) -> bytes:
        """Up to `length` bytes at the offset: less at the end of a file or of the log, none outside of the log."""
        if not self.min_offset <= physical_offset < self.end_offset:
            return b""
        segment = self._segments[physical_offset - physical_offset % self._size]
        stop = min(physical_offset + length, segment.end, self.end_offset)
        view = segment.view
        if view is not None:
            return view[physical_offset - segment.start : stop - segment.start]
        content = self._read_file(segment, physical_offset, stop - physical_offset)
        if len(content) != stop - physical_offset:
            raise CorruptedFile(f"{segment.file.path} ends before offset {stop}; restore the file")
        return content

    def mapped(self, physical_offset: int, length: int) -> tuple[int, int]:
        """Where in memory the bytes at the offset are, and how many of that length there are, as `read` has them; zeros where
        they are in no mapping. They stay there until the log is cut, goes on in another file, or loses one."""
        if not self.min_offset <= physical_offset < self.end_offset:
            return 0, 0
        segment = self._segments[physical_offset - physical_offset % self._size]
        address = segment.address()
        if not address:
            return 0, 0
        stop = min(physical_offset + length, segment.end, self.end_offset)
        return address + physical_offset - segment.start, stop - physical_offset

    def _read_file(self, segment: Segment, offset: int, length: int) -> bytes:
        """The bytes as the file has them; what the disk refuses to give is damage like any other, and reads as zeros."""
        try:
            return segment.file.read(offset - segment.start, length)
        except StorageError as error:
            if not is_unreadable(error):
                raise
            content, first_bad = read_around(segment.file, offset - segment.start, length)
            bad_offset = segment.start + first_bad
            if first_bad >= 0 and bad_offset > self.unreadable_offset:
                if bad_offset // PAGE_BYTES > self.unreadable_offset // PAGE_BYTES:
                    log.error("the disk refuses to give %s at %d, so that is damaged", segment.file.path, first_bad)
                self.unreadable_offset = bad_offset
            return content

    def record_at(self, offset: int, likely_bytes: int = 0) -> bytes | None:
        """The whole record that starts at the offset, or None when none does; read at once when it has the likely size."""
        return intact_record_at(self.read, offset, self.shape, likely_bytes)

    def written_ms(self, start: int) -> int | None:
        """When the file that starts there was last written, as the file system says; None when that is not known. Any thread."""
        return self._disk.modified_ms(_path(start))

    def store_timestamp_at(self, offset: int) -> int:
        """The store timestamp of the record at the offset, -1 when there is none."""
        head = self.read(offset, STORE_TIMESTAMP_END)
        return store_timestamp_of(head) if len(head) == STORE_TIMESTAMP_END else -1

    def is_record_boundary(self, offset: int) -> bool:
        """Whether the log can be cut at the offset: its begin, its end, the end of a file, or the start of a record or filler."""
        if offset in (self.min_offset, self.complete_offset, self.end_offset):
            return True
        if not self.min_offset < offset < self.complete_offset:
            return False
        if offset % self._size == 0 or self.record_at(offset) is not None:
            return True
        remaining = self._size - offset % self._size
        return remaining >= FILLER_BYTES and self.read(offset, FILLER_BYTES) == encode_filler(remaining)

    # -- durability --------------------------------------------------------------------------------------------------------

    def sync(self) -> SyncMark:
        """Make everything appended so far durable; blocks. The loop's thread then calls `mark_flushed` with the result.

        Raises StorageError, which is final: the log refuses every later append, and sync.
        """
        with self.turns.contents:
            if self._failed_sync is not None:
                raise self._failed_sync.with_traceback(None)
            complete_offset = self._tracker.complete_offset  # before the end, which the loop may be moving
            mark = SyncMark(self.end_offset, complete_offset, self.generation)
            first = max(file_start(min(self._synced_offset, mark.offset), self._size), self.min_offset)
            for start in range(first, mark.offset, self._size):  # not over all files: there may be thousands
                segment = self._segments.get(start)
                if segment is not None:
                    self._sync_segment(segment)
            self._synced_offset = mark.offset
        return mark

    def mark_flushed(self, mark: SyncMark) -> int:
        """Take note of a finished sync; returns the flushed offset. One that ended well beside one that failed does not count:
        the other one may have been told of the pages of both."""
        if self._failed_sync is None and mark.generation == self.generation and mark.offset > self.flushed_offset:
            assert mark.offset <= self.end_offset, "synced more than the log has"
            self.flushed_offset = mark.offset
            self._ahead.synced()
        return self.flushed_offset

    def _sync_segment(self, segment: Segment) -> None:
        """By who has `contents`: what others sync behind one that failed says nothing."""
        try:
            segment.file.sync()
        except StorageError as error:
            raise self._fail(str(error)) from error

    def _fail(self, reason: str) -> StorageError:
        """A sync failed, which a full disk is no excuse for: who waits for room would wait for what is lost."""
        self.refusal = self._failed_sync = StorageError(reason)
        return self._failed_sync

    @property
    def file_to_sync(self) -> Segment | None:
        """The file with the log's end, which who has `contents` may sync by its descriptor; None when that is not enough."""
        segment = self._current
        if segment is None or segment.file.descriptor < 0 or self._synced_offset < segment.start:
            return None
        return segment if self.refusal is None else None

    def synced(self, mark: SyncMark) -> None:
        """Who has `contents` synced so much by himself."""
        self._synced_offset = mark.offset

    def note_synced(self, offset: int) -> None:
        """Take note, on the loop, of what he synced, in this generation."""
        self.mark_flushed(SyncMark(offset, offset, self.generation))

    def sync_failed(self, segment: Segment, error: OSError) -> StorageError:
        """He could not; that is final. Returns what is to be raised."""
        return self._fail(f"cannot sync {segment.file.path}: {error.strerror}")

    # -- cutting -----------------------------------------------------------------------------------------------------------

    def recovered(self, end: int, *, keep_rest: bool = False) -> None:
        """Set where the log really ends, after the files were opened; what lies behind is zeroed, durably, or kept as it is."""
        if keep_rest:
            self._end_before_rest(end)
        else:
            self._cut(end)

    def give_up_rest(self) -> None:
        """What was kept behind the end is needed no more: zero it, durably."""
        if self.keeps_rest:
            self._cut(self.end_offset)

    def _end_before_rest(self, offset: int) -> None:
        with self.turns.contents, self.turns.names:
            self.generation += 1
            self.keeps_rest = True
            self._rest = [each for each in self._segments.values() if each.start > offset]
            for segment in self._rest:
                del self._segments[segment.start]
            self._current = self._segments.get(file_start(offset, self._size))
            self._end_at(offset)
        self._map_recent()

    def write_again(self, offset: int) -> None:
        """Write what the log holds from the offset on once more at its place, so that the next sync covers it."""
        offset = max(offset, self.min_offset)
        while offset < self.end_offset:
            part = self.read(offset, _REWRITE_BYTES)
            segment = self._segments[file_start(offset, self._size)]
            segment.file.write(offset - segment.start, (part,))
            offset += len(part)

    def rewrite(self, offset: int, data: Bytes, generation: int) -> bool:
        """Write intact bytes over damaged ones, inside one file and before the log's end; durable when it returns True.

        A helper thread may call this. Returns False, and writes nothing, when the log was cut since `generation` or no longer
        has the file. Raises StorageError; one of the sync is final, as in `sync`, unless all that was appended to that file is
        durable: then only the repair failed.
        """
        with self.turns.contents:
            segment = self._segments.get(file_start(offset, self._size))
            if segment is None or generation != self.generation:
                return False
            assert offset + len(data) <= min(segment.end, self.end_offset), "only what is in the log is written again"
            write_over(segment.file, offset - segment.start, data, min(segment.end, self.end_offset) - segment.start)
            if segment.end <= self.flushed_offset:
                segment.file.sync()
            else:
                self._sync_segment(segment)
        return True

    def truncate(self, offset: int) -> None:
        """Cut the log at a record boundary; durable when it returns. Raises ProtocolError when the offset is none."""
        if offset != self.end_offset:
            self.check_boundary(offset)
            self._cut(offset)

    def check_boundary(self, offset: int) -> None:
        """Raise ProtocolError unless the log can be cut at the offset."""
        if not self.is_record_boundary(offset):
            raise ProtocolError(
                f"the log cannot be cut at {offset}: no record starts there (it holds {self.min_offset} to {self.end_offset})"
            )

    def reset(self, offset: int) -> None:
        """Throw the whole log away; it is then empty and begins at `offset`, the start of a file."""
        if offset % self._size:
            raise ProtocolError(f"a log cannot begin at {offset}: its files have {self._size} bytes each")
        self._cut(self.min_offset)
        with self.turns.removals, self.turns.contents, self.turns.names:
            self.generation += 1  # the flusher may have synced, and prepared the next file, since the cut
            self._current = None
            self._drop_spare()
            for segment in self._leaving:  # before the others, so that a crash leaves no hole between files
                self._remove(segment)
            self._leaving.clear()
            for segment in list(self._segments.values()):
                del self._segments[segment.start]
                self._remove(segment)
            self._start_empty_at(offset)

    def _cut(self, offset: int) -> None:
        with self.turns.contents, self.turns.names:  # an older sync has ended, a newer one sees the new end
            self.generation += 1
            self._drop_spare()
            self._segments.update((each.start, each) for each in self._rest)
            self._rest = []
            for segment in reversed(list(self._segments.values())):
                if segment.start > offset:
                    del self._segments[segment.start]
                    self._remove(segment)
            current = self._segments.get(file_start(offset, self._size))
            if current is not None:
                self._zero_from(current, offset - current.start)
                self._sync_segment(current)
            self._unclean_end = 0
            self._current = current
            self.keeps_rest = False
            self._end_at(offset)
        self._map_recent()

    def _end_at(self, offset: int) -> None:
        if self.set_back is not None:
            self.set_back(offset)
        self._ahead.forget()
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self._synced_offset = min(self._synced_offset, offset)
        self._tracker.move(offset)

    def _zero_from(self, segment: Segment, position: int) -> None:
        with self.turns.looks.nobody():  # at a page while it is cut off
            segment.unmap()
            segment.file.truncate(position)
            segment.file.truncate(self._size)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            spare, self._spare = self._spare, None
            self._remove(spare)

    # -- files -------------------------------------------------------------------------------------------------------------

    def forget_oldest(self) -> Callable[[], None]:
        """Take the oldest file out of the log; the result removes it from disk and may run in a helper thread."""
        segment = next(iter(self._segments.values()))
        assert segment is not self._current
        assert segment.end <= self.flushed_offset
        del self._segments[segment.start]
        self._leaving.append(segment)
        self.min_offset = segment.end
        segment.unmap()
        return partial(self._remove_left, segment)

    def _remove_left(self, segment: Segment) -> None:
        with self.turns.removals:
            if segment not in self._leaving:
                return  # a reset removed it, and another file may have its name
            self._leaving.remove(segment)
            with self.turns.contents:
                segment.close()
            self._disk.remove(_path(segment.start))

    def close(self) -> None:
        """Close the files; what was not synced is lost at a power failure."""
        with self.turns.names:
            self._drop_spare()
        for segment in (*self._leaving, *self._segments.values(), *self._rest):
            segment.close()
        self._segments.clear()
        self._current = None

    def _find_files(self) -> list[int]:
        starts = []
        for name in self._disk.names(DIRECTORY):
            start = parse_file_name(name)
            if start is None:
                raise CorruptedFile(f"{DIRECTORY}/{name} is not a commitlog file; move it out of the directory")
            starts.append(start)
        check_file_starts(starts, self._size, DIRECTORY)
        return starts

    def _open(self, start: int, *, create: bool = False) -> Segment:
        file = self._disk.open(_path(start), create=create, size_bytes=self._size if create else 0)
        return Segment(start, self._size, file, is_new=create)

    def _open_existing(self, starts: list[int], *, is_ours: bool) -> None:
        for start in starts:
            segment = self._open(start)
            size = segment.file.size_bytes
            if size > self._size and len(starts) > 1 and is_ours:
                raise CorruptedFile(
                    f"{segment.file.path} has {size} bytes, and files of this log have {self._size}: cut off what is behind "
                    f"(`truncate -s {self._size}`), or restore the file"
                )
            if size > self._size or (not is_ours and 0 < size < self._size):
                raise SettingsError(
                    f"{segment.file.path} has {size} bytes: set store.segment_size_bytes={size}, the size this log was made with"
                )
            if size < self._size and start != starts[-1]:
                raise CorruptedFile(f"{segment.file.path} has {size} of its {self._size} bytes; restore the file")
            if size < self._size:  # its creation, or a cut, was interrupted
                segment.file.truncate(self._size)
            self._segments[start] = segment

    def _remove(self, segment: Segment) -> None:
        segment.close()
        self._disk.remove(_path(segment.start))

    def _map_recent(self) -> None:
        segments = list(self._segments.values())
        for segment in segments[-_MAPPED_FILES:]:
            if segment.is_new:
                try:
                    segment.map()
                except StorageError as error:  # it is tried again when the log goes on in another file
                    log.warning("the file is read without a mapping: %s", error)
        for segment in segments[-2 * _MAPPED_FILES : -_MAPPED_FILES]:
            segment.unmap()


def _path(start: int) -> str:
    return f"{DIRECTORY}/{file_name(start)}"
