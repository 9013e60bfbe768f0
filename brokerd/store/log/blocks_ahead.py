"""When zeros are written behind the log's end, so that its file has blocks there before records come to them (pure).

A sync of bytes for which the file has blocks writes these bytes. If it gets blocks for them meanwhile, it writes the file's own
page as well, or the file system's journal, and takes half as long again. So who waits for each sync has the next blocks written
before, some at a time: as long as many syncs find them. A sync of much has blocks to get anyway, and should not write everything
twice.
"""

from __future__ import annotations

from typing import Final

AHEAD_BYTES: Final = 256 * 1024
LEAST_SYNCS: Final = 16  # that have to find them


class BlocksAhead:
    """Of the file with the log's end. Positions are the log's."""

    __slots__ = ("_ahead_bytes", "_end", "_least_syncs", "_syncs")

    def __init__(self, ahead_bytes: int, least_syncs: int = LEAST_SYNCS) -> None:
        """0 bytes: never."""
        self._ahead_bytes = ahead_bytes
        self._least_syncs = least_syncs
        self._syncs = 0
        self._end = 0  # of the zeros, or, where there are none, of what is appended until that is decided anew

    def wanted(self, position: int, end: int, limit: int) -> int:
        """How many zeros to write at `position`, before what goes from there to `end` in a file that ends at `limit`."""
        if not self._ahead_bytes:
            return 0
        if end <= self._end:
            return 0
        lasts = self._syncs >= self._least_syncs
        self._syncs = 0
        self._end = min(end + self._ahead_bytes, limit)
        return self._end - position if lasts else 0

    def synced(self) -> None:
        """A sync ended."""
        self._syncs += 1

    def forget(self) -> None:
        """The log ends elsewhere: nothing is there ahead."""
        self._syncs = 0
        self._end = 0
