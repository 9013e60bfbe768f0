"""Whether what is mapped is in memory: a look at it costs no read of the disk."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_IN_MEMORY: Final = 1  # of a page's byte


def is_in_memory(address: int, length: int) -> bool:
    """Whether all pages of a part of a mapping are, when the system is asked. Raises OSError for what is not mapped."""
    begin = address - address % mmap.PAGESIZE
    pages = -(-(address + length - begin) // mmap.PAGESIZE)
    told = ctypes.create_string_buffer(pages)
    if _LIBC.mincore(begin, pages * mmap.PAGESIZE, told):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return all(page & _IN_MEMORY for page in told.raw)
