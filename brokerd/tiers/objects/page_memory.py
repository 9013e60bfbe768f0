"""Memory for what is read past the system's page cache: it begins at a page, and is used again when nobody looks at it any more.

The system finds and clears fresh memory page by page, which takes several times as long as the disk takes to fill it, unless the
pages are large ones: so what nearly fills large pages is made of such, where the system has them.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import Final

PAGE_BYTES: Final = 4096
LARGE_PAGE_BYTES: Final = 2 << 20
_STEP_BYTES: Final = 128 * 1024  # sizes are rounded up to that, so that what is used again fits
_UNUSED_PART: Final = 8  # of large pages, at most
_MOST_FREE_BYTES: Final = 64 << 20


class PageMemory:
    """Any thread may take some. `free_bytes` are kept for who comes next, and bounded."""

    def __init__(self, most_free_bytes: int = _MOST_FREE_BYTES) -> None:
        self.free_bytes = 0
        self._most_free_bytes = most_free_bytes
        self._free: deque[mmap.mmap] = deque()
        # of the same thread also in the middle of a call here, as memory is given back when an object goes
        self._lock = threading.RLock()

    def take(self, size: int) -> memoryview:
        """So many bytes at least, with whatever is in them. They are free when neither the view nor a part of it is there."""
        rounded = _rounded(size)
        memory = self._find(rounded)
        if memory is None:
            memory = _small_pages(rounded) if rounded % LARGE_PAGE_BYTES else large_pages(rounded)
        lent = (ctypes.c_char * rounded).from_buffer(memory)
        weakref.finalize(lent, self._give_back, memory).atexit = False
        return memoryview(lent).cast("B")

    def _find(self, size: int) -> mmap.mmap | None:
        with self._lock:
            for number in reversed(range(len(self._free))):  # the last one may still be in the processor's cache
                memory = self._free[number]
                if len(memory) == size:
                    del self._free[number]
                    self.free_bytes -= size
                    return memory
        return None

    def _give_back(self, memory: mmap.mmap) -> None:
        """What was free for longest, and has another size perhaps, makes room."""
        with self._lock:
            self._free.append(memory)
            self.free_bytes += len(memory)
            while self.free_bytes > self._most_free_bytes:
                self.free_bytes -= len(self._free.popleft())


def large_pages(size: int) -> mmap.mmap:
    """New memory, of large pages as far as the system has some; what of it was never used takes none. Linux lets what is whole
    large pages begin at one."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # what is shared is a file to the system
    with suppress(OSError):  # a system that was built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _small_pages(size: int) -> mmap.mmap:
    """New memory; all its pages are found at once."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0))


def _rounded(size: int) -> int:
    large = -(-size // LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES
    return large if (large - size) * _UNUSED_PART <= large else -(-size // _STEP_BYTES) * _STEP_BYTES
