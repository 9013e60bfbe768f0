"""A pull's answer as it is sent, head and records, made at once from a queue's units and the mapped log.

In C (`native/pulls.c`) records are copied once, checked where they were copied to, and left behind their head. What of an answer
is not of the usual form, or not as it was stored, is left to the reads of the store, which say what is right. `laid_out` is the
same in Python.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.processors.pulling.terms import MAX_BYTES, MAX_MESSAGES
from brokerd.store.log.record_checks import examples, first_bad
from brokerd.store.store_reads import Window
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting import codes, frame
from remoting.record.layout import RECORD_OVERHEAD_BYTES

_HEAD_BYTES: Final = 512
_WANTED: Final = struct.Struct("=18q")
_FOUND: Final = 3  # numbers behind them
_NUMBER_BYTES: Final = 8
_LEFT: Final = -1


class Wanted(NamedTuple):
    """Which messages of a window, from `queue_offset` on, and what else the answer says: where to read the next, and where if
    what is read now ends below a position of the log."""

    queue_offset: int
    max_count: int
    max_bytes: int
    opaque: int
    group_sys_flag: int
    next_broker: int
    next_broker_when_far: int
    far_below: int


class LaidOut(NamedTuple):
    """The answer, and how many messages and bytes it gives. No answer: none of the messages up to `next_offset` is wanted."""

    frame: bytes
    messages: int
    body_bytes: int
    next_offset: int


class AnswerLayout:
    """Makes answers in C."""

    def __init__(self, library: Library) -> None:
        pointer = ctypes.c_void_p
        self._call = library.function("native_pull_answer", ctypes.c_int64, pointer, ctypes.c_char_p, pointer)
        out, area = bytearray(MAX_BYTES + _HEAD_BYTES), bytearray(_WANTED.size + _FOUND * _NUMBER_BYTES)
        self._areas = out, area  # to keep them where they are
        self._out_at, self._area_at = map(_address_of, self._areas)
        self._area, self._out = area, memoryview(out)
        self._found = memoryview(area)[_WANTED.size :].cast("q")

    def lay_out(self, window: Window, wanted: Wanted, tags: array[int] | None) -> LaidOut | None:
        """The answer; None for what is left to others. `tags` are codes in order; None: all messages are wanted."""
        min_offset, max_offset, units, log, log_begin = window
        queue_offset, max_count, max_bytes, opaque, group_sys_flag, *brokers = wanted
        tags_at, tag_count = (None, -1) if tags is None else tags.buffer_info()
        with log, Pinned(log) as log_at:
            place = log_at, len(log), log_begin, self._out_at, len(self._out), len(units) // UNIT_BYTES, queue_offset
            limits = max_count, max_bytes, tag_count, min_offset, max_offset
            _WANTED.pack_into(self._area, 0, *place, *limits, opaque, group_sys_flag, codes.VERSION, *brokers)
            length: int = self._call(self._area_at, units, tags_at)
        if length == _LEFT:
            return None
        messages, body_bytes, next_offset = self._found
        return LaidOut(bytes(self._out[:length]), messages, body_bytes, next_offset)


def laid_out(window: Window, wanted: Wanted, tags: Sequence[int] | None) -> LaidOut | None:
    """The same in Python."""
    chosen, next_offset = _choose(window.units, wanted, tags)
    if any(size < RECORD_OVERHEAD_BYTES for _, size, _ in chosen):
        return None
    if not chosen:
        return LaidOut(b"", 0, 0, next_offset)
    total = sum(size for _, size, _ in chosen)
    if total > MAX_BYTES:
        return None
    with window.log as log:
        places = [(offset - window.log_begin, size) for offset, size, _ in chosen]
        if not all(0 <= at <= len(log) - size for at, size in places):
            return None
        body = b"".join(log[at : at + size] for at, size in places)
    if first_bad(body, chosen, b"") is not None:
        return None
    last, last_size, _ = chosen[-1]
    is_far = last + last_size < wanted.far_below
    ext = {
        "suggestWhichBrokerId": str(wanted.next_broker_when_far if is_far else wanted.next_broker),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(window.min_offset),
        "maxOffset": str(window.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": str(wanted.group_sys_flag),
    }
    answer = frame.encode_response(codes.SUCCESS, wanted.opaque, ext, body, "FOUND")
    return LaidOut(answer, len(chosen), total, next_offset)


def _choose(units: bytes, wanted: Wanted, tags: Sequence[int] | None) -> tuple[list[Unit], int]:
    """The units of the messages that are given, and where to go on. One that can be no record's is the last of them."""
    chosen: list[Unit] = []
    total, next_offset = 0, wanted.queue_offset
    for unit in UNIT.iter_unpack(units):
        _, size, code = unit
        if size != BLANK_SIZE and (tags is None or code in tags):
            if size < RECORD_OVERHEAD_BYTES:
                return [*chosen, unit], next_offset
            total += size
            if chosen and total > wanted.max_bytes:
                break
            chosen.append(unit)
        next_offset += 1
        if len(chosen) == wanted.max_count:
            break
    return chosen, next_offset


def _address_of(area: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def layout_agrees(library: Library) -> bool:
    """Whether the library makes the answers that Python makes: of all records, of some by their tags, of none; and leaves what is
    cut off or changed."""
    lay_out = AnswerLayout(library).lay_out
    for record in examples():
        size = len(record)
        units = UNIT.pack(0, size, -7) + UNIT.pack(0, BLANK_SIZE, 0) + UNIT.pack(0, size, 7)
        for log in (record, record[:-1], record[:-1] + b"x", bytes(9) + record):
            for tags in (None, array("q"), array("q", (-7, 7)), array("q", (7,)), array("q", (8,))):
                for most in ((MAX_MESSAGES, MAX_BYTES), (1, MAX_BYTES), (MAX_MESSAGES, size)):
                    for begin, far_below in ((0, 0), (0, 1 << 40), (-9, 0), (5, 0)):
                        wanted = Wanted(3, *most, -5, 1, 0, 2, far_below)
                        windows = [Window(0, 9, units, memoryview(log), begin) for _ in range(2)]
                        if lay_out(windows[0], wanted, tags) != laid_out(windows[1], wanted, tags):
                            return False
    return True
