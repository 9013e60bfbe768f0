"""Queues whose ends C knows, so that it puts entries of sends behind them (`brokerd/native/queue_tails.c`).

What it leaves is the twin's, `ConsumeQueues.apply`, or made ready for it here: a queue that it has not met or that has no room.
A queue's units in memory are in an area with room for more, which is made anew when that is used up, and stays when they are
written, as many will come again. A queue that C has met has its numbers in a row of an array that all such queues share; any
other has a row of its own.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Final, cast

from brokerd.native.library import Library
from brokerd.store.log.laid_out import LAID_OUT, LaidOut, QueueSlots
from brokerd.store.queues.consume_queue import ConsumeQueue, QueueFiles
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import Disk

# `struct tail` of queue_tails.c
_NEXT, _LAST, _AREA, _USED, _ROOM, _DIRTY = range(6)
_NUMBERS: Final = 6
_LEAST_ROOM: Final = 16 * UNIT_BYTES
_MOST_DOUBLED: Final = 1 << 14  # a larger area grows by a quarter, a much smaller one to four times its size
_MOST_KEPT: Final = 1 << 16  # a larger area is made anew at little cost a unit
_MOST_UNUSED: Final = 4  # an area is no more than so many times as large as what it was used for, to be kept
_MAX_SIZE: Final = (1 << 31) - 1


class NativeQueue(ConsumeQueue):
    """`number` is that of its row in the shared array, -1 while it has one of its own."""

    __slots__ = ("_area", "_at", "_row", "number")

    def __init__(self, topic: str, queue_id: int, files: QueueFiles, first_offset: int) -> None:
        self._row, self._at = array("q", bytes(8 * _NUMBERS)), 0
        self._area = bytearray()
        self.number = -1
        super().__init__(topic, queue_id, files, first_offset)

    @property
    def max_offset(self) -> int:
        return self._row[self._at]

    @max_offset.setter
    def max_offset(self, offset: int) -> None:
        self._row[self._at] = offset

    @property
    def last_physical(self) -> int:
        return self._row[self._at + _LAST]

    @last_physical.setter
    def last_physical(self, offset: int) -> None:
        self._row[self._at + _LAST] = offset

    @property
    def dirty(self) -> bool:
        return self._row[self._at + _DIRTY] != 0

    @dirty.setter
    def dirty(self, is_dirty: bool) -> None:
        self._row[self._at + _DIRTY] = is_dirty

    @property
    def tail(self) -> bytearray:
        return self._area[: self._row[self._at + _USED]]

    @tail.setter
    def tail(self, units: bytearray) -> None:
        self._put(units, len(units))

    def tail_part(self, begin: int, end: int | None = None) -> bytes:
        used = self._row[self._at + _USED]
        return bytes(self._area[begin : used if end is None else min(end, used)])

    def append(self, units: bytes, max_offset: int, last_physical: int) -> None:
        used = self._row[self._at + _USED]
        end = used + len(units)
        self.make_room(len(units))
        self._area[used:end] = units
        row, at = self._row, self._at
        row[at], row[at + _LAST], row[at + _USED] = max_offset, last_physical, end

    def make_room(self, size: int) -> None:
        """Have room for so many bytes of units."""
        used, room = self._row[self._at + _USED], self._row[self._at + _ROOM]
        if size > room - used:
            more = 3 * room if room < _MOST_DOUBLED // 4 else max(room // 4, min(room, _MOST_DOUBLED))
            self._put(self._area[:used], max(room + more, used + size))

    def drop(self, size: int) -> None:
        row, at, area = self._row, self._at, self._area
        used = row[at + _USED]
        units = area[size:used]
        if row[at + _ROOM] <= min(_MOST_KEPT, _MOST_UNUSED * used):
            area[: len(units)] = units
            row[at + _USED] = len(units)
        else:
            self._put(units, len(units))

    def _put(self, units: bytearray, room: int) -> None:
        """Have these units, and room for so many bytes of them."""
        row, at, used = self._row, self._at, len(units)
        room = max(room, _LEAST_ROOM) if room else 0
        self._area = area = bytearray(room)
        area[:used] = units
        # Its size never changes, so it stays where it is
        row[at + _AREA] = ctypes.addressof(ctypes.c_char.from_buffer(area)) if room else 0
        row[at + _USED], row[at + _ROOM] = used, room

    def move_to(self, row: array[int], number: int) -> None:
        """Have the row of that number in the array; -1: the row of an array with no other."""
        at = max(0, number) * _NUMBERS
        row[at : at + _NUMBERS] = self._row[self._at : self._at + _NUMBERS]
        self._row, self._at, self.number = row, at, number


class _Apply(ctypes.Structure):
    _fields_ = (
        ("units", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("count", "at")),
        ("numbers", ctypes.c_void_p),
        ("slots", ctypes.c_int64),
        ("tails", ctypes.c_void_p),
        ("tails_count", ctypes.c_int64),
        ("dirty", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dirty_count", "messages")),
    )


class NativeTails:
    """The queues that C knows."""

    def __init__(self, library: Library) -> None:
        self._apply = library.function("native_apply_units", None, ctypes.c_void_p)
        self._rows = array("q")
        self._queues: list[NativeQueue | None] = []
        self._free: list[int] = []
        self.holder = object()  # of numbers that somebody has of queues; another one when a queue has gone
        self._dirty = array("q")
        self._call = _Apply()
        self._call_at = ctypes.addressof(self._call)

    def apply(self, entries: LaidOut, first: int) -> tuple[int, int, list[NativeQueue]]:
        """Put the entries from one on behind their queues: the first that is left, how many messages are in place, and which
        queues became dirty."""
        call, count = self._call, len(entries)
        if len(self._dirty) < count:
            self._dirty = array("q", bytes(8 * count))
        numbers = entries.slots.tails.of(self.holder)
        call.units, call.count, call.at = entries.content, count, first
        call.numbers, call.slots = numbers.buffer_info()
        call.tails, call.tails_count = self.rows()
        call.dirty = self._dirty.buffer_info()[0]
        call.dirty_count = call.messages = 0
        self._apply(self._call_at)
        return call.at, call.messages, self.queues(self._dirty[: call.dirty_count])

    def rows(self) -> tuple[int, int]:
        """Where what C knows of queues is, and of how many."""
        return self._rows.buffer_info()[0], len(self._queues)

    def queues(self, numbers: array[int]) -> list[NativeQueue]:
        """Those of the numbers."""
        return [queue for number in numbers if (queue := self._queues[number]) is not None]

    def meet(self, queue: ConsumeQueue, entries: LaidOut, index: int) -> None:
        """That queue is the entry's, and is to have room for it."""
        entries.slots.tails.of(self.holder)[entries.slot_of(index)] = number = self.number_of(queue)
        self.make_room(number, entries[index][7])

    def number_of(self, queue: ConsumeQueue) -> int:
        """The queue's number; from now on C knows it."""
        assert isinstance(queue, NativeQueue), "C knows the ends of all queues or of none"
        if queue.number < 0:
            queue.move_to(self._rows, self._new_number(queue))
        return queue.number

    def make_room(self, number: int, count: int) -> None:
        """Have room for so many units behind the queue of that number."""
        queue = self._queues[number]
        assert queue is not None, "a number is that of a queue"
        queue.make_room(count * UNIT_BYTES)

    def forget(self, queue: ConsumeQueue) -> None:
        """The queue is gone; who has it may still ask it."""
        if isinstance(queue, NativeQueue) and queue.number >= 0:
            number = queue.number
            queue.move_to(array("q", bytes(8 * _NUMBERS)), -1)
            self._queues[number] = None
            self._free.append(number)
            self.holder = object()

    def _new_number(self, queue: NativeQueue) -> int:
        if self._free:
            number = self._free.pop()
            self._queues[number] = queue
            return number
        self._queues.append(queue)
        self._rows.extend([0] * _NUMBERS)
        return len(self._queues) - 1


