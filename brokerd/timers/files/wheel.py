"""The timer wheel in memory, and what of it is to be written to its file.

Slots change in memory; those that changed are written by pages of 4 KiB. Pages of the wheel that never had a slot take no memory.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from brokerd.timers.codes import SLOT_MS
from brokerd.timers.files.layout import (
    EMPTY,
    NO_POSITION,
    SLOT,
    SLOT_BYTES,
    WHEEL_PATH,
    DamagedTimerFiles,
    Shape,
    Slot,
)
from remoting.disk import Disk

_PAGE_BYTES: Final = 4096
_WORDS: Final = SLOT_BYTES // 8  # 8-byte words of a slot
_RUN_SLOTS: Final = 1 << 12  # slots that are looked at together, if there ever was one
_RUN_BYTES: Final = _RUN_SLOTS * SLOT_BYTES
_NOTHING: Final = bytes(_RUN_BYTES)
_NEVER: Final = 1 << 62


class TimerWheel:
    """All slots. A slot is named by its time in ms, a multiple of SLOT_MS and positive."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.clear()

    def clear(self) -> None:
        """Have no records, without a thought to the file."""
        self._image = memoryview(mmap.mmap(-1, self._shape.slots * SLOT_BYTES))
        self._words = self._image.cast("q")
        self._runs: set[int] = set()  # numbers of those that may have records: in all others there never was one
        self._first, self._last = _NEVER, 0  # times of the earliest and the latest slot that ever had one (/ SLOT_MS)
        self._dirty: set[int] = set()
        self._in_flight: set[int] = set()  # of a write that is not known to be on disk

    # -- slots -------------------------------------------------------------------------------------------------------------

    def slot(self, slot_ms: int) -> Slot:
        time, first, last, messages, _ = SLOT.unpack_from(self._image, self._shape.index_of(slot_ms) * SLOT_BYTES)
        return Slot(first, last, messages) if time * SLOT_MS == slot_ms else EMPTY

    def time_at(self, slot_ms: int) -> int:
        """Which slot (ms) stands where that one has its place; 0 without one."""
        time: int = SLOT.unpack_from(self._image, self._shape.index_of(slot_ms) * SLOT_BYTES)[0]
        return time * SLOT_MS

    def put(self, slot_ms: int, slot: Slot) -> None:
        """What the slot holds from now on; one without a last record goes."""
        at = self._shape.index_of(slot_ms) * SLOT_BYTES
        self._runs.add(at // _RUN_BYTES)
        if slot.last == NO_POSITION:
            self._image[at : at + SLOT_BYTES] = bytes(SLOT_BYTES)
        else:
            time = slot_ms // SLOT_MS
            SLOT.pack_into(self._image, at, time, *slot, 0)
            self._span(time, time)
        self._dirty.add(at // _PAGE_BYTES)

    @property
    def image(self) -> memoryview:
        """All of it as its file has it, for who puts many records at once and tells `touched` of them."""
        return self._image

    def touched(self, places: array[int], first_ms: int, last_ms: int) -> None:
        """The slots at these indexes were written, of these times at the earliest and the latest."""
        for place in set(places):
            at = place * SLOT_BYTES
            self._runs.add(at // _RUN_BYTES)
            self._dirty.add(at // _PAGE_BYTES)
        self._span(first_ms // SLOT_MS, last_ms // SLOT_MS)

    def slots_between(self, first_ms: int, last_ms: int) -> Iterator[int]:
        """The slots (ms) of these times, both included, that have records, in order of time."""
        slots = self._shape.slots
        first, last = max(1, self._first, first_ms // SLOT_MS), min(self._last, last_ms // SLOT_MS)
        if last - first >= slots:  # also of other rounds, so they are sorted: what waits is of one
            times = sorted(time for _, run in self._columns(0) for time in run if first <= time <= last)
            yield from (time * SLOT_MS for time in times)
            return
        while first <= last:
            index = first % slots
            count = min(last - first + 1, slots - index, _RUN_SLOTS - index % _RUN_SLOTS)
            if index // _RUN_SLOTS in self._runs:
                for wanted, time in enumerate(self._column(0, index, count), first):
                    if time == wanted:
                        yield time * SLOT_MS
            first += count

    def messages_between(self, first_ms: int, end_ms: int) -> int:
        """How many messages are in the slots of these times, the end not included."""
        return sum(self.slot(each).messages for each in self.slots_between(first_ms, end_ms - SLOT_MS))

    def messages_from(self, first_ms: int) -> int:
        """How many messages are in the slots from that time on. Raises DamagedTimerFiles when one is not in its place."""
        least, total = max(1, first_ms // SLOT_MS), 0
        for start, times in self._columns(0):
            for index in [index for index, time in enumerate(times, start) if time >= least]:
                time, _, _, messages, _ = SLOT.unpack_from(self._image, index * SLOT_BYTES)
                if time % self._shape.slots != index:
                    raise DamagedTimerFiles(
                        f"the slot {time} of the wheel stands in the place {index}, which is not its own"
                    )
                total += messages
        return total

    def slots_beyond(self, end: int) -> list[tuple[int, Slot]]:
        """The slots (ms) that name a record at or behind a position of the log."""
        found = []
        for start, lasts in self._columns(2):
            for index in [index for index, last in enumerate(lasts, start) if last >= end]:
                time, first, last, messages, _ = SLOT.unpack_from(self._image, index * SLOT_BYTES)
                if time:
                    found.append((time * SLOT_MS, Slot(first, last, messages)))
        return found

    def _columns(self, word: int) -> Iterator[tuple[int, array[int]]]:
        """One of the 8-byte fields of all slots that may have records: by runs, each with the index of its first slot."""
        for run in sorted(self._runs):
            first = run * _RUN_SLOTS
            yield first, self._column(word, first, min(_RUN_SLOTS, self._shape.slots - first))

    def _column(self, word: int, first: int, count: int) -> array[int]:
        """One of the 8-byte fields, of so many slots from an index on."""
        column = array("q", self._words[first * _WORDS + word : (first + count) * _WORDS : _WORDS].tobytes())
        if sys.byteorder == "little":
            column.byteswap()
        return column

    def _span(self, first: int, last: int) -> None:
        """There are slots of these times."""
        self._first, self._last = min(self._first, first), max(self._last, last)

    # -- the file ----------------------------------------------------------------------------------------------------------

    def load(self, disk: Disk) -> None:
        """Take over the file. Raises DamagedTimerFiles when there is none of that size."""
        if not disk.exists(WHEEL_PATH):
            raise DamagedTimerFiles(f"{WHEEL_PATH} is missing")
        size = len(self._image)
        with closing(disk.open(WHEEL_PATH)) as segment:
            if segment.size_bytes != size:
                raise DamagedTimerFiles(f"{WHEEL_PATH} has {segment.size_bytes} bytes, not {size}")
            for run, start in enumerate(range(0, size, _RUN_BYTES)):
                part = segment.read(start, min(_RUN_BYTES, size - start))
                if not _NOTHING.startswith(part):
                    self._image[start : start + len(part)] = part
                    self._runs.add(run)
        for _, times in self._columns(0):
            self._span(min(filter(None, times), default=_NEVER), max(times))

    def begin_write(self) -> Sequence[tuple[int, bytes]]:
        """(position, bytes) of what is to be written; what an earlier write holds, which may never run, is in it, too."""
        pages = self._dirty | self._in_flight
        self._dirty, self._in_flight = set(), pages
        return [
            (page * _PAGE_BYTES, bytes(self._image[page * _PAGE_BYTES : (page + 1) * _PAGE_BYTES]))
            for page in sorted(pages)
        ]

    def finish_write(self) -> None:
        self._in_flight.clear()

    def abandon_write(self) -> None:
        self._dirty |= self._in_flight
        self._in_flight.clear()


def write_slots(disk: Disk, shape: Shape, parts: Sequence[tuple[int, bytes]]) -> None:
    """Make them durable; blocks."""
    with closing(disk.open(WHEEL_PATH, create=True, size_bytes=shape.slots * SLOT_BYTES)) as segment:
        for position, content in parts:
            segment.write(position, (content,))
        segment.sync()
