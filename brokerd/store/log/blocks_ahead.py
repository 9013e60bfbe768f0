"""When zeros are written behind the log's end, so that the blocks of its file are there before the records (pure).

A sync of bytes in blocks that the file has writes these bytes. Where it gets blocks for them meanwhile, it writes the file's own page
as well, or the file system's journal, and one that waits for such a sync waits half as long again. So a broker that acknowledges what
is synced has the next blocks written before, some at a time, while what is appended at once is little beside that: a sync of much
has blocks to get anyway, and is not to write everything twice.
"""

from __future__ import annotations

from typing import Final

AHEAD_BYTES: Final = 256 * 1024  # which one sync writes and the next two hundred need not care for
LEAST_APPENDS: Final = 32  # to which so much has to last


class BlocksAhead:
    """Of the file with the log's end. Positions are the log's."""

    __slots__ = ("_ahead_bytes", "_appends", "_end")

    def __init__(self, ahead_bytes: int) -> None:
        """0 bytes: never."""
        self._ahead_bytes = ahead_bytes
        self._appends = 0
        self._end = 0  # of what was written ahead, or of what is appended before it is judged again

    def wanted(self, position: int, end: int, limit: int) -> int:
        """What is before `end` is to be appended at `position`, to a file that ends at `limit`: how many zeros to write there
        before."""
        ahead_bytes = self._ahead_bytes
        if not ahead_bytes:
            return 0
        self._appends += 1
        if end <= self._end:
            return 0
        lasts = self._appends > LEAST_APPENDS
        self._appends = 0
        self._end = min(end + ahead_bytes, limit)
        return self._end - position if lasts else 0

    def forget(self) -> None:
        """The log ends elsewhere, or no room was left: nothing is there ahead."""
        self._appends = 0
        self._end = 0
