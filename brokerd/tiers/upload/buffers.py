"""Memory that uploads use again and again: the system takes longer to find new memory than the bytes take to be copied there.

A buffer begins at a page, so that a file can be written from it without another copy. What of it was never used takes no memory.
Large ones are made of large pages where the system has such: it finds and looks up hundreds of small ones in the time of one.
"""

from __future__ import annotations

import mmap
from typing import Final

from brokerd.tiers.objects.page_memory import large_pages

KEPT_BYTES: Final = 64 << 20  # while nobody uploads

Buffer = mmap.mmap


class Buffers:
    """Those that nobody uses at the moment: up to `most_bytes`, as many as uploads may use together, so who uploads all the time
    needs no new memory."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._free: list[Buffer] = []

    @property
    def free_bytes(self) -> int:
        return sum(map(len, self._free))

    def take(self, size: int) -> Buffer:
        """One of at least so many bytes that is the caller's; its content is whatever it was."""
        for number in reversed(range(len(self._free))):  # the last one may still be in the processor's cache
            if len(self._free[number]) >= size:
                return self._free.pop(number)
        return large_pages(size)

    def give_back(self, buffer: Buffer) -> None:
        """Nobody looks at it any more."""
        self._free.append(buffer)
        self._keep(self._most_bytes)

    def rest(self) -> None:
        """Nobody has uploaded for a while."""
        self._keep(KEPT_BYTES)

    def _keep(self, most_bytes: int) -> None:
        """What are more, those that were free for longest, are left to the system."""
        while self.free_bytes > most_bytes:
            del self._free[0]
