"""Reads the log's files as they are on disk, through handles of its own: for who looks for damage, from a helper thread.

What the disk refuses to give reads as zeros, which no record is made of. So a bad sector is damage like any other, found by the
same checks, and written again with what belongs there. A file may be cut or removed while it is read: what is found wrong is
looked at again before anything is done about it.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from brokerd.store.log.commitlog import DIRECTORY
from brokerd.store.log.layout import file_name, file_start
from remoting.disk import Disk, FileSegment
from remoting.errors import StorageError

_BLOCK_BYTES: Final = 512  # the least that a disk refuses: a reader of few bytes and one of many find the same


class LogFiles:
    """`read` has the shape of `CommitLog.read`: never across a file's end. Knows nothing of where the log ends."""

    def __init__(self, disk: Disk, file_size: int) -> None:
        self._disk = disk
        self._file_size = file_size

    def read(self, physical_offset: int, length: int) -> bytes:
        """Up to so many bytes at the offset; fewer, or none, when the file is shorter or gone. Blocks."""
        start = file_start(physical_offset, self._file_size)
        path = f"{DIRECTORY}/{file_name(start)}"
        if not self._disk.exists(path):
            return b""
        position = physical_offset - start
        with closing(self._disk.open(path)) as file:
            length = max(0, min(length, file.size_bytes - position))
            try:
                return file.read(position, length)
            except StorageError:
                return _read_blocks(file, position, length)


def _read_blocks(file: FileSegment, position: int, length: int) -> bytes:
    """What can be read, block by block; zeros for the rest."""
    parts, end = [], position + length
    while position < end:
        size = min(_BLOCK_BYTES - position % _BLOCK_BYTES, end - position)
        try:
            part = file.read(position, size)
        except StorageError:
            part = b""
        parts.append(part.ljust(size, b"\0"))
        position += size
    return b"".join(parts)
