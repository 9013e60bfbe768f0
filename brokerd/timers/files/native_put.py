"""New records of the timer log, many at once: `pending.PendingTimers.put` over `brokerd/native/due.c`."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import starmap
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.store.unit import UNIT, Unit
from brokerd.timers.codes import MESSAGE, SLOT_MS, encode_code
from brokerd.timers.files.layout import (
    MAGIC,
    MAGIC_ROLL,
    NO_POSITION,
    RECORD_BYTES,
    SLOT,
    SLOT_BYTES,
    TimerRecord,
    encode_record,
    slot_for,
)
from brokerd.timers.files.source import Origin

_SLOTS: Final = 4  # of the wheel of the check


class New(NamedTuple):
    """Messages of queue offsets from the first on, whose records will stand from a position of the timer log on."""

    units: Sequence[Unit]
    first_offset: int
    position: int
    origins: Sequence[Origin]


class Put(NamedTuple):
    """What was put: the records, where in the wheel their slots are, and the first and the last of these (ms)."""

    messages: int
    records: bytes
    places: Sequence[int]
    least_ms: int
    largest_ms: int


class _Putting(ctypes.Structure):
    _fields_ = (
        ("wheel", ctypes.c_void_p),
        ("slots", ctypes.c_int64),
        ("passed_ms", ctypes.c_int64),
        ("units", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("count", "first_offset", "position")),
        *((name, ctypes.c_void_p) for name in ("stored_ms", "topic_hash", "is_leg", "out", "places")),
        *((name, ctypes.c_int64) for name in ("least_ms", "largest_ms")),
    )


class NativePut:
    """By the library."""

    def __init__(self, library: Library) -> None:
        self._put = library.function("native_due_put", ctypes.c_int64, ctypes.c_void_p)

    def __call__(self, image: memoryview, slots: int, passed_ms: int, new: New) -> Put:
        """Put messages into the wheel of that image, in which slots before `passed_ms` are free: as many as come before one that
        has no free slot."""
        units, first_offset, position, origins = new
        count = len(units)
        records, places = bytearray(RECORD_BYTES * count), array("q", bytes(8 * count))
        columns = [array("q", column) for column in zip(*(each[:3] for each in origins), strict=True)]
        topic_hash, stored_ms, is_leg = (column.buffer_info()[0] for column in columns)
        putting = _Putting(
            wheel=ctypes.addressof(ctypes.c_char.from_buffer(image)),
            slots=slots,
            passed_ms=passed_ms,
            units=b"".join(starmap(UNIT.pack, units)),
            count=count,
            first_offset=first_offset,
            position=position,
            stored_ms=stored_ms,
            topic_hash=topic_hash,
            is_leg=is_leg,
            out=ctypes.addressof(ctypes.c_char.from_buffer(records)),
            places=places.buffer_info()[0],
        )
        done = self._put(ctypes.addressof(putting))
        return Put(done, bytes(records[: RECORD_BYTES * done]), places[:done], putting.least_ms, putting.largest_ms)


def put_agrees(library: Library) -> bool:
    """Whether the library makes records and slots as Python does, and ends before a slot that is taken."""
    slots, times = _SLOTS, (5_000, 4_001, 1, 9_001, 12_001, (1 << 51) + 2_000, 6_500)
    units = [(100 * n, 90 + n, encode_code(due_ms, MESSAGE)) for n, due_ms in enumerate(times)]
    origins = [Origin(7 - n, 4_000 + (n << 40), n % 2 > 0) for n in range(len(times))]
    image, taken, passed_ms = bytearray(slots * SLOT_BYTES), 6, 5_000
    SLOT.pack_into(image, 2 * SLOT_BYTES, 10, 3, 4, 5, 0)  # another round, to which the last one has to give way
    SLOT.pack_into(image, 0, 4, 52, 104, 2, 0)  # it has some already
    wanted, records = bytearray(image), b""
    for n, ((offset, size, _), due_ms, origin) in enumerate(zip(units[:taken], times, origins, strict=False)):
        slot_ms, position = slot_for(due_ms), 520 + n * RECORD_BYTES
        at = slot_ms // SLOT_MS % slots * SLOT_BYTES
        time, first, last, messages, _ = SLOT.unpack_from(wanted, at)
        if time != slot_ms // SLOT_MS:
            first, last, messages = position, NO_POSITION, 0
        SLOT.pack_into(wanted, at, slot_ms // SLOT_MS, first, position, messages + 1, 0)
        magic = MAGIC | (MAGIC_ROLL if origin.is_leg else 0)
        record = TimerRecord(last, magic, due_ms, offset, size, 30 + n)
        records += encode_record(record, origin.stored_ms, origin.topic_hash)
    found = NativePut(library)(memoryview(image), slots, passed_ms, New(units, 30, 520, origins))
    return (found.messages, found.records, bytes(image)) == (taken, records, bytes(wanted))
