"""Records of the commitlog for consumers, none that is not what was stored: a disk may change bytes long after it wrote them.

Every read is checked, each record of it (`record_checks`). In C that costs little more than one pass over the bytes. In Python,
what passed leaves 32 bits: one checksum over the queue's units that were asked for and all the bytes that were found. The same
read with the same bytes is known by it, in one pass over them; anything else is checked in whole again. So nothing has to be
forgotten when the log is cut, written again or read anew from disk, and a chance of 1 in 4 billion that damage goes unnoticed is
that of the records' own checksums.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Final, TypeVar

from brokerd.native.library import Library
from brokerd.store.log.file_turns import Looks
from brokerd.store.log.record_checks import first_bad, first_bad_in_c
from brokerd.store.log.run_copies import FilePart, copied, copied_in_c, joined_in_c
from brokerd.store.log.segment import Segment
from brokerd.store.unit import UNIT, UNIT_BYTES, Unit
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, DamagedRange

_T = TypeVar("_T")
_KNOWN_READS: Final = 1 << 16  # of 4 bytes
_LEAST_KNOWN: Final = 4  # records of a read: fewer are checked as fast as they are known again
# Records of one file that lie so close together that reading what is between them costs less than a call for each.
_CLOSE: Final = 4
_CLOSE_BYTES: Final = 1 << 20


class RecordReads:
    """Reads from the segments of one log, which `segments` has by their first offset; `read` reads anywhere in it."""

    def __init__(
        self,
        segments: Mapping[int, Segment],
        segment_bytes: int,
        read: Callable[[int, int], bytes],
        library: Library | None,
        looks: Looks,
    ) -> None:
        self._segments = segments
        self._segment_bytes = segment_bytes
        self._read = read
        self._looks = looks
        self._first_bad = first_bad if library is None else first_bad_in_c(library)
        self._copied = copied if library is None else copied_in_c(library)
        self._joined_at_once = None if library is None else joined_in_c(library)
        self._known = array("I", bytes(4 * _KNOWN_READS)) if library is None else None

    def records(self, units: Sequence[Unit], encoded: bytes, total: int) -> list[bytes]:
        """The records that the units name, as `joined` reads them; those that are gone from the log's begin are left out. A place
        that the log never had, or that is gone though one before it is there, is not what was stored."""
        content = self.joined(units, encoded, total)
        if content is None:
            return self._one_by_one(units)
        if len(units) == 1:
            return [content]
        sizes = [size for _, size, _ in units]
        return [content[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def unchecked(self, units: Sequence[Unit]) -> tuple[bytes, list[Unit]]:
        """What stands where the units name records, one behind the other, for who checks it; and the units, whose size is 0 where
        nothing is there."""
        first, total = units[0][0], sum(map(itemgetter(1), units))
        segment = self._segments.get(first - first % self._segment_bytes)
        last, last_size, _ = units[-1]
        if segment is not None and last + last_size - first == total and last + last_size <= segment.end:
            return self._read(first, total), list(units)  # they lie side by side, or are none
        pieces: list[bytes] = []
        there: list[Unit] = []
        for start, group in groupby(units, key=lambda unit: unit[0] - unit[0] % self._segment_bytes):
            segment = self._segments.get(start)
            end = start if segment is None else segment.end
            found = [unit if 0 < unit[1] <= end - unit[0] else (unit[0], 0, unit[2]) for unit in group]
            if segment is None or segment.view is None:
                read = [self._read(offset, size) if size else b"" for offset, size, _ in found]
                pieces.append(b"".join(read))
                sizes = [len(piece) for piece in read]
            else:
                with segment.view.memory() as source:
                    views = [source[at - start : at - start + size] for at, size, _ in found]
                    pieces.append(b"".join(views))
                    sizes = [len(view) for view in views]
                    del views
            there += [(offset, size, code) for (offset, _, code), size in zip(found, sizes, strict=True)]
        return b"".join(pieces), there

    def copied(self, encoded: bytes, into: memoryview, place: int) -> bytes:
        """Copy records that the units name to the buffer, one behind the other from its begin on, as many as there is room for
        and as are what was stored; a file's end may end it, too. Entries for them, of which the first is at `place`."""
        offset, size, _ = UNIT.unpack_from(encoded)
        start = offset - offset % self._segment_bytes
        segment = self._segments.get(start)
        if segment is None:
            return b""
        if segment.view is not None:
            with segment.view.memory() as source:
                return self._copied(source, start, encoded, into, place)
        last, last_size, _ = UNIT.unpack_from(encoded, len(encoded) - UNIT_BYTES)
        span = last + last_size - offset
        if not size <= span <= min(_CLOSE * len(into), _CLOSE_BYTES):
            encoded, span = encoded[:UNIT_BYTES], size
        if not 0 < span <= max(len(into), _CLOSE_BYTES):
            return b""
        return self._copied(self._read(offset, span), offset, encoded, into, place)

    def look_at(self, encoded: bytes, look: Callable[[Bytes, int], _T]) -> _T:
        """Have somebody look at records that the units name, as they are in the log: he gets the bytes that the first of them are
        in, and where these begin; none when nothing is there. He asks again for those that are not in them."""
        offset, size, _ = UNIT.unpack_from(encoded)
        start = offset - offset % self._segment_bytes
        segment = self._segments.get(start)
        if segment is not None and segment.view is not None:
            with segment.view.memory() as source:
                return look(source, start)
        span, count = size, len(encoded) // UNIT_BYTES
        while count > 1:  # as many as lie close together
            last, last_size, _ = UNIT.unpack_from(encoded, (count - 1) * UNIT_BYTES)
            if size <= last + last_size - offset <= _CLOSE_BYTES:
                span = last + last_size - offset
                break
            count //= 2
        if segment is None or not 0 < span <= max(_CLOSE_BYTES, segment.end - offset):
            return look(b"", 0)
        return look(self._read(offset, span), offset)

    def mapped(self, physical_offset: int) -> tuple[memoryview, int] | None:
        """The mapping of the file that the offset is in, to be released by who asks; and where it begins in the log. None without
        one."""
        segment = self.segment_of(physical_offset)
        if segment is None or segment.view is None:
            return None
        return segment.view.memory(), segment.start

    def segment_of(self, physical_offset: int) -> Segment | None:
        """The file that the offset is in."""
        return self._segments.get(physical_offset - physical_offset % self._segment_bytes)

    def copied_aside(self, encoded: bytes) -> Callable[[memoryview, int], bytes] | None:
        """What makes the same copy in a helper thread, once; None for a file that is not mapped."""
        offset, _, _ = UNIT.unpack_from(encoded)
        start = offset - offset % self._segment_bytes
        segment = self._segments.get(start)
        if segment is None or segment.view is None:
            return None
        source = segment.view.memory()

        def copy(into: memoryview, place: int) -> bytes:
            with source, self._looks.share():
                return self._copied(source, start, encoded, into, place)

        return copy

    def _one_by_one(self, units: Sequence[Unit]) -> list[bytes]:
        records: list[bytes] = []
        begin = next(iter(self._segments), 0)
        for unit in units:
            offset, size, _ = unit
            if offset - offset % self._segment_bytes in self._segments:
                record = self._read(offset, size)
                self._check(record, (unit,), b"")
                records.append(record)
            elif records or not 0 <= offset < begin:
                raise _damaged(offset, size)
        return records

    def joined(self, units: Sequence[Unit], encoded: bytes, total: int) -> bytes | None:
        """The records that the units name, one behind the other; None when they are not all in one file that is there.

        `encoded` are the units as their queue has them, empty when others are between them; `total` is the sum of their sizes.
        Raises CorruptedFile for a record that is not what was stored.
        """
        if not units:
            return b""
        first = units[0][0]
        last, last_size, _ = units[-1]
        segment = self._segments.get(first - first % self._segment_bytes)
        if segment is None or not first <= last or last + last_size > segment.end:
            return None
        whole = self._joined_in_c(segment, encoded, total) if encoded else None
        if whole is not None:
            return whole
        content = self._gathered(segment, units, last + last_size - first, total)
        known = self._known
        if known is None or len(units) < _LEAST_KNOWN or not encoded:
            self._check(content, units, encoded)
            return content
        asked = crc32(encoded)
        slot = asked % _KNOWN_READS
        found = crc32(content, asked)
        if known[slot] != found:
            self._check(content, units, encoded)
            known[slot] = found
        return content

    def _joined_in_c(self, segment: Segment, encoded: bytes, total: int) -> bytes | None:
        """The same, when they are as they were stored; None for what is left to Python, which says what is wrong."""
        join, view, descriptor = self._joined_at_once, segment.view, segment.file.descriptor
        if join is None:
            return None
        if view is not None:
            with view.memory() as source:
                return join(source, segment.start, encoded, total)
        if descriptor < 0:
            return None
        return join(FilePart(descriptor, segment.end - segment.start), segment.start, encoded, total)

    def _gathered(self, segment: Segment, units: Sequence[Unit], span: int, total: int) -> bytes:
        """The bytes of the units' records, which lie in `span` bytes of the segment, in as few steps as that takes."""
        first = units[0][0]
        start, view = segment.start, segment.view
        if span == total:
            return view[first - start : first - start + span] if view is not None else self._read(first, span)
        if view is None:
            if span > min(_CLOSE * total, _CLOSE_BYTES):
                return b"".join([self._read(offset, size) for offset, size, _ in units])
            start, source = first, memoryview(self._read(first, span))
        else:
            source = view.memory()
        with source:
            pieces = []
            begin = end = first
            for offset, size, _ in units:
                if offset != end:  # what lies side by side, as a batch does, is one piece
                    pieces.append(source[begin - start : end - start])
                    begin = end = offset
                end += size
            pieces.append(source[begin - start : end - start])
            return b"".join(pieces)

    def _check(self, content: bytes, units: Sequence[Unit], encoded: bytes) -> None:
        """Raise CorruptedFile unless the content is the units' records, one behind the other, as they were stored."""
        bad = self._first_bad(content, units, encoded)
        if bad is not None:
            offset, size, _ = units[bad]
            raise _damaged(offset, size)


def _damaged(offset: int, size: int) -> CorruptedFile:
    return CorruptedFile(
        f"the record of {size} bytes at offset {offset} of the commitlog is damaged, so it is not given out; another replica "
        "that has it intact is asked for it, and it can be read when it has been written again",
        DamagedRange(offset, size),
    )
