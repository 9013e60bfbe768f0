"""Connections that stay with the carrier's thread for some milliseconds: it reads their pulls, and answers those that are like
some before, of one queue or several (`stays.c`). The loop does not read from them meanwhile, and gets back what is for it as if
it had come there.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from brokerd.native.library import Library
from brokerd.native.wanted import WantedArea
from remoting.disk import Held
from remoting.transport.carrying import Lender

MOST_STAYS: Final = 16  # stays.h has the same numbers
_LEFT_BYTES: Final = 2048
MOST_KINDS: Final = 16
LONGEST_NS: Final = 20_000_000  # so long counts what was looked at before


class File(Protocol):
    """A file of the log, mapped or not."""

    def hold(self) -> Held:
        """Have what it is read from stay until that is released."""


class ToldOfKind(NamedTuple):
    """What was done in a stay for requests of one kind: how much was given; where the last answer ends, and the last offset that
    was told to be committed, -1 for none; `misses` of the answers had no message; how long that took."""

    answers: int
    messages: int
    body_bytes: int
    next_offset: int
    commit_offset: int
    misses: int
    busy_ns: int


class Told(NamedTuple):
    """What was done in a stay, kind by kind. The last answer has `length` bytes, of which so many were written; so many that came
    are left."""

    kinds: tuple[ToldOfKind, ...]
    length: int
    written: int
    left: int

    @property
    def answers(self) -> int:
        return sum(each.answers for each in self.kinds)


class Kind(NamedTuple):
    """What some requests of a stay are like: the slot of those that were read (`struct slots` of `asked.h`) in which one of them
    is; what they want, of a file of the log that is seen, and what that refers to."""

    slot: int
    wanted: WantedArea
    file: File
    kept: tuple[object, ...]


class Stay(NamedTuple):
    """One with its number. What it reads from (`logs`), and what its kinds refer to, stays where it is until it is over; `told`
    then gets to know what was done."""

    number: int
    lender: Lender
    ticket: int
    kinds: Sequence[Kind]
    logs: Sequence[Held]
    told: Callable[[Told], None]


class Waiting(NamedTuple):
    """Answers to so many requests, which are to leave when all before `end` of the log is acknowledged. They wait since then, by
    the monotonic clock; so do so many messages, which are theirs or others'."""

    end: int
    answers: bytes
    requests: int
    since_ns: int
    messages: int


class Over(NamedTuple):
    """A stay that is over: `tell` what was done in it; the rest of the last answer, None when that cannot be made again; what
    was read and is to be taken yet; and what waits."""

    lender: Lender
    tell: Callable[[], None]
    rest: bytes | None
    left: bytes
    waiting: Sequence[Waiting] = ()


_KIND_NUMBERS: Final = 2  # stays.h: `struct kind_put`, `struct end` and `struct told`
_END_NUMBERS: Final = 3
_TOLD_NUMBERS: Final = len(ToldOfKind._fields)


class Stays:
    """Those of one carrier, which is at that address. All of it is the loop's."""

    def __init__(self, library: Library, carrier_at: int, made: bytearray) -> None:
        """`made` has room for an answer."""
        area, number = ctypes.c_void_p, ctypes.c_int64
        self._at = carrier_at
        self._put = library.function("native_stay_put", None, area, number, area, area, *(number,) * 4)
        self._look = library.function("native_stay_look", ctypes.c_int32, area, number, area, area, area)
        self._made = library.function("native_stay_made", number, area, number, area, number)
        self._recall = library.function("native_stay_recall", None, area, number)
        self._finish = library.function("native_stay_finish", None, area, number)
        self._kinds = array("q", bytes(8 * _KIND_NUMBERS * MOST_KINDS))
        self._end = array("q", bytes(8 * _END_NUMBERS))
        self._told = array("q", bytes(8 * _TOLD_NUMBERS * MOST_KINDS))
        self._left = bytearray(_LEFT_BYTES)
        self._kinds_at, self._end_at, self._told_at = (
            each.buffer_info()[0] for each in (self._kinds, self._end, self._told)
        )
        self._left_at = ctypes.addressof(ctypes.c_char.from_buffer(self._left))
        self._answer = made
        self._answer_at = ctypes.addressof(ctypes.c_char.from_buffer(made))
        self._free = list(range(MOST_STAYS))
        self._of: dict[Lender, Stay] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, lender: object) -> bool:
        return lender in self._of

    @property
    def have_room(self) -> bool:
        return bool(self._free)

    def begin(
        self,
        lender: Lender,
        descriptor: int,
        tickets: tuple[int, int],
        asked: ctypes.c_void_p,
        kinds: Sequence[Kind],
        told: Callable[[Told], None],
    ) -> None:
        """There is room. `tickets` are its own, which is the next piece's, and that of the piece before it, 0 for none. `asked`
        has the slots of the kinds, one to MOST_KINDS of them; the request before was of the first."""
        assert 0 < len(kinds) <= MOST_KINDS
        number = self._free.pop()
        own, before = tickets
        self._of[lender] = Stay(number, lender, own, kinds, [kind.file.hold() for kind in kinds], told)
        places = self._kinds
        for index, kind in enumerate(kinds):
            places[2 * index], places[2 * index + 1] = kind.slot, kind.wanted.at
        self._put(self._at, number, asked, self._kinds_at, len(kinds), descriptor, before - 1, LONGEST_NS)

    def recall_one(self, lender: Lender) -> None:
        """Have its stay be over soon."""
        self._recall(self._at, self._of[lender].number)

    def recall_all(self) -> None:
        """Likewise everybody's."""
        for stay in self._of.values():
            self._recall(self._at, stay.number)

    def recall(self, ticket: int) -> list[int]:
        """Likewise of all whose tickets are no later. Their numbers."""
        those = [stay.number for stay in self._of.values() if stay.ticket <= ticket]
        for number in those:
            self._recall(self._at, number)
        return those

    def finish(self, ticket: int) -> None:
        """Return when these are over; they are found by `over`."""
        for number in self.recall(ticket):
            self._finish(self._at, number)

    def over(self) -> Iterator[Over]:
        """Those that are over, which are forgotten behind this."""
        for lender, stay in list(self._of.items()):
            if not self._look(self._at, stay.number, self._end_at, self._told_at, self._left_at):
                continue
            told = Told(self._told_of(len(stay.kinds)), *self._end)
            yield Over(lender, partial(stay.told, told), self._rest(stay, told), bytes(self._left[: told.left]))
            del self._of[lender]
            self._free.append(stay.number)
            for log in stay.logs:
                log.release()

    def _told_of(self, count: int) -> tuple[ToldOfKind, ...]:
        """What was done of so many kinds."""
        numbers = self._told[: _TOLD_NUMBERS * count].tolist()
        return tuple(ToldOfKind(*numbers[at : at + _TOLD_NUMBERS]) for at in range(0, len(numbers), _TOLD_NUMBERS))

    def _rest(self, stay: Stay, told: Told) -> bytes | None:
        """Of its last answer, which is made again, and is not when it has a record that is no more what was stored."""
        if told.written == told.length:
            return b""
        if not self._made(self._at, stay.number, self._answer_at, len(self._answer)):
            return None
        return bytes(memoryview(self._answer)[told.written : told.length])
