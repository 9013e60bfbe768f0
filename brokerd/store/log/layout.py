"""Where the bytes of the commitlog live: file names, offset arithmetic, and which bytes can be a record (pure).

A physical offset is a position in one endless log. The log is cut into files of one size; a file is named by the offset of
its first byte. A record never crosses a file: when a record and the 8 bytes of a filler no longer fit, the rest of the file
is declared blank by a filler `{remaining bytes, 0xCBD43194}` and the record goes to the next file. So at least 8 bytes
always remain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from remoting.disk import Bytes
from remoting.errors import CorruptedFile, ProtocolError
from remoting.record.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, RECORD_OVERHEAD_BYTES

FILLER_BYTES: Final = 8
FILLER: Final = struct.Struct(">iI")
MIN_RECORD_BYTES: Final = RECORD_OVERHEAD_BYTES
# what must be there to know that a record starts here: size, magic and physical offset
HEAD_BYTES: Final = 36
_HEAD: Final = struct.Struct(">iI20xq")
_NAME_DIGITS: Final = 20


def file_name(start: int) -> str:
    """The name of the file that starts at the offset: 20 digits."""
    assert 0 <= start < 10**_NAME_DIGITS
    return f"{start:020d}"


def parse_file_name(name: str) -> int | None:
    """The offset in a file's name, or None when it is not such a name."""
    if len(name) != _NAME_DIGITS or not name.isascii() or not name.isdigit():
        return None
    return int(name)


def file_start(offset: int, file_size: int) -> int:
    """The first offset of the file that holds the byte at `offset`."""
    return offset - offset % file_size


def must_roll(size: int, remaining: int) -> bool:
    """Whether a record of this size has to go to the next file."""
    return size + FILLER_BYTES > remaining


def encode_filler(remaining: int) -> bytes:
    """The filler that declares the last `remaining` bytes of a file blank."""
    assert remaining >= FILLER_BYTES
    return FILLER.pack(remaining, MAGIC_BLANK)


def check_file_starts(starts: Iterable[int], file_size: int, directory: str) -> None:
    """Raise CorruptedFile unless the files are aligned and without a hole between them."""
    expected: int | None = None
    for start in starts:
        if start % file_size or (expected is not None and start != expected):
            missing = file_name(start - start % file_size if expected is None else expected)
            raise CorruptedFile(
                f"{directory}/{file_name(start)} does not follow the file before it: {directory}/{missing} is missing, or the "
                f"files were written with another size than {file_size} bytes; restore it, or set the size they have"
            )
        expected = start + file_size


class BoundaryTracker:
    """Follows record boundaries in raw log bytes that arrive in pieces cut anywhere, as a replica receives them.

    `complete_offset` is the end of the last whole record or filler. Bytes that cannot be a log (bad magic, size out of bounds, a
    record that names another offset or crosses a file) are refused as soon as the first 36 bytes of the record are there.
    """

    __slots__ = ("_file_size", "_head", "_max_record_bytes", "complete_offset")

    def __init__(self, offset: int, file_size: int, max_record_bytes: int) -> None:
        self.complete_offset = offset
        self._file_size = file_size
        self._max_record_bytes = max_record_bytes
        self._head = b""  # the first bytes of the record that is not yet whole

    def move(self, offset: int) -> None:
        """Continue at another boundary, forgetting any part of a record."""
        self.complete_offset = offset
        self._head = b""

    @property
    def state(self) -> tuple[int, bytes]:
        """What to put back when the bytes that were fed could not be stored."""
        return self.complete_offset, self._head

    @state.setter
    def state(self, state: tuple[int, bytes]) -> None:
        self.complete_offset, self._head = state

    def feed(self, offset: int, data: Bytes) -> None:
        """Take the bytes at `offset`; raises ProtocolError, changing nothing, when they cannot be part of a log."""
        complete, end = self.complete_offset, offset + len(data)
        if complete < offset:
            head = self._head + bytes(data[: max(0, HEAD_BYTES - len(self._head))])
            boundary = self._boundary(complete, head, 0)
        else:
            head = b""
            boundary = self._boundary(complete, data, complete - offset)
        while boundary is not None and boundary <= end:
            complete = boundary
            head = b""
            complete = self._skip_ordinary(complete, data, complete - offset)
            boundary = self._boundary(complete, data, complete - offset)
        if not head:
            head = bytes(data[complete - offset : complete - offset + HEAD_BYTES])
        self.complete_offset, self._head = complete, head

    def _skip_ordinary(self, start: int, data: Bytes, position: int) -> int:
        """The end of the last ordinary record of those that stand whole in the data from `start` on; a log is little else."""
        most, last = self._max_record_bytes, len(data) - HEAD_BYTES
        file_end = file_start(start, self._file_size) + self._file_size - FILLER_BYTES
        behind, end = start - position, start - position + len(data)
        while position <= last:
            size, magic, physical_offset = _HEAD.unpack_from(data, position)
            following = start + size
            if (
                magic != MAGIC_V1
                or physical_offset != start
                or not MIN_RECORD_BYTES <= size <= most
                or following > file_end
                or following > end
            ):
                break
            start = following
            position = start - behind
        return start

    def _boundary(self, start: int, data: Bytes, position: int) -> int | None:
        """The end of the record that starts at `start`, or None when too little of it is there to know."""
        present = len(data) - position
        if present < FILLER_BYTES:
            return None
        size, magic = FILLER.unpack_from(data, position)
        file_end = file_start(start, self._file_size) + self._file_size
        if magic == MAGIC_BLANK:
            if start + size != file_end:
                raise ProtocolError(
                    f"a filler of {size} bytes at offset {start} does not end a file of {self._file_size} bytes; "
                    "all replicas of a group need the same store.segment_size_bytes"
                )
            return file_end
        if present < HEAD_BYTES:
            return None
        size, magic, physical_offset = _HEAD.unpack_from(data, position)
        if magic not in (MAGIC_V1, MAGIC_V2) or physical_offset != start:
            raise ProtocolError(f"no record starts at offset {start}: magic {magic:#010x}, it names {physical_offset}")
        if not MIN_RECORD_BYTES <= size <= self._max_record_bytes or start + size + FILLER_BYTES > file_end:
            raise ProtocolError(
                f"a record of {size} bytes at offset {start} is out of bounds; "
                "all replicas of a group need the same store.segment_size_bytes"
            )
        return int(start + size)
