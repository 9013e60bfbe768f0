"""Timers into the timer log and the wheel, many at once, by `brokerd/native/timer_notes.c`.

`PendingTimers.put` says what is right.
"""

from __future__ import annotations

import ctypes
from array import array
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.timers.files.layout import RECORD_BYTES
from brokerd.timers.said import Said


class _Link(ctypes.Structure):
    _fields_ = (
        ("wheel", ctypes.c_void_p),
        ("slots", ctypes.c_int64),
        ("least_slot_ms", ctypes.c_int64),
        ("topic_hashes", ctypes.c_void_p),
        ("queue_offset", ctypes.c_int64),
        ("position", ctypes.c_int64),
        ("records", ctypes.c_void_p),
        ("touched", ctypes.c_void_p),
        ("first_slot_ms", ctypes.c_int64),
        ("last_slot_ms", ctypes.c_int64),
    )


class Linked(NamedTuple):
    """The records for the timer log; which places of the wheel were written, and of them the first slot (ms) and the last."""

    records: bytes
    places: array[int]
    first_slot_ms: int
    last_slot_ms: int


class Place(NamedTuple):
    """Where timers are put: the first one's entry in the queue, its record in the timer log, and the first slot that is alive."""

    queue_offset: int
    position: int
    least_slot_ms: int


class NativeLink:
    """By the library."""

    def __init__(self, library: Library) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._link: Final = library.function("native_timer_link", number, pointer, pointer, number)

    def __call__(
        self, wheel: memoryview, slots: int, said: Said, hashes: array[int], place: Place, count: int
    ) -> Linked | None:
        """Put the first timers of those in the wheel, `count` at most, up to one whose slot's place is taken; None for none.
        `hashes` are the topics'."""
        records, touched = bytearray(RECORD_BYTES * count), array("q", bytes(8 * count))
        with Pinned(wheel) as slots_at, Pinned(records) as records_at:
            link = _Link(
                *(slots_at, slots, place.least_slot_ms, hashes.buffer_info()[0], place.queue_offset, place.position),
                *(records_at, touched.buffer_info()[0]),
            )
            put: int = self._link(ctypes.addressof(link), said.rows.buffer_info()[0], count)
        if not put:
            return None
        return Linked(bytes(records[: RECORD_BYTES * put]), touched[:put], link.first_slot_ms, link.last_slot_ms)
