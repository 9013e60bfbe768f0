"""What was seen of a queue by a reader who goes on there the next time: units that were as they were written, and the file of
the log that has their records. `StoreReads.sees` says whether that still holds, and looks again when it does not.
"""

from __future__ import annotations

import struct
from typing import Final

from brokerd.native import wanted
from brokerd.native.memory import Pinned
from brokerd.native.wanted import WantedArea
from brokerd.store.log.segment import Segment
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.unit import UNIT_BYTES
from remoting.disk import FileView

_PLACE: Final = struct.Struct(">q")  # how a unit begins


class Sight:
    """Of one reader. What he sees is in the area, for the library; it is right when `sees` has just said so."""

    __slots__ = (
        "_begin",
        "_end",
        "_generation",
        "_queue",
        "_units",
        "_view",
        "_writes",
        "ahead_units",
        "area",
        "file",
        "key",
        "least_units",
        "most_units",
    )

    def __init__(self, area: WantedArea) -> None:
        self.area = area
        self.key = "", 0
        self.least_units = self.most_units = 0
        self.ahead_units = 0  # that are kept of what is at hand behind those that one look wants
        self.forget()

    def forget(self) -> None:
        """Hold nothing of what was seen."""
        self.file: Segment | None = None
        self._view: FileView | None = None
        self._queue: ConsumeQueue | None = None
        self._units = b""
        self._begin = self._end = 0
        self._generation = self._writes = -1

    @property
    def units(self) -> bytes:
        """What is known of the queue, which the area refers to."""
        return self._units

    def read(self, topic: str, queue_id: int, most_units: int, least_units: int | None = None) -> None:
        """From now on look at so many units of a queue at most; None: at no less, as far as there are some."""
        self.key, self.most_units = (topic, queue_id), most_units
        self.least_units = most_units if least_units is None else least_units

    def has(self, queue: ConsumeQueue, writes: int, begin: int, end: int) -> bool:
        """Whether the units from `begin` on, before `end`, are known. Nothing is known any more of a queue that was cut, or when
        units were written to files again."""
        return (
            begin >= self._begin
            and end <= self._end
            and self._queue is queue
            and self._generation == queue.generation
            and self._writes == writes
        )

    def note_units(self, queue: ConsumeQueue, writes: int, begin: int, units: bytes) -> None:
        """What the queue has from there on."""
        self._queue, self._generation, self._writes = queue, queue.generation, writes
        self._begin, self._end, self._units = begin, begin + len(units) // UNIT_BYTES, units
        numbers = self.area.numbers
        with Pinned(units) as at:
            numbers[wanted.UNITS] = at  # bytes stay where they are, as long as they are
        numbers[wanted.UNITS_BEGIN], numbers[wanted.UNITS_END] = begin, self._end

    def is_short_behind(self, queue_offset: int) -> bool:
        """Whether so little is known behind that offset, which is known, that it is worth while to look again before others go by
        it: less than half of what may be kept, and the queue has more."""
        known = self._end - queue_offset
        return 2 * known < self.ahead_units and self._end < self.area.numbers[wanted.MAX_OFFSET]

    def place(self, queue_offset: int) -> int:
        """Where the record of a unit is that is known."""
        place: int = _PLACE.unpack_from(self._units, (queue_offset - self._begin) * UNIT_BYTES)[0]
        return place

    def has_file(self, segment: Segment) -> bool:
        """Whether this is the file that is known, and it is read as it was."""
        return self.file is segment and self._view is segment.view

    def note_file(self, segment: Segment) -> bool:
        """The records are in this file, if the library can read it: it is mapped, and stays at one place in memory, or it has a
        descriptor."""
        self.file = self._view = None
        address, view, descriptor = segment.address(), segment.view, segment.file.descriptor
        length = segment.end - segment.start
        if view is not None:
            if not address:
                return False
            with view.memory() as memory:
                length = len(memory)
        elif descriptor < 0:
            return False
        numbers = self.area.numbers
        numbers[wanted.FILE], numbers[wanted.FILE_LENGTH], numbers[wanted.FILE_BEGIN] = address, length, segment.start
        numbers[wanted.FILE_DESCRIPTOR] = descriptor
        self.file, self._view = segment, view
        return True
