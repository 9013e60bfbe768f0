"""Reads the log's files as they are on disk, through handles of its own: for who looks for damage, from a helper thread.

What the disk refuses to give reads as zeros (`log/bad_sectors`). A file may be cut or removed while it is read: what is found
wrong is looked at again before anything is done about it.
"""

from __future__ import annotations

from contextlib import closing

from brokerd.store.log.bad_sectors import read_around
from brokerd.store.log.commitlog import DIRECTORY
from brokerd.store.log.layout import file_name, file_start
from remoting.disk import Disk
from remoting.errors import StorageError


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
                return read_around(file, position, length)[0]
