"""The postings of many records at once, by `brokerd/native/keys.c`.

What it leaves is for `postings.py`, which says what is right.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Final

from brokerd.native.library import Library

_ROOM: Final = 1 << 11  # postings of one call


class NativePostings:
    """By the library."""

    def __init__(self, library: Library) -> None:
        number, pointer = ctypes.c_int64, ctypes.c_void_p
        self._call = library.function(
            *("native_postings", number, ctypes.c_char_p, number, number, number, pointer, pointer, pointer, number),
            pointer,
        )
        self._columns = tuple(array("q", bytes(8 * _ROOM)) for _ in range(3))
        self._places = [each.buffer_info()[0] for each in self._columns]
        self._end = ctypes.c_int64()

    def take(
        self,
        data: bytes,
        position: int,
        physical_offset: int,
        file_size: int,
        into: tuple[list[int], list[int], list[int]],
    ) -> int:
        """Take the records from the position on into columns (hashes, offsets, timestamps); returns where something else begins:
        what is no whole record, or one with keys that are not ASCII."""
        self._end.value = position
        while True:
            before = self._end.value
            found: int = self._call(
                *(data, len(data), physical_offset, file_size, *self._places, _ROOM, ctypes.addressof(self._end))
            )
            for column, more in zip(into, self._columns, strict=True):
                column += more[:found]
            if self._end.value == before:
                return before
