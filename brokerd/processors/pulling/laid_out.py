"""A pull's answer as it is sent, head and records, made at once from a queue's units and files of the log.

In C (`native/pulls.c`) an answer is prepared, which takes a microsecond: its messages are chosen and its head is written. Then it
is made: records are copied once, checked where they were copied to, and left behind their head. That may be done beside the loop
(`native/carrier.py`). What of an answer is not of the usual form, or not as it was stored, is left to the reads of the store,
which say what is right. `laid_out` is both in Python.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.consuming.read_place import ReadPlace
from brokerd.native.carrier import LEFT, NOT_LENT, NOT_MADE, NOTHING_WANTED, Carrier, Failed
from brokerd.native.library import Library
from brokerd.native.memory import Pinned
from brokerd.native.stays import Kind, Told
from brokerd.native.wanted import FILE, FILE_BEGIN, FILE_LENGTH, IS_SHORT, LATER, OPAQUE, QUEUE_OFFSET
from brokerd.processors.pulling.standing import MASTERS, ROOM, Given, Standing
from brokerd.processors.pulling.terms import MAX_BYTES, MAX_MESSAGES, PullTerms
from brokerd.store.log.record_checks import examples, first_bad
from brokerd.store.store_reads import StoreReads, Window
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting import codes, frame
from remoting.record.layout import RECORD_OVERHEAD_BYTES
from remoting.transport.connection import RemotingConnection

_ANSWER_BYTES: Final = 1840  # pulls.h: `struct answer`
_LEFT: Final = -1
_LOOKS: Final = 3  # at a queue and the log, for one answer


class Wanted(NamedTuple):
    """Which messages of a window, from `queue_offset` on, and what else the answer says: where to read the next, where if what is
    read now ends below a position of the log, and where if none is wanted."""

    queue_offset: int
    max_count: int
    max_bytes: int
    opaque: int
    group_sys_flag: int
    next_broker: int
    next_broker_when_far: int
    far_below: int
    next_broker_when_none: int


class Asking(NamedTuple):
    """A request, and who is to be answered."""

    connection: RemotingConnection
    opaque: int
    terms: PullTerms
    offset: int


class LaidOut(NamedTuple):
    """An answer as it is sent; when none of the messages is wanted, it says so, and where to go on."""

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
        self._prepared = library.function("native_pull_prepared", number, pointer, ctypes.c_char_p, pointer)
        self._prepared_seen = library.function("native_pull_prepared_seen", number, pointer, pointer)
        self._none = library.function("native_pull_none", number, pointer, pointer)
        self._made = library.function("native_pull_made", number, pointer, pointer, number)
        out = bytearray(ROOM)
        self._areas = out, bytearray(_ANSWER_BYTES)  # to keep them where they are
        self._out_at, self._answer_at = map(_address_of, self._areas)
        self._out = memoryview(out)
        self._once = Standing()  # for requests that are decoded each time

    def give(
        self, reads: StoreReads, place: ReadPlace, request: Asking, failed: Callable[..., None]
    ) -> Standing | None:
        """Have the connection get the answer, if one of the messages is wanted: at once, or soon. What was `given`; None for what
        is left to others; of that, and without a message, nothing was sent. When it is found out later, `failed` is called with
        the request."""
        connection, opaque, terms, offset = request
        carrier, config = self._carrier, terms.group_config
        brokers = MASTERS
        if place.settings.value.slave_read:
            brokers = place.suggestions(config.read_broker_id, config.read_broker_id_when_slow)
        if carrier is None:
            wanted = Wanted(offset, terms.max_count, terms.max_bytes, opaque, config.group_sys_flag, *brokers)
            return self._give_alone(connection, reads, terms, wanted)
        standing = terms.standing
        if standing is None:
            standing = self._once
            terms.stand(standing)
        sight = standing.sight
        if not reads.sees(sight, offset) or sight.file is None:
            return None
        if standing.brokers != brokers:
            standing.suggest(brokers)
        numbers = standing.area.numbers
        numbers[QUEUE_OFFSET], numbers[OPAQUE] = offset, opaque
        for _ in range(_LOOKS):
            done = carrier.give(connection, standing.area, sight.file, Failed(failed, request))
            if done == NOT_LENT:
                done = self._give_behind(connection, standing)
            if done >= NOTHING_WANTED and done != NOT_MADE:
                return standing
            if done != LEFT or not self._look_again(reads, standing, offset):
                break
        return None

    def _look_again(self, reads: StoreReads, standing: Standing, offset: int) -> bool:
        """Whether more is seen than what was not enough: of the queue, or of the log, where all that is wanted is in another
        file."""
        numbers = standing.area.numbers
        if numbers[IS_SHORT]:
            return reads.sees_further(standing.sight, offset)
        return numbers[LATER] >= 0 and reads.sees_place(standing.sight, numbers[LATER])

    def none_of(self, looked_at: Standing) -> bytes:
        """The answer to who wants none of the messages that were looked at just now."""
        self._none(looked_at.area.pointer, self._answer_at)
        return self._make()

    def kind_of(self, reads: StoreReads, given: Standing, slot: int) -> Kind | None:
        """What the carrier's thread needs to know to answer more requests like the one in that slot, of what was `given` and seen
        in this turn: where there is one, and it is worth while."""
        file = given.sight.file
        if self._carrier is None or file is None or reads.prefers_cold or not given.has_more:
            return None
        return Kind(slot, given.area, file, given.kept)

    def kind_seen(
        self, reads: StoreReads, place: ReadPlace, terms: PullTerms, slot: int, queue_offset: int
    ) -> Kind | None:
        """The same of requests that were asked before, and may go on at that offset, as what is there is seen now; None where
        nothing is seen. Raises CorruptedFile likewise."""
        standing, config = terms.standing, terms.group_config
        if standing is None or not reads.sees(standing.sight, queue_offset):
            return None
        sight = standing.sight
        if sight.is_short_behind(queue_offset) and not reads.sees_further(sight, queue_offset):
            return None
        if sight.file is None:
            return None
        brokers = MASTERS
        if place.settings.value.slave_read:
            brokers = place.suggestions(config.read_broker_id, config.read_broker_id_when_slow)
        if standing.brokers != brokers:
            standing.suggest(brokers)
        return Kind(slot, standing.area, sight.file, standing.kept)

    def have_stay(
        self,
        connection: RemotingConnection,
        asked: ctypes.c_void_p,
        kinds: Sequence[Kind],
        told: Callable[[Told], None],
    ) -> bool:
        """Whether the carrier's thread answers what the connection asks of these kinds, of which there are some. `told` gets to
        know what came of it."""
        return self._carrier is not None and self._carrier.have_stay(connection, asked, kinds, told)

    def recall_stays(self) -> None:
        """Have all that stay there come back; what comes from now on is answered by what is looked at then."""
        if self._carrier is not None:
            self._carrier.recall_stays()

    def take_stays_back(self) -> None:
        """The same, and return when they are back, and all is told."""
        if self._carrier is not None:
            self._carrier.take_stays_back()

    def _give_behind(self, connection: RemotingConnection, standing: Standing) -> int:
        """The same behind what the connection has to send: what came of it, as of the carrier."""
        length: int = self._prepared_seen(standing.area.pointer, self._answer_at)
        if length <= 0:
            return LEFT if length == _LEFT else NOTHING_WANTED
        answer = self._make()
        if not answer:
            return NOT_MADE
        connection.respond_encoded(answer, 1)
        return length

    def _give_alone(
        self, connection: RemotingConnection, reads: StoreReads, terms: PullTerms, wanted: Wanted
    ) -> Standing | None:
        """The same where nobody but the connection writes to its socket."""
        window = reads.window(terms.topic, terms.queue_id, wanted.queue_offset, terms.most_units)
        made = None if window is None else self.lay_out(window, wanted, terms.tags)
        if made is None:
            return None
        if made.messages:
            connection.respond_encoded(made.frame, 1)
        return self._once

    def lay_out(self, window: Window, wanted: Wanted, tags: array[int] | None) -> LaidOut | None:
        """The answer; None for what is left to others. `tags` are codes in order; None: all messages are wanted."""
        standing = self._once
        area = standing.area
        self._want(standing, window, wanted, tags)
        with window.log as log, Pinned(log) as log_at:
            area.numbers[FILE], area.numbers[FILE_LENGTH], area.numbers[FILE_BEGIN] = log_at, len(log), window.log_begin
            length = self._prepared(area.pointer, window.units, self._answer_at) or self._none(
                area.pointer, self._answer_at
            )
            answer = self._make() if length > 0 else b""
        standing.sight.forget()
        if length == _LEFT or len(answer) != length:
            return None
        return LaidOut(answer, standing.given)

    def _want(self, standing: Standing, window: Window, wanted: Wanted, tags: array[int] | None) -> None:
        """That, of this window, whose log is to be told yet."""
        count = len(window.units) // UNIT_BYTES
        standing.ask(count, wanted.max_count, wanted.max_bytes, tags, wanted.group_sys_flag)
        standing.suggest(
            (wanted.next_broker, wanted.next_broker_when_far, wanted.far_below, wanted.next_broker_when_none)
        )
        standing.see(wanted.queue_offset, count, window.min_offset, window.max_offset)
        numbers = standing.area.numbers
        numbers[QUEUE_OFFSET], numbers[OPAQUE] = wanted.queue_offset, wanted.opaque

    def _make(self) -> bytes:
        """What is prepared; nothing when it is not what was stored."""
        return bytes(self._out[: self._made(self._answer_at, self._out_at, len(self._out))])


def laid_out(window: Window, wanted: Wanted, tags: Sequence[int] | None) -> LaidOut | None:
    """The same in Python."""
    chosen, next_offset = _choose(window.units, window.log_begin + len(window.log), wanted, tags)
    if any(size < RECORD_OVERHEAD_BYTES for _, size, _ in chosen):
        return None
    if not chosen:
        ext = _fields(window, wanted, wanted.next_broker_when_none, next_offset)
        answer = frame.encode_response(codes.PULL_RETRY_IMMEDIATELY, wanted.opaque, ext, remark="NO_MATCHED_MESSAGE")
        return LaidOut(answer, Given(0, 0, next_offset, window.min_offset, window.max_offset))
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
    ext = _fields(window, wanted, wanted.next_broker_when_far if is_far else wanted.next_broker, next_offset)
    answer = frame.encode_response(codes.SUCCESS, wanted.opaque, ext, body, "FOUND")
    return LaidOut(answer, Given(len(chosen), total, next_offset, window.min_offset, window.max_offset))


def _fields(window: Window, wanted: Wanted, next_broker: int, next_offset: int) -> dict[str, str]:
    return {
        "suggestWhichBrokerId": str(next_broker),
        "nextBeginOffset": str(next_offset),
        "minOffset": str(window.min_offset),
        "maxOffset": str(window.max_offset),
        "topicSysFlag": "0",
        "groupSysFlag": str(wanted.group_sys_flag),
    }


def _choose(units: bytes, file_end: int, wanted: Wanted, tags: Sequence[int] | None) -> tuple[list[Unit], int]:
    """The units of the messages that are given, up to the first that is in a later file than others, and where to go on. One that
    can be no record's is the last of them."""
    chosen: list[Unit] = []
    total, next_offset = 0, wanted.queue_offset
    for unit in UNIT.iter_unpack(units):
        place, size, code = unit
        if size != BLANK_SIZE and (tags is None or code in tags):
            if size < RECORD_OVERHEAD_BYTES:
                return [*chosen, unit], next_offset
            total += size
            if chosen and (total > wanted.max_bytes or place >= file_end):
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
                        wanted = Wanted(3, *most, -5, 1, 0, 2, far_below, 3)
                        windows = [Window(0, 9, units, memoryview(log), begin) for _ in range(2)]
                        if lay_out(windows[0], wanted, tags) != laid_out(windows[1], wanted, tags):
                            return False
    return True
