"""Memory that uploads use again and again: the system takes longer to find new memory than the bytes take to be copied there.

A buffer begins at a page, so that a file can be written from it without another copy. What of it was never used takes no memory.
"""

from __future__ import annotations

import mmap
from typing import Final

KEPT_BYTES: Final = 64 << 20  # between uploads

Buffer = mmap.mmap


class Buffers:
    """Those that nobody uses at the moment."""

    def __init__(self) -> None:
        self._free: list[Buffer] = []

    def take(self, size: int) -> Buffer:
        """One of at least so many bytes that is the caller's; its content is whatever it was."""
        for number, each in enumerate(self._free):
            if len(each) >= size:
                return self._free.pop(number)
        return mmap.mmap(-1, size)

    def give_back(self, buffer: Buffer) -> None:
        """Nobody looks at it any more. What are too many are left to the system."""
        if len(buffer) + sum(map(len, self._free)) <= KEPT_BYTES:
            self._free.append(buffer)
