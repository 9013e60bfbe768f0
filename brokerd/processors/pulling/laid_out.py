"""A pull's answer as it is sent, head and records, made at once from a queue's units and the mapped log.

In C (`native/pulls.c`) an answer is prepared, which takes a microsecond: its messages are chosen and its head is written. Then it
is made: records are copied once, checked where they were copied to, and left behind their head. That may be done beside the loop
(`native/carrier.py`). What of an answer is not of the usual form, or not as it was stored, is left to the reads of the store,
which say what is right. `laid_out` is both in Python.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.native.carrier import NOT_LENT, Carrier
from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.processors.pulling.terms import MAX_BYTES, MAX_MESSAGES
from brokerd.store.log.record_checks import examples, first_bad
from brokerd.store.store_reads import Window
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting import codes, frame
from remoting.record.layout import RECORD_OVERHEAD_BYTES
from remoting.transport.connection import RemotingConnection

_HEAD_BYTES: Final = 512
_WANTED: Final = struct.Struct("=17q")
_ANSWER_BYTES: Final = 1840  # pulls.h: `struct answer`
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


class Given(NamedTuple):
    """An answer that was given, or prepared: how many messages and bytes. None: none of those up to `next_offset` is wanted."""

    messages: int
    body_bytes: int
    next_offset: int
    min_offset: int
    max_offset: int


class LaidOut(NamedTuple):
    """An answer as it is sent, which is nothing when none of the messages is wanted."""

    frame: bytes
    given: Given

    @property
    def messages(self) -> int:
        return self.given.messages


class AnswerLayout:
    """Makes answers in C, and has the carrier send them where there is one."""

    def __init__(self, library: Library, carrier: Carrier | None = None) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._carrier = carrier
        self._prepared = library.function("native_pull_prepared", number, pointer, ctypes.c_char_p, pointer, pointer)
        self._made = library.function("native_pull_made", number, pointer, pointer, number)
        out, area = bytearray(MAX_BYTES + _HEAD_BYTES), bytearray(_WANTED.size + _FOUND * _NUMBER_BYTES)
        self._areas = out, area, bytearray(_ANSWER_BYTES)  # to keep them where they are
        self._out_at, self._area_at, self._answer_at = map(_address_of, self._areas)
        self._area, self._out = area, memoryview(out)
        self._found = memoryview(area)[_WANTED.size :].cast("q")

    def give(
        self,
        connection: RemotingConnection,
        window: Window,
        wanted: Wanted,
        tags: array[int] | None,
        failed: Callable[[], None],
    ) -> Given | None:
        """Have the connection get the answer, if one of the messages is wanted: at once, or soon. None for what is left to
        others; of that nothing was sent. When it is found out later, `failed` is called."""
        log, address, carrier = window.log, window.address, self._carrier
        if not address or carrier is None:
            made = self.lay_out(window, wanted, tags)
            if made is None:
                return None
            if made.messages:
                connection.respond_encoded(made.frame, 1)
            return made.given
        length = self._prepare_at(address, window, wanted, tags)
        if length == _LEFT:
            log.release()
            return None
        given = self._given(window)
        if length and carrier.carry(connection, self._answer_at, length, log, failed):
            return given
        with log:
            if length:
                sent = carrier.send(connection, self._answer_at, length)
                if sent == NOT_LENT and (answer := self._make()):
                    connection.respond_encoded(answer, 1)
                elif sent < 0:
                    return None
        return given

    def lay_out(self, window: Window, wanted: Wanted, tags: array[int] | None) -> LaidOut | None:
        """The answer; None for what is left to others. `tags` are codes in order; None: all messages are wanted."""
        with window.log as log, Pinned(log) as log_at:
            length = self._prepare_at(log_at, window, wanted, tags)
            answer = self._make() if length > 0 else b""
        if length == _LEFT or len(answer) != length:
            return None
        return LaidOut(answer, self._given(window))

    def _given(self, window: Window) -> Given:
        messages, body_bytes, next_offset = self._found
        return Given(messages, body_bytes, next_offset, window.min_offset, window.max_offset)

    def _make(self) -> bytes:
        """What is prepared; nothing when it is not what was stored."""
        return bytes(self._out[: self._made(self._answer_at, self._out_at, len(self._out))])

    def _prepare_at(self, log_at: int, window: Window, wanted: Wanted, tags: array[int] | None) -> int:
        min_offset, max_offset, units, log, log_begin, _ = window
        queue_offset, max_count, max_bytes, opaque, group_sys_flag, near, far, far_below = wanted
        tags_at, tag_count = (None, -1) if tags is None else tags.buffer_info()
        _WANTED.pack_into(
            self._area,
            0,
            log_at,
            len(log),
            log_begin,
            len(self._out),
            len(units) // UNIT_BYTES,
            queue_offset,
            max_count,
            max_bytes,
            tag_count,
            min_offset,
            max_offset,
            opaque,
            group_sys_flag,
            codes.VERSION,
            near,
            far,
            far_below,
        )
        length: int = self._prepared(self._area_at, units, tags_at, self._answer_at)
        return length


def laid_out(window: Window, wanted: Wanted, tags: Sequence[int] | None) -> LaidOut | None:
    """The same in Python."""
    chosen, next_offset = _choose(window.units, wanted, tags)
    if any(size < RECORD_OVERHEAD_BYTES for _, size, _ in chosen):
        return None
    if not chosen:
        return LaidOut(b"", Given(0, 0, next_offset, window.min_offset, window.max_offset))
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
    return LaidOut(answer, Given(len(chosen), total, next_offset, window.min_offset, window.max_offset))


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
