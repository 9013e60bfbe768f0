"""Bytes that end where a page ends behind which nothing may be read: who does ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

_PAGES: Final = 16


class PageEnd:
    """Room for some pages of bytes, which goes with this object."""

    def __init__(self) -> None:
        self._pages = mmap.mmap(-1, (_PAGES + 1) * mmap.PAGESIZE)
        self._begin = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        self._size = _PAGES * mmap.PAGESIZE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(self._begin + self._size), mmap.PAGESIZE, 0) == 0

    def put(self, content: bytes) -> int:
        """The address at which the bytes are now, in place of those of the last call."""
        assert len(content) <= self._size
        at = self._size - len(content)
        self._pages[at : self._size] = content
        return self._begin + at
