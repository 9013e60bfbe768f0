"""Entries of the timer topic's queue by their keys: those between two of them, and in order (pure).

Both run in C where the broker has its library (`native_due_entries.py`); Python says what is right.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from brokerd.store.unit import Unit
from brokerd.timers.codes import Key, encode_code, key_of

PAIR: Final = 2  # numbers of an entry in a row of them: its code, then its queue offset


class Span(NamedTuple):
    """So many entries, which may be fewer than were asked for, have codes from `least` to `largest`."""

    entries: int
    least: int
    largest: int


NO_ENTRIES: Final = Span(0, 0, 0)


class DueEntries(Protocol):
    """Entries are rows of codes and queue offsets in turn."""

    def select(self, start: int, stop: int, after: Key, end: Key) -> array[int]:
        """Those of queue offsets in [start, stop) with keys behind `after`, up to `end`."""

    def sort(self, entries: array[int]) -> None:
        """Put them in order of their keys."""

    def span(self, start: int, stop: int) -> Span:
        """When those of queue offsets in [start, stop) are due."""


class PythonDueEntries:
    """In Python. `read_units` reads the queue."""

    def __init__(self, read_units: Callable[[int, int], Sequence[Unit]]) -> None:
        self._read_units = read_units

    def select(self, start: int, stop: int, after: Key, end: Key) -> array[int]:
        least, most = encode_code(after.due_ms, 0), encode_code(end.due_ms + 1, 0)
        found = array("q")
        while start < stop and (units := self._read_units(start, stop - start)):
            for offset, (_, _, code) in enumerate(units, start):
                if least <= code < most and after < key_of(code, offset) <= end:
                    found.extend((code, offset))
            start += len(units)
        return found

    def sort(self, entries: array[int]) -> None:
        pairs = sorted(zip(entries[::PAIR], entries[1::PAIR], strict=True), key=lambda each: key_of(*each))
        entries[::PAIR] = array("q", [code for code, _ in pairs])
        entries[1::PAIR] = array("q", [offset for _, offset in pairs])

    def span(self, start: int, stop: int) -> Span:
        codes: list[int] = []
        while start + len(codes) < stop and (units := self._read_units(start + len(codes), stop - start - len(codes))):
            codes += [code for _, _, code in units]
        return Span(len(codes), min(codes), max(codes)) if codes else NO_ENTRIES
