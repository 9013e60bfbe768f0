"""`QueueFiles.read_checked` over `brokerd/native/queue_files.c`: a queue's files are opened and closed for each read, which costs
less there than in Python to find out which are open. What C leaves is read by the twin, which says what is wrong with it."""

from __future__ import annotations

import ctypes
import os
from array import array
from typing import Final

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.store.queues.unit_checks import BLOCK_UNITS
from brokerd.store.unit import UNIT_BYTES

_AREA_BYTES: Final = 64 * BLOCK_UNITS * UNIT_BYTES  # as many blocks as queue_files.c reads at once
_NAME, _NAME_LENGTH, _FIRST, _COUNT = 2, 3, 5, 6  # of struct reads


class NativeReads:
    """Reads of files below two directories of a real disk. The loop's alone."""

    def __init__(self, library: Library, queues: str, checks: str, file_units: int) -> None:
        self._call = library.function("native_read_units", ctypes.c_int64, ctypes.c_void_p)
        self._places = [ctypes.create_string_buffer(os.fsencode(f"{place}/")) for place in (queues, checks)]
        self._area = bytearray(_AREA_BYTES)
        self._memory = memoryview(self._area)
        into = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        places = map(ctypes.addressof, self._places)
        self._numbers = array("q", (*places, 0, 0, file_units, 0, 0, into, _AREA_BYTES))
        self._reads = ctypes.c_void_p(self._numbers.buffer_info()[0])
        self._file_units = file_units

    def read(self, name: bytes, first: int, count: int) -> bytes | None:
        """Up to `count` units of the queue in a directory of that name, from unit `first` on, fewer at the end of its file; None
        for what is left to the twin."""
        numbers = self._numbers
        with Pinned(name) as numbers[_NAME]:
            numbers[_NAME_LENGTH], numbers[_FIRST], numbers[_COUNT] = len(name), first, count
            at: int = self._call(self._reads)
        if at < 0:
            return None
        there = min(count, self._file_units - first % self._file_units)
        return bytes(self._memory[at : at + there * UNIT_BYTES])
