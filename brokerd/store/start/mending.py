"""A damaged log between two starts: what is damaged, and the bytes that belong there put in their place.

A place that the log is whole at is nothing of the log's: the unit of a consume queue that named it is damaged, and the next start
is told to derive all queues again, for which nobody else is needed.

A file that is too short, or missing between two others, is damaged from where its whole records end; it becomes whole with the
last bytes that it lacked, and not before. Nothing is cut and nothing is derived: that is the next start's. What a log has behind
the damage that an earlier start has opened it at is left alone, since the epochs of that may be forgotten; it is copied from the
master.

`composition/mending` owns it, in a helper thread, and has the directory for itself.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from brokerd.store.log.bad_sectors import read_around, write_over
from brokerd.store.log.commitlog import DIRECTORY, CommitLog
from brokerd.store.log.derive import RecordShape, derive_range
from brokerd.store.log.layout import file_name, file_start, parse_file_name
from brokerd.store.queues import rotten
from brokerd.store.settings import StoreSettings
from brokerd.store.start.checkpoint_page import ABORT_PATH, decode_page
from brokerd.store.start.checkpoint_page import PATH as PAGE_PATH
from brokerd.store.start.log_recovery import Damage, find_damage, guess_ends
from brokerd.store.start.suspicion import SuspicionFile
from remoting.disk import Disk
from remoting.errors import DamagedRange
from remoting.record.codec import encode_filler
from remoting.record.layout import FILLER_BYTES

_MOST_MISSING: Final = 16  # files in a row: more is not damage but another log's file


class DamagedLog:
    """Blocks."""

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._settings = settings
        self._shape = RecordShape(settings.segment_size_bytes, settings.largest_record_bytes)

    def look(self, met: DamagedRange | None) -> tuple[RecordShape, Damage | None]:
        """The shape of the log's records, and what is damaged: at the place that a start has met, or, without one, in a file that
        is not whole, or where a start would end the log. None when a start would find nothing there. Raises StorageError."""
        page = self._disk.read_bytes(PAGE_PATH)
        known = decode_page(page) if page is not None else None
        is_suspect = SuspicionFile(self._disk).load(0) is not None
        if known is not None and (gap := self._first_gap()) is not None:
            return self._shape, gap if not is_suspect or gap.ends[0] <= known.flushed_offset else None
        with closing(CommitLog(self._disk, self._settings, is_ours=known is not None)) as commitlog:
            if met is not None:
                return commitlog.shape, self._look_at(commitlog, met.offset)
            clean = not self._disk.exists(ABORT_PATH)
            damage = find_damage(commitlog, known, self._settings, clean=clean)
            if damage is not None and is_suspect:
                proven = known.flushed_offset if known is not None else 0
                damage = Damage(damage.start, [end for end in damage.ends if end <= proven])
            return commitlog.shape, damage

    def _first_gap(self) -> Damage | None:
        """What the first file lacks that has another one behind it, and not all of its bytes."""
        size = self._settings.segment_size_bytes
        names = self._disk.names(DIRECTORY)
        starts = [start for name in names if (start := parse_file_name(name)) is not None]
        if not starts or len(starts) != len(names) or any(start % size for start in starts):
            return None  # not a log of this file size
        last = max(starts)
        for start in range(min(starts), last, size):
            if start not in starts:
                return None if last - start > _MOST_MISSING * size else Damage(start, [start + size])
            if (end := self._end_of_short(start)) is not None:
                return Damage(end, [start + size])
        return None

    def _end_of_short(self, start: int) -> int | None:
        """Where the whole records of a file end that is too short; None of one that is not. One that lacks no more than what
        follows a filler is given that."""
        size, shape = self._settings.segment_size_bytes, self._shape.checked()
        with closing(self._disk.open(f"{DIRECTORY}/{file_name(start)}")) as file:
            present = file.size_bytes
            if present >= size:
                return None

            def read(offset: int, length: int) -> bytes:
                return read_around(file, offset - start, length)[0]

            end = start
            for derived in derive_range(read, start, start + present, shape, self._settings.dispatch_chunk_bytes):
                end = derived.end_offset
            if read(end, FILLER_BYTES) != encode_filler(start + size - end):
                return end
            file.truncate(size)
            file.sync()
        return None

    def blame_queue(self, met: DamagedRange) -> bool:
        """Whether the log is whole where a start met damage, so that it was a unit which named that place; the next start then
        derives all queues again. Raises StorageError."""
        with closing(CommitLog(self._disk, self._settings, is_ours=True)) as commitlog:
            if not self._is_whole_at(commitlog, met):
                return False
        rotten.mark(
            self._disk, f"a unit named {met.size} bytes at {met.offset} of the commitlog, which are no record\n"
        )
        return True

    def _is_whole_at(self, commitlog: CommitLog, met: DamagedRange) -> bool:
        """Whether the place is outside of the log, inside a record that is intact, or the start of one with another size."""
        if not commitlog.min_offset <= met.offset < commitlog.end_offset:
            return True
        if (record := commitlog.record_at(met.offset)) is not None:
            return len(record) != met.size
        end = first = file_start(met.offset, self._settings.segment_size_bytes)
        for derived in derive_range(
            commitlog.read, first, commitlog.end_offset, commitlog.shape.checked(), self._settings.dispatch_chunk_bytes
        ):
            end = derived.end_offset
            if end > met.offset:
                break
        return end > met.offset

    def _look_at(self, commitlog: CommitLog, offset: int) -> Damage | None:
        if commitlog.record_at(offset) is not None:
            return None
        return Damage(offset, guess_ends(commitlog, offset))

    def write(self, offset: int, content: bytes) -> None:
        """Put what belongs at the offset there, inside one file; durable when it returns. Raises StorageError."""
        start = file_start(offset, self._settings.segment_size_bytes)
        with closing(self._disk.open(f"{DIRECTORY}/{file_name(start)}", create=True)) as file:
            write_over(file, offset - start, content, file.size_bytes)
            file.sync()