def tails_agree(library: Library) -> bool:
    """Whether entries are put behind queues as they say, and others left: of no such queue, of another offset, without room."""
    tails, slots = NativeTails(library), QueueSlots(["T"], [("T", number) for number in range(3)])
    files = QueueFiles(cast("Disk", None), 1, 1)  # nothing looks at them
    queues = [NativeQueue(*key, files, 5) for key in slots.keys]
    rows = (
        (0, 5, 1000, 90, -7, 3),
        (1, 5, 1270, 100, 1 << 40, 1),
        (0, 8, 1370, _MAX_SIZE, 0, 20),
        (2, 6, 1 << 62, 90, 1, 1),
    )
    entries = LaidOut(b"".join(LAID_OUT.pack(0, row[0], *row) for row in rows), slots, 0)
    found, at = [], 0
    for _ in range(5):
        at, messages, dirty = tails.apply(entries, at)
        found.append((at, messages, len(dirty)))
        tails.meet(queues[rows[at][0]], entries, at)
    units = [b"", b"", b""]
    for queue, _, place, size, code, count in rows[:3]:
        units[queue] += b"".join(UNIT.pack(place + n * size, size, code) for n in range(count))
    return (
        found == [(0, 0, 0), (1, 3, 1), (2, 1, 1), (3, 20, 0), (3, 0, 0)]
        and [bytes(queue.tail) for queue in queues] == units
        and [(queue.max_offset, queue.last_physical, queue.dirty) for queue in queues]
        == [(8 + 20, 1370 + 19 * _MAX_SIZE, True), (6, 1270, True), (5, -1, False)]
    )
