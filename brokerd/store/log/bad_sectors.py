"""What the disk refuses to give: reads around it, and writes over it.

A bad sector reads as zeros, which no record is made of. So it is damage like any other, found by the same checks, and written
again with what belongs there. The system writes whole pages: to change a part of one it reads the rest first, which fails where
the page is bad. Only a write of the whole page gets through, and has the disk put another sector in the bad one's place.
"""

from __future__ import annotations

import errno
from typing import Final

from remoting.disk import Bytes, FileSegment
from remoting.errors import StorageError

SECTOR_BYTES: Final = 512  # the least that a disk refuses: a reader of few bytes and one of many find the same
PAGE_BYTES: Final = 4096


def is_unreadable(error: StorageError) -> bool:
    """Whether the disk refused some bytes, and nothing else is wrong."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO


def read_around(file: FileSegment, position: int, length: int) -> tuple[bytes, int]:
    """What can be read of up to `length` bytes, with zeros for the rest, and where the first bad sector is; -1 without any.
    Raises StorageError for what is no bad sector."""
    parts, first_bad, end = [], -1, min(position + length, file.size_bytes)
    while position < end:
        size = min(SECTOR_BYTES - position % SECTOR_BYTES, end - position)
        try:
            part = file.read(position, size)
        except StorageError as error:
            if not is_unreadable(error):
                raise
            part = b""
            first_bad = position - position % SECTOR_BYTES if first_bad < 0 else first_bad
        parts.append(part.ljust(size, b"\0"))
        position += size
    return b"".join(parts), first_bad


def write_over(file: FileSegment, position: int, content: Bytes, end: int) -> None:
    """Write over what the file has there. Bad pages that the content begins or ends in are written whole, if they lie before
    `end`, behind which somebody else may write. What these had beside the content is gone already. Raises StorageError."""
    try:
        file.write(position, (content,))
    except StorageError as error:
        page_end = position + len(content)
        page_end += -page_end % PAGE_BYTES
        if not is_unreadable(error) or page_end > end:
            raise
        page_start = position - position % PAGE_BYTES
        before, _ = read_around(file, page_start, position - page_start)
        behind, _ = read_around(file, position + len(content), page_end - position - len(content))
        file.write(page_start, (before, content, behind))
