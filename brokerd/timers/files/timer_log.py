"""The timer log: records that were appended, those in memory and those in files.

New records are in memory until a `LogWrite` brought them to files, so readers see all of them. Positions and numbers of records
count from the log's beginning, whatever files are left of it. The loop's thread calls everything but `LogWrite.run`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final, NamedTuple

from brokerd.store.log.layout import file_name, parse_file_name
from brokerd.timers.files.layout import (
    LOG_DIRECTORY,
    RECORD_BYTES,
    DamagedTimerFiles,
    Shape,
    TimerRecord,
    blank_of,
    decode_record,
)
from remoting.disk import Bytes, Disk, FileSegment
from remoting.errors import StorageError

_FEW_RECORDS: Final = 16  # are read at once when records stand apart
_MANY_RECORDS: Final = 1260  # and when they do not: 64 KiB
_OPEN_FILES: Final = 64  # 128 million timers


class LogWrite(NamedTuple):
    """Records to be written, from a number on."""

    first: int
    records: bytes

    def run(self, disk: Disk, shape: Shape) -> None:
        """Write and sync; blocks."""
        number, rest = self.first, memoryview(self.records)
        while len(rest):
            inside = number % shape.file_records
            part = rest[: (shape.file_records - inside) * RECORD_BYTES]
            count = len(part) // RECORD_BYTES
            buffers: list[Bytes] = [part]
            if inside + count == shape.file_records:
                buffers.append(blank_of(shape))
            path = path_of(shape, number // shape.file_records)
            with closing(disk.open(path, create=True, size_bytes=shape.file_bytes)) as segment:
                segment.write(inside * RECORD_BYTES, buffers)
                segment.sync()
            number, rest = number + count, rest[len(part) :]


class TimerLog:
    """The records `[first, end)`, by number; `first` begins a file. Those before `written` are in files."""

    def __init__(self, disk: Disk, shape: Shape) -> None:
        self._disk = disk
        self._shape = shape
        self._tail = bytearray()
        self._handles: dict[int, FileSegment] = {}
        self._block_first = 0
        self._block = b""
        self.first = self.written = 0

    @property
    def end(self) -> int:
        return self.written + len(self._tail) // RECORD_BYTES

    @property
    def end_position(self) -> int:
        """Where the next record will stand."""
        return self._shape.position_of(self.end)

    @property
    def unsaved_records(self) -> int:
        return self.end - self.written

    # -- records -----------------------------------------------------------------------------------------------------------

    def append(self, record: bytes) -> int:
        """Append it, or several that one file has room for. Returns its position."""
        position = self.end_position
        self._tail += record
        return position

    def record(self, number: int) -> TimerRecord:
        """Raises DamagedTimerFiles when what stands there is no record."""
        record = decode_record(self._read(number))
        if record is None:
            raise DamagedTimerFiles(f"the timer log has no record of number {number}")
        return record

    def record_at(self, position: int) -> TimerRecord | None:
        """The record at a position; None when that is before the first file. Raises DamagedTimerFiles when there is none."""
        number = self._shape.number_at(position)
        if number is None or number >= self.end:
            raise DamagedTimerFiles(f"the timer log has no record at {position}")
        return self.record(number) if number >= self.first else None

    def block_at(self, position: int) -> tuple[bytes, int] | None:
        """Some records of one file, of which one stands at a position, mostly the last one, and where the first of them stands;
        None when that is before the first file. Raises DamagedTimerFiles when there is none."""
        number = self._shape.number_at(position)
        if number is None or number >= self.end:
            raise DamagedTimerFiles(f"the timer log has no record at {position}")
        if number < self.first:
            return None
        if number >= self.written:
            begin = number // self._shape.file_records * self._shape.file_records
            first = max(begin, self.written, number + 1 - _MANY_RECORDS)
            at = (first - self.written) * RECORD_BYTES
            return bytes(self._tail[at : (number + 1 - self.written) * RECORD_BYTES]), self._shape.position_of(first)
        if not 0 <= number - self._block_first < len(self._block) // RECORD_BYTES:
            self._read_block(number)
        return self._block, self._shape.position_of(self._block_first)

    def _read(self, number: int) -> bytes:
        if number >= self.written:
            at = (number - self.written) * RECORD_BYTES
            return bytes(self._tail[at : at + RECORD_BYTES])
        at = (number - self._block_first) * RECORD_BYTES
        if not 0 <= at < len(self._block):
            self._read_block(number)
            at = (number - self._block_first) * RECORD_BYTES
        return self._block[at : at + RECORD_BYTES]

    def _read_block(self, number: int) -> None:
        """Read some records around that one: a slot's are read from the last to the first, others in order."""
        records = self._shape.file_records
        begin = number // records * records
        held = self._block_first, self._block_first + len(self._block) // RECORD_BYTES
        count = _MANY_RECORDS if held[0] - _MANY_RECORDS <= number <= held[1] else _FEW_RECORDS
        first = number if number == held[1] else max(begin, number + 1 - count)
        end = min(first + count, begin + records, self.written)
        place = (first - begin) * RECORD_BYTES
        try:
            self._block = self._handle(number // records).read(place, (end - first) * RECORD_BYTES)
        except StorageError as error:
            raise DamagedTimerFiles(f"the timer log cannot be read: {error}") from error
        self._block_first = first

    # -- the end -----------------------------------------------------------------------------------------------------------

    def forget_from(self, number: int) -> None:
        """Drop the records from a number on, in memory; `write_cut` does it on disk."""
        if number < self.written:
            self._tail.clear()
            self.written = number
        else:
            del self._tail[(number - self.written) * RECORD_BYTES :]
        self._block = b""

    def write_cut(self) -> None:
        """Leave nothing in files behind what is written; durable on return."""
        self.close()
        records = self._shape.file_records
        file, inside = divmod(self.written, records)
        for each in self.files():
            if each > file or (each == file and not inside):
                self._disk.remove(path_of(self._shape, each))
            elif each == file:
                with closing(self._disk.open(path_of(self._shape, each))) as segment:
                    segment.truncate(inside * RECORD_BYTES)
                    segment.truncate(self._shape.file_bytes)
                    segment.sync()

    # -- writing -----------------------------------------------------------------------------------------------------------

    def begin_write(self) -> LogWrite:
        return LogWrite(self.written, bytes(self._tail))

    def finish_write(self, write: LogWrite) -> None:
        """The write has run, and nothing was cut meanwhile."""
        assert write.first == self.written, "another write came first"
        del self._tail[: len(write.records)]
        self.written += len(write.records) // RECORD_BYTES

    # -- files -------------------------------------------------------------------------------------------------------------

    def files(self) -> list[int]:
        """The numbers of the files that there are, in order."""
        starts = [parse_file_name(name) for name in self._disk.names(LOG_DIRECTORY)]
        return sorted(start // self._shape.file_bytes for start in starts if start is not None)

    def load(self, first_file: int, end: int) -> None:
        """Take over the files up to the record `end`. Raises DamagedTimerFiles when one is missing or too large."""
        records = self._shape.file_records
        needed = list(range(first_file, -(-end // records)))
        present = [file for file in self.files() if file >= first_file]
        if present[: len(needed)] != needed:
            raise DamagedTimerFiles(f"of the files {needed} of the timer log only {present} are there")
        for file in needed:
            handle = self._handle(file)
            if handle.size_bytes > self._shape.file_bytes:
                raise DamagedTimerFiles(f"{handle.path} is larger than {self._shape.file_bytes} bytes")
            if handle.size_bytes < self._shape.file_bytes:  # a cut was interrupted
                handle.truncate(self._shape.file_bytes)
        self.first, self.written = first_file * records, end

    def left_behind(self) -> list[str]:
        """The paths of files before the first one."""
        return [path_of(self._shape, file) for file in self.files() if file < self.first // self._shape.file_records]

    def written_record(self, number: int) -> TimerRecord | None:
        """What a file holds of the record, also behind the end; None when that is none."""
        file, inside = divmod(number, self._shape.file_records)
        if not self._disk.exists(path_of(self._shape, file)):
            return None
        return decode_record(self._handle(file).read(inside * RECORD_BYTES, RECORD_BYTES))

    def drop_file(self) -> str:
        """Forget the first file, which is not the last; returns the path to remove."""
        file = self.first // self._shape.file_records
        self.first += self._shape.file_records
        assert self.first <= self.written, "dropped a file that is still written"
        if (handle := self._handles.pop(file, None)) is not None:
            handle.close()
        self._block = b""
        return path_of(self._shape, file)

    def close(self) -> None:
        while self._handles:
            self._handles.popitem()[1].close()
        self._block = b""

    def clear(self) -> None:
        """Begin anew, without a thought to the files."""
        self.close()
        self._tail.clear()
        self.first = self.written = 0

    def _handle(self, file: int) -> FileSegment:
        handle = self._handles.get(file)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self._handles.pop(next(iter(self._handles))).close()
            handle = self._handles[file] = self._disk.open(path_of(self._shape, file))
        return handle


def path_of(shape: Shape, file: int) -> str:
    return f"{LOG_DIRECTORY}/{file_name(file * shape.file_bytes)}"
