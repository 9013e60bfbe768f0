"""`due_entries.DueEntries` over `brokerd/native/due.c`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

from brokerd.native.library import Library
from brokerd.store.unit import UNIT, UNIT_BYTES, Unit
from brokerd.timers.codes import Key, encode_code
from brokerd.timers.due_entries import NO_ENTRIES, PAIR, DueEntries, PythonDueEntries, Span

_LARGEST: Final = (1 << 63) - 1


class NativeKey(ctypes.Structure):
    """`struct key`."""

    _fields_ = (("due_ms", ctypes.c_int64), ("offset", ctypes.c_int64))


class NativeDueEntries:
    """By the library; `read` gives some encoded units from a queue offset on, at least one that is there and at most so many."""

    def __init__(self, library: Library, read: Callable[[int, int], bytes]) -> None:
        key = ctypes.POINTER(NativeKey)
        self._select = library.function(
            *("native_due_select", ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, key, key),
            ctypes.c_void_p,
        )
        self._sort = library.function("native_due_sort", None, ctypes.c_void_p, ctypes.c_int64)
        number = ctypes.POINTER(ctypes.c_int64)
        self._span = library.function("native_due_span", None, ctypes.c_char_p, ctypes.c_int64, number, number)
        self._read = read

    def select(self, start: int, stop: int, after: Key, end: Key) -> array[int]:
        found = array("q")
        behind, last = NativeKey(*after), NativeKey(*end)
        while start < stop and (units := self._read(start, stop - start)):
            count = len(units) // UNIT_BYTES
            into = array("q", bytes(8 * PAIR * count))
            selected = self._select(
                *(units, count, start, ctypes.byref(behind), ctypes.byref(last), into.buffer_info()[0])
            )
            found += into[: PAIR * selected]
            start += count
        return found

    def sort(self, entries: array[int]) -> None:
        self._sort(entries.buffer_info()[0], len(entries) // PAIR)

    def span(self, start: int, stop: int) -> Span:
        found = NO_ENTRIES
        least, largest = ctypes.c_int64(), ctypes.c_int64()
        while start < stop and (units := self._read(start, stop - start)):
            count = len(units) // UNIT_BYTES
            self._span(units, count, ctypes.byref(least), ctypes.byref(largest))
            ends = (least.value, largest.value, *found[1:]) if found.entries else (least.value, largest.value)
            found = Span(found.entries + count, min(ends), max(ends))
            start += count
        return found


def due_entries_for(
    library: Library | None, read_units: Callable[[int, int], Sequence[Unit]], read: Callable[[int, int], bytes]
) -> DueEntries:
    """In C where there is a library."""
    return PythonDueEntries(read_units) if library is None else NativeDueEntries(library, read)


def due_entries_agree(library: Library) -> bool:
    """Whether the library finds and orders entries as Python does, around the keys that are asked for."""
    times = (5, 3, 1 << 51, 3, 0, 4, 5, 3)
    units = [(n, 100, encode_code(due_ms, n % 3)) for n, due_ms in enumerate(times)]
    encoded = b"".join(UNIT.pack(*each) for each in units)
    native = NativeDueEntries(library, lambda start, count: encoded[UNIT_BYTES * start : UNIT_BYTES * (start + count)])
    python = PythonDueEntries(lambda start, count: units[start : start + count])
    for after, end in product(
        (Key(0, -1), Key(3, 1), Key(3, _LARGEST)), (Key(3, 3), Key(5, 0), Key(1 << 52, _LARGEST))
    ):
        if any(native.span(start, len(units)) != python.span(start, len(units)) for start in range(len(units))):
            return False
        found, wanted = native.select(0, len(units), after, end), python.select(0, len(units), after, end)
        if found != wanted:
            return False
        native.sort(found)
        python.sort(wanted)
        if found != wanted:
            return False
    return True
