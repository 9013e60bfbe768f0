"""Bytes of the log for its replicas: cut anywhere, but none of a record that is not what was stored.

What is not yet durable is in memory since it was appended; no disk can have changed it, and it goes out as it is. So a replica
that keeps up costs nothing here. All else is checked in whole records before the first byte of one is given, once for all
replicas that ask for it one behind the other. What follows a filler's head is never looked at by anybody.
"""

from __future__ import annotations

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.layout import file_start
from remoting.errors import CorruptedFile, DamagedRange
from remoting.record.checksum import is_intact
from remoting.record.layout import BORDER, MAGIC_BLANK, Field
from remoting.record.walk import START_BYTES, Stop, describe_damage, find_marks, look, walk

_BLANK_MARK = MAGIC_BLANK.to_bytes(4, "big")


class VerifiedReads:
    """Reads of one log, which is asked for its content alone."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        # What was checked last, whole records from `_begin` on; a filler that was seen; which generation of the log they are of
        self._begin = 0
        self._content = b""
        self._filler = range(0)
        self._generation = -1

    def read(self, offset: int, length: int) -> bytes:
        """At least one and up to `length` bytes from `offset`, which is below the log's end; never across a file's end.

        Raises CorruptedFile, with what is damaged, when the record there is not what was stored.
        """
        log = self._log
        if offset >= log.flushed_offset:
            return log.read(offset, length)
        if self._generation != log.generation:
            self._begin, self._content, self._filler, self._generation = 0, b"", range(0), log.generation
        if not self._begin <= offset < self._begin + len(self._content) and offset not in self._filler:
            begin = self._begin_at(offset)
            self._begin, self._content = begin, self._checked(begin, length + offset - begin)
        if offset in self._filler:
            return log.read(offset, length)
        at = offset - self._begin
        return self._content[at : at + length]

    def _checked(self, begin: int, length: int) -> bytes:
        """The records from the boundary on, as many as that length holds, or one; none when a filler is there."""
        log, shape = self._log, self._log.shape
        data = log.read(begin, max(length, START_BYTES))
        records, end, stop, needs = walk(data, 0, begin, shape.file_size, shape.max_record_bytes)
        damaged = log.first_damaged_of(data, records)
        if damaged == 0:
            raise _damaged(begin, BORDER.unpack_from(data)[0])
        if damaged is not None:
            return data[:damaged]
        if self._is_filler(data, end, begin + end):
            self._filler = range(begin + end, file_start(begin, shape.file_size) + shape.file_size)
        elif not end and stop is Stop.PARTIAL:
            return self._one(begin, needs)
        elif not end:
            raise CorruptedFile(describe_damage(data, 0, begin, shape.file_size), DamagedRange(begin, 0))
        return data[:end]

    def _one(self, begin: int, size: int) -> bytes:
        """The record there, which is larger than what was asked for."""
        record = self._log.read(begin, size)
        if len(record) < size:
            raise CorruptedFile(f"the commitlog ends inside the record at offset {begin}", DamagedRange(begin, size))
        if not is_intact(record):
            raise _damaged(begin, size)
        return record

    def _is_filler(self, data: bytes, position: int, offset: int) -> bool:
        shape = self._log.shape
        _, size, is_record = look(data, position, offset, shape.file_size, shape.max_record_bytes)
        return bool(size) and not is_record

    def _begin_at(self, offset: int) -> int:
        """Where the record or filler begins that has the offset: a replica may have been cut off inside of one."""
        log, shape = self._log, self._log.shape
        file_begin = file_start(offset, shape.file_size)
        if offset in (self._begin + len(self._content), file_begin, log.min_offset):
            return offset
        if look(log.read(offset, START_BYTES), 0, offset, shape.file_size, shape.max_record_bytes)[1]:
            return offset
        floor = max(log.min_offset, file_begin, offset - shape.max_record_bytes)
        before = log.read(floor, offset - floor + START_BYTES)
        marks = [before.rfind(_BLANK_MARK) - Field.MAGIC.at, *reversed(find_marks(before))]
        for position in marks:
            if 0 <= position <= offset - floor:
                begin = floor + position
                _, size, _ = look(before, position, begin, shape.file_size, shape.max_record_bytes)
                if begin + size > offset:
                    return begin
        raise CorruptedFile(f"no record of the commitlog reaches over offset {offset}", DamagedRange(offset, 0))


def _damaged(offset: int, size: int) -> CorruptedFile:
    return CorruptedFile(
        f"the record of {size} bytes at offset {offset} of the commitlog is damaged, so it is not sent",
        DamagedRange(offset, size),
    )
