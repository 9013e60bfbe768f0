"""The thread in C that writes answers to sockets while the loop goes on (`carrier.c`), for who answers many connections at once.

A connection is lent for one piece at a time (`RemotingConnection.lend`): until that is done nothing else is written to it, and
its descriptor stays open. So pieces leave in order, and none goes to a descriptor that is another one's by now. What a socket
does not take goes back to the connection, which sends it as it sends everything else.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from brokerd.native.library import Library
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection

LEAST_PIECES: Final = 4  # for fewer, waking the thread costs more than it spares
_PIECES: Final = 4096  # carrier.c has the same number
_MOST_BYTES: Final = 4 * 1024 * 1024  # that wait for the thread
_MISSED_NUMBERS: Final = 2


class _Batch(NamedTuple):
    """What was put together: pieces with the numbers from `first` on, before `end`; `places` are where they begin and end."""

    first: int
    end: int
    lenders: Sequence[Lender]
    places: array[int]
    content: bytes


def carrier_of(library: Library | None) -> Carrier | None:
    """A carrier, where there is a library, and a processor for it beside that of the loop."""
    return Carrier(library) if library is not None and len(os.sched_getaffinity(0)) > 1 else None


class Carrier:
    """`carrying.Carrier`. Everything but the thread is the loop's."""

    def __init__(self, library: Library) -> None:
        area, numbers = ctypes.c_void_p, ctypes.c_int64
        size: int = library.function("native_carrier_bytes", numbers)()
        self._memory = bytearray(size)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._begin = library.function("native_carrier_begin", ctypes.c_int32, area, ctypes.c_int32)
        self._put_pieces = library.function("native_carrier_put", None, area, ctypes.c_char_p, area, area, numbers)
        self._look = library.function("native_carrier_look", numbers, area, numbers, area, area)
        self._ask = library.function("native_carrier_ask", None, area)
        self._wait = library.function("native_carrier_finish", None, area, numbers)
        self._end = library.function("native_carrier_end", None, area)
        self._carry = library.function("native_carry", None, area)
        self._close = library.function("native_carrier_close", None, area)
        self._missed = array("q", bytes(8 * _MISSED_NUMBERS * _PIECES))
        self._missed_count = array("q", (0,))
        self._missed_at, self._missed_count_at = self._missed.buffer_info()[0], self._missed_count.buffer_info()[0]
        self._put = self._seen = 0  # pieces
        self._batches: deque[_Batch] = deque()  # of which not all pieces were seen to be done
        self._kept_bytes = 0  # of these
        self._waiting: dict[Lender, int] = {}  # for the piece with that ticket, with something behind it
        self._thread: threading.Thread | None = None
        self._event = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError when the system has no room for it."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if not self._begin(self._at, self._event):
            raise OSError("the system has no room for a semaphore")
        self._loop = loop
        loop.add_reader(self._event, self._heard)
        self._thread = threading.Thread(target=self._run, name="carrier", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread when it has done what was put; nothing is taken from now on."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None:
            return
        self._end(self._at)
        thread.join()
        self._go_on()
        self._loop.remove_reader(self._event)
        os.close(self._event)
        self._close(self._at)

    def answer(
        self, connections: Sequence[RemotingConnection], ends: Sequence[int], counts: Sequence[int], content: bytes
    ) -> bool:
        """Whether to send each connection its part of the content, which ends there and answers so many requests."""
        if len(ends) < LEAST_PIECES or self._thread is None or not self._has_room(len(ends), len(content)):
            return False
        first = number = self._put
        seen = self._seen
        lent: list[Lender] = []
        others: list[tuple[RemotingConnection, bytes, int]] = []
        places, descriptors = array("q"), array("i")
        begin = 0
        for connection, end, count in zip(connections, ends, counts, strict=False):
            if not count:
                continue
            descriptor = connection.lend(number + 1, seen, count)
            if descriptor < 0:
                others.append((connection, content[begin:end], count))
            else:
                number += 1
                lent.append(connection)
                places.extend((begin, end))
                descriptors.append(descriptor)
            begin = end
        if lent:
            self._batches.append(_Batch(first, number, lent, places, content))
            self._kept_bytes += len(content)
            self._put = number
            self._put_pieces(self._at, content, places.buffer_info()[0], descriptors.buffer_info()[0], len(lent))
        for connection, answers, count in others:  # not before: who goes on sending may have more answered here
            connection.respond_encoded(answers, count)
        return True

    def _has_room(self, count: int, size: int) -> bool:
        if self._put != self._seen:
            self._settle()
        return self._put - self._seen + count <= _PIECES and self._kept_bytes + size <= _MOST_BYTES

    # ---- what connections need of it

    def keeps(self, lender: Lender, ticket: int) -> bool:
        """See `carrying.Carrier`."""
        if self._seen < ticket:
            self._settle()
        if self._seen >= ticket:
            return False
        self._ask(self._at)
        self._settle()  # nobody tells of what was done before that
        if self._seen >= ticket:
            return False
        self._waiting[lender] = ticket
        return True

    def finish(self, ticket: int) -> None:
        """See `carrying.Carrier`."""
        self._wait(self._at, ticket)
        self._settle()

    # ---- inside

    def _run(self) -> None:
        """The thread. It holds the object, and so the memory that it uses."""
        self._carry(self._at)

    def _heard(self) -> None:
        os.eventfd_read(self._event)
        self._go_on()

    def _go_on(self) -> None:
        """See what is done; who waited for it goes on."""
        if self._waiting:
            self._ask(self._at)  # before the look, which might else miss the last piece
        self._settle()
        for lender in [each for each, ticket in self._waiting.items() if ticket <= self._seen]:
            del self._waiting[lender]
            lender.go_on_sending()

    def _settle(self) -> None:
        """See what is done, and give back what was not written."""
        seen = self._seen
        self._seen = self._look(self._at, seen, self._missed_at, self._missed_count_at)
        missed = self._missed[: _MISSED_NUMBERS * self._missed_count[0]].tolist()
        given_back = [
            self._give_back(number, written)
            for number, written in zip(missed[::_MISSED_NUMBERS], missed[1::_MISSED_NUMBERS], strict=True)
        ]
        while self._batches and self._batches[0].end <= self._seen:
            self._kept_bytes -= len(self._batches.popleft().content)
        for lender in given_back:
            lender.go_on_sending()

    def _give_back(self, number: int, written: int) -> Lender:
        """Of a piece so much was written."""
        batch = next(each for each in self._batches if number < each.end)
        index = number - batch.first
        begin, end = batch.places[2 * index : 2 * index + 2]
        lender = batch.lenders[index]
        lender.give_back(batch.content[begin + written : end])
        return lender
