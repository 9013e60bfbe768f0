"""The index of keys: derived from the log, kept in files of RocketMQ's format, with its own checkpoint and truncation.

Invariants: every key of a message before `offset` is in a file exactly once, in the order of the log, unless the log has lost the
message since; files but the last are full; what the page vouches for is on disk, and whatever a crash leaves beyond
it is put right or taken from the log again. Files that contradict the page are removed, all of them, and made again.

The page is the index's own checkpoint, replaced as a whole:

    0 offset of the log up to which the index is complete  8 name of the last index file as a number (0 without one)
    16 that file's header (40)  56 crc32 of the bytes before it

A `follower` of the log: one thread calls everything but `IndexWrite.run`.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.store.derived.followers import FollowerWrite
from brokerd.store.index.index_file import FileWrite, IndexFile
from brokerd.store.index.layout import (
    DIRECTORY,
    HEADER,
    Header,
    IndexShape,
    decode_header,
    file_name,
    parse_name,
    path_of,
)
from brokerd.store.index.native_items import NativeItems
from brokerd.store.index.postings import Postings, WalkMemory, derive_postings
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import not_as_appended
from remoting.checksum import crc32
from remoting.disk import Disk
from remoting.errors import CorruptedFile
from remoting.record.walk import Stop

log = logging.getLogger(__name__)

PATH: Final = "index.checkpoint"
_PLACE: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")

# Items in memory from which on a checkpoint writes them, and from which on no more are taken until it has: 40 MB.
_WORTH_WRITING_ITEMS: Final = 1 << 16
_MOST_UNSAVED_ITEMS: Final = 1 << 21
# Few items are written when this many checkpoints went by: a page of slots is written for a single key.
_PATIENCE: Final = 12


class Page(NamedTuple):
    """`last_name` is "" when there is no file; then the header says nothing."""

    offset: int
    last_name: str = ""
    header: Header = Header()


def encode_page(page: Page) -> bytes:
    content = _PLACE.pack(page.offset, int(page.last_name or 0)) + HEADER.pack(*page.header)
    return content + _CRC.pack(crc32(content))


def read_page(disk: Disk) -> Page | None:
    """The page, or None when there is none or it is damaged."""
    content = disk.read_bytes(PATH)
    size = _PLACE.size + HEADER.size
    if (
        content is None
        or len(content) != size + _CRC.size
        or _CRC.unpack_from(content, size)[0] != crc32(content[:size])
    ):
        return None
    offset, name = _PLACE.unpack_from(content)
    return Page(offset, f"{name:017d}" if name else "", Header(*HEADER.unpack_from(content, _PLACE.size)))


def write_page(disk: Disk, page: Page) -> None:
    """Durable on return."""
    disk.replace_bytes(PATH, encode_page(page))


class IndexWrite:
    """The state of the index on its way to disk. `run` blocks; it does nothing when the log was cut meanwhile."""

    def __init__(self, index: KeyIndex, writes: Sequence[FileWrite], page: Page, generation: int) -> None:
        self._index = index
        self._generation = generation
        self._page = page
        self.writes = writes
        self.was_run = False

    def run(self) -> None:
        self.was_run = self._index.run_write(self.writes, self._page, self._generation)


class KeyIndex:
    """All files of the index, and the part of it that is not in files yet. `files` are the open files, oldest first."""

    def __init__(self, disk: Disk, commitlog: CommitLog, shape: IndexShape, library: Library | None = None) -> None:
        self._disk = disk
        self._commitlog = commitlog
        self._shape = shape
        self._memory = WalkMemory(library)
        self._in_c = None if library is None else NativeItems(library)
        self._wanted_bytes = 0
        self._lock = threading.Lock()  # files and page change on disk under it
        self._generation = 0
        self._durable = Page(0)
        self._skipped_writes = 0
        self.files: list[IndexFile] = []
        self.offset = commitlog.min_offset

    @property
    def last_update(self) -> tuple[int, int]:
        """(store timestamp, physical offset) of the newest message in the index, zeros without one."""
        header = self.files[-1].header if self.files else Header()
        return header.end_timestamp_ms, header.end_offset

    @property
    def durable_timestamp_ms(self) -> int:
        """The store timestamp of the newest message that is durably in the index."""
        return self._durable.header.end_timestamp_ms if self._durable.last_name else 0

    # -- following the log -------------------------------------------------------------------------------------------------

    def take(self, limit_offset: int, most_bytes: int) -> int:
        start = self.offset = max(self.offset, self._commitlog.min_offset)
        if start >= limit_offset or sum(file.unsaved_items for file in self.files[-2:]) > _MOST_UNSAVED_ITEMS:
            return 0
        length = min(max(most_bytes, self._wanted_bytes), limit_offset - start)
        file_size = self._commitlog.segment_size_bytes
        if moved := self._take_in_c(start, length, file_size):
            self._wanted_bytes = 0
            self.offset = start + moved
            return moved
        found = derive_postings(self._commitlog.read(start, length), start, file_size, self._memory)
        if found.stop is Stop.DAMAGED:
            raise not_as_appended(found.end_offset)
        self._wanted_bytes = found.needs if found.end_offset == start else 0
        self._put(found)
        self.offset = found.end_offset
        return found.end_offset - start

    def _take_in_c(self, start: int, length: int, file_size: int) -> int:
        """Put what the library takes into the last file: how much of the log that is. The first item of a file is its twin's."""
        file = self.files[-1] if self.files else None
        if self._in_c is None or file is None or file.is_full or not file.has_items:
            return 0
        address, there = self._commitlog.mapped(start, length)
        if address:
            return file.put_in_c(self._in_c, address, there, start, file_size)
        data = self._commitlog.read(start, length)
        return file.put_in_c(self._in_c, data, len(data), start, file_size)

    def _put(self, found: Postings) -> None:
        done = 0
        while done < len(found.hashes):
            if not self.files or self.files[-1].is_full:
                self._begin_file(found.timestamps[done])
            done = self.files[-1].put(found, done)

    def _begin_file(self, timestamp_ms: int) -> None:
        header, last_name = Header(), ""
        if self.files:
            (end_timestamp_ms, end_offset), last_name = self.last_update, self.files[-1].name
            header = Header(end_timestamp_ms, end_timestamp_ms, end_offset, end_offset)
        name = file_name(timestamp_ms, last_name)
        self.files.append(IndexFile(self._disk, name, self._shape, header, on_disk=False))

    # -- looking for damage ------------------------------------------------------------------------------------------------

    def first_wrong(self, found: Postings) -> int | None:
        """None when all that was found in a piece of the log is in the index as it was put there; else the offset of the log from
        which `truncate` lets all of a damaged file be made again, and what it lacks. A record that was damaged when the index was
        made is in front of the file that begins behind it."""
        done = 0
        at, number = self._place_of(found.offsets[0]) if found.offsets else (0, 1)
        while done < len(found.hashes):
            if at == len(self.files):
                begin = self.files[-1].header.begin_offset if self.files else self._commitlog.min_offset
                return min(begin, found.offsets[done])
            file = self.files[at]
            items = file.items(number, len(found.hashes) - done)
            end = done + len(items)
            columns = found.hashes[done:end], found.offsets[done:end], found.timestamps[done:end]
            if (number == 1 and not file.header_is_right()) or not file.are_right(number, items, *columns):
                return min(file.header.begin_offset, found.offsets[done])
            done = end
            at, number = at + 1, 1
        return None

    def _place_of(self, offset: int) -> tuple[int, int]:
        """The file, and the number in it, of the first item of the first message at or behind the offset."""
        at = 0
        while at < len(self.files) and self.files[at].header.end_offset < offset:
            at += 1
        return at, self.files[at].first_at_or_behind(offset) if at < len(self.files) else 1

    # -- finding them at start ---------------------------------------------------------------------------------------------

    def load(self, *, known: bool, clean: bool) -> None:
        """See `Follower.load`. Without our page, files of an original broker that ended cleanly are taken over as they are."""
        page = read_page(self._disk) if known else None
        try:
            if page is not None:
                self._recover(page, clean=clean)
            elif clean:
                self._adopt()
            else:
                raise CorruptedFile("nothing is known about it")
        except CorruptedFile as problem:
            if self._disk.names(DIRECTORY):
                log.warning("the index is made again from the log: %s", problem)
            self.restart(self._commitlog.min_offset)
        if self.offset > self._commitlog.end_offset:
            self.truncate(self._commitlog.end_offset)

    def _recover(self, page: Page, *, clean: bool) -> None:
        names = self._disk.names(DIRECTORY)
        vouched = [name for name in names if name <= page.last_name]
        if page.last_name and vouched[-1:] != [page.last_name]:
            raise CorruptedFile(f"{path_of(page.last_name)} is missing")
        self._open_files(vouched, page.header)
        for name in names[len(vouched) :]:  # begun after the page was written
            self._disk.remove(path_of(name))
        if self.files:
            last = self.files[-1]
            if not clean or self._read_header(last.name) != page.header:
                last.repair()
        self.offset, self._durable = page.offset, page

    def _adopt(self) -> None:
        """Take over files without a page: complete before the last message in them, and of that one no one knows."""
        names = self._disk.names(DIRECTORY)
        if names:
            self._open_files(names, self._read_header(names[-1]))
        if not self.files or self.files[-1].header.next_item == 1:
            raise CorruptedFile("it holds nothing")
        end = self.files[-1].header.end_offset
        if end >= self._commitlog.min_offset and self._commitlog.record_at(end) is None:
            raise CorruptedFile(f"it ends with a message at {end}, where the log has none")
        self.offset = end + 1
        self._durable = Page(end + 1, self.files[-1].name, self.files[-1].header)
        self.truncate(end)

    def _open_files(self, names: Sequence[str], last_header: Header) -> None:
        for name in names:
            header = last_header if name == names[-1] else self._read_header(name)
            if parse_name(name) is None or not self._shape.admits(header):
                raise CorruptedFile(f"{path_of(name)} is no index file of {self._shape.items} items")
            file = IndexFile(self._disk, name, self._shape, header, on_disk=True)
            if name != names[-1] and not file.is_full:
                raise CorruptedFile(f"{path_of(name)} is not full, but another one follows")
            self.files.append(file)

    def _read_header(self, name: str) -> Header:
        with closing(self._disk.open(path_of(name))) as segment:
            if segment.size_bytes != self._shape.size_bytes:
                raise CorruptedFile(f"{path_of(name)} has {segment.size_bytes} bytes, not {self._shape.size_bytes}")
            return decode_header(segment.read(0, HEADER.size))

    # -- writing -----------------------------------------------------------------------------------------------------------

    def begin_write(self, *, closing: bool) -> IndexWrite | None:
        unsaved = sum(file.unsaved_items for file in self.files)
        if self.offset == self._durable.offset and not unsaved:
            return None
        self._skipped_writes += 1
        if not closing and unsaved < _WORTH_WRITING_ITEMS and self._skipped_writes < _PATIENCE:
            return None
        self._skipped_writes = 0
        writes = [write for file in self.files if (write := file.begin_write()) is not None]
        last = self.files[-1] if self.files else None
        page = Page(self.offset, last.name, last.header) if last is not None else Page(self.offset)
        return IndexWrite(self, writes, page, self._generation)

    def run_write(self, writes: Sequence[FileWrite], page: Page, generation: int) -> bool:
        """What `IndexWrite.run` does; whether it did."""
        with self._lock:
            if generation != self._generation:
                return False
            for write in writes:
                write.run(self._disk)
            write_page(self._disk, page)
            self._durable = page
            return True

    def finish_write(self, write: FollowerWrite) -> None:
        assert isinstance(write, IndexWrite)
        if not write.was_run:
            self.abandon_write(write)
            return
        for each in write.writes:
            each.file.finish_write(each)

    def abandon_write(self, write: FollowerWrite) -> None:
        assert isinstance(write, IndexWrite)
        for each in write.writes:
            each.file.abandon_write()

    # -- cutting and deleting ----------------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        if offset >= self.offset:
            return
        with self._lock:
            self._generation += 1
            gone = self._forget_files_behind(offset)
            last = self.files[-1] if self.files else None
            if last is not None and last.header.end_offset >= offset:
                number = last.first_at_or_behind(offset)
                end = last.item(number - 1)
                end_timestamp_ms = self._commitlog.store_timestamp_at(end.physical_offset)
                if end_timestamp_ms < 0:
                    end_timestamp_ms = last.header.begin_timestamp_ms + end.time_diff_s * 1000
                last.forget_from(number, end.physical_offset, end_timestamp_ms)
            self.offset = offset
            if self._durable.offset > offset:
                # First on the page: what it vouches for must never be more than what is there.
                self._durable = Page(offset, last.name, last.header) if last is not None else Page(offset)
                write_page(self._disk, self._durable)
            if last is not None:
                last.write_cut()
            for file in gone:
                file.close()
                self._disk.remove(path_of(file.name))

    def _forget_files_behind(self, offset: int) -> list[IndexFile]:
        """Take away the files that hold no message before the offset, newest first."""
        gone = []
        while self.files and self.files[-1].header.begin_offset >= offset:
            gone.append(self.files.pop())
        return gone

    def restart(self, offset: int) -> None:
        with self._lock:
            self._generation += 1
            self.close()
            self.files = []
            self._disk.remove(PATH)
            self._disk.remove(DIRECTORY)
            self.offset = offset
            self._durable = Page(offset)
            write_page(self._disk, self._durable)

    def forget_expired(self, log_min_offset: int) -> Sequence[str]:
        paths = []
        while len(self.files) > 1 and self.files[0].header.end_offset < log_min_offset:
            if self.files[0].unsaved_items:  # a write that is on its way would bring it back
                break
            file = self.files.pop(0)
            file.close()
            paths.append(path_of(file.name))
        return paths

    def close(self) -> None:
        for file in self.files:
            file.close()
