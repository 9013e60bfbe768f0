"""Areas for records that the library lays out, which go to the log without a copy: while somebody has what is in one, others are
written to."""

from __future__ import annotations

import ctypes
from typing import Final
from weakref import ref

LEAST_LENT: Final = 1 << 14  # bytes: less is copied sooner than another area is found


class RecordAreas:
    """Areas of one size. The present one, `written` at an `address`, is written to, and what was written taken from it."""

    __slots__ = ("_areas", "_index", "_lent", "_most", "_size", "address", "written")

    def __init__(self, size: int, most: int) -> None:
        """Of `size` bytes each, and at most so many; one is made when all others are with somebody."""
        self._size = size
        self._most = most
        self._areas: list[memoryview] = []
        self._lent: list[ref[memoryview] | None] = []
        self._go_to(self._made())

    def take(self, length: int) -> bytes | memoryview:
        """What is at the begin of the present area. Who has it, and not only a part of it, has it for himself."""
        if length < LEAST_LENT or (other := self._other()) < 0:
            return self.written[:length].tobytes()
        lent = self.written[:length]
        self._lent[self._index] = ref(lent)
        self._go_to(other)
        return lent

    def _other(self) -> int:
        """One that nobody has; -1 when there is none."""
        for index, lent in enumerate(self._lent):
            if index != self._index and (lent is None or lent() is None):
                return index
        return self._made() if len(self._areas) < self._most else -1

    def _made(self) -> int:
        self._areas.append(memoryview(bytearray(self._size)))
        self._lent.append(None)
        return len(self._areas) - 1

    def _go_to(self, index: int) -> None:
        self._index = index
        self.written = self._areas[index]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.written))
