"""The thread in C that writes answers to sockets while the loop goes on (`carrier.c`), for who answers many connections at once,
or with much: answers to pulls are given to it prepared, and it makes their bytes.

A connection is lent for a piece (`RemotingConnection.lend`), and for more that are written when that is whole: until they are
done nothing else is written to it, and its descriptor stays open. So pieces leave in order, and none goes to a descriptor that is
another one's by now. What a socket does not take goes back to the connection, which sends it as it sends everything else.

Who pulls densely stays there for some milliseconds (`stays.py`), and who sends densely for longer (`lane.py`): the thread reads
their requests, too. Whoever else wants to write to one that pulls has it back first; to one that sends, the thread writes it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.native.lane import MOST_LEFT_BYTES, Lane, Senders
from brokerd.native.library import Library
from brokerd.native.stays import File, Kind, Over, Stays, Told, Waiting
from brokerd.native.wanted import BEHIND, DESCRIPTOR, LEAST_CARRIED, LENGTH, WantedArea
from remoting.disk import Held
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection

LEAST_PIECES: Final = 8  # for fewer, waking the thread costs as much as it spares
LEAST_BYTES: Final = 8192  # of an answer to a pull: likewise
MOST_ANSWERS: Final = 4  # to pulls that wait for the thread: with more, the loop is sooner done with the next one
NOT_MADE: Final = -1  # carrier.c has the same numbers
CARRIED: Final = -2
NOTHING_WANTED: Final = -3
LEFT: Final = -4
NOT_LENT: Final = -5
_NEVER: Final = 1 << 62
_PIECES: Final = 4096  # carrier.c has the same numbers
_NEAR: Final = 64
_MOST_PIECES: Final = _PIECES - _NEAR
_MADE_BYTES: Final = 256 * 1024 + 512  # likewise
_MOST_BYTES: Final = 4 * 1024 * 1024  # that wait for the thread
_MISSED_NUMBERS: Final = 2
# How often it is looked who is done. An answer's file is mapped, or its descriptor open, no longer than that; who stays and asks
# no more is back, with what he committed, in twice the time.
_LOOK_S: Final = 0.025


class _Batch(NamedTuple):
    """What was put together: pieces with the numbers from `first` on, before `end`; `places` are where they begin and end."""

    first: int
    end: int
    lenders: Sequence[Lender]
    places: array[int]
    content: bytes


class Failed(NamedTuple):
    """Whom to tell when an answer that was carried is not sent, as one of its records is not what was stored, and with what: the
    request is to be answered yet."""

    tell: Callable[..., None]
    request: tuple[object, ...]


class _Answer(NamedTuple):
    """The piece before `end`: an answer that is made of a part of the log."""

    end: int
    lender: Lender
    length: int
    log: Held
    failed: Failed


class _Away(NamedTuple):
    """A connection that is about to stay: the tickets are those of its piece, and of the one before it, 0 for none; `begun` is
    what was read of a frame that is not all there."""

    descriptor: int
    tickets: tuple[int, int]
    begun: bytes


def carrier_of(library: Library | None) -> Carrier | None:
    """A carrier, where there is a library. It has a thread where there is a processor for it beside that of the loop."""
    return None if library is None else Carrier(library, has_thread=len(os.sched_getaffinity(0)) > 1)


class Carrier:
    """`carrying.Carrier`. Everything but the thread is the loop's."""

    def __init__(self, library: Library, *, has_thread: bool = True) -> None:
        self._has_thread = has_thread
        area, numbers = ctypes.c_void_p, ctypes.c_int64
        size: int = library.function("native_carrier_bytes", numbers)()
        self._memory = bytearray(size)
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._begin = library.function("native_carrier_begin", ctypes.c_int32, area, area, *(ctypes.c_int32,) * 2)
        self._put_pieces = library.function("native_carrier_put", None, area, ctypes.c_char_p, area, area, numbers)
        self._make_again = library.function("native_carrier_made", numbers, area, numbers, area, numbers)
        self._answer_pull = library.function("native_pull_answered", numbers, area, area, area, numbers)
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
        self._batches: deque[_Batch | _Answer] = deque()  # of which not all pieces were seen to be done
        self._answers = 0  # of these
        self._last = 0  # the connection that pulled last
        self._made = bytearray(_MADE_BYTES)  # what the loop makes
        self._made_at = ctypes.addressof(ctypes.c_char.from_buffer(self._made))
        self._places = ctypes.c_void_p(self._at), ctypes.c_void_p(self._made_at), ctypes.c_int64(_MADE_BYTES)
        self._timer: asyncio.TimerHandle | None = None
        self._kept_bytes = 0  # of these
        self._waiting: dict[Lender, int] = {}  # for the piece with that ticket, with something behind it
        self._thread: threading.Thread | None = None
        self._event = self._summons = -1
        self._stays = Stays(library, self._at, self._made)
        self.lane = Lane(library, self._at)
        self._senders = Senders(library, self._at, self.lane)
        # Told when the thread may have something for who lends the lane; and of answers that come back and wait
        self.lane_listener: Callable[[], None] | None = None
        self.waiting_listener: Callable[[Lender, Waiting], None] | None = None
        self._over: deque[Over] = deque()  # of which it was not told yet what was done
        self._looked_to = 0  # up to which piece, when it was looked last whether somebody asks no more
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError when the system has no room for it."""
        self._loop = loop
        if not self._has_thread:
            return
        self._event, self._summons = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        if not self._begin(self._at, self.lane.at, self._event, self._summons):
            raise OSError("the system has no room for a semaphore")
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
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._event)
        os.close(self._event)
        os.close(self._summons)
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

    def give(self, connection: RemotingConnection, wanted: WantedArea, file: File, failed: Failed) -> int:
        """Answer a pull with what is wanted of a file of the log that is seen: a large answer is made and sent by the thread,
        while others pull, too; others at once. What came of it: how much the socket took; CARRIED; or nothing was sent, as
        NOTHING_WANTED says, as one of the records is not what was stored (NOT_MADE), as it is LEFT to others, or as something is
        to be sent before it (NOT_LENT). When that turns out later, `failed` is told."""
        name, last = id(connection), self._last
        self._last = name
        numbers = wanted.numbers
        descriptor = connection.lend(0, self._seen, 1)
        if descriptor < 0 and self._put != self._seen:
            self._settle()
            descriptor = connection.lend(0, self._seen, 1)
        if descriptor >= 0:
            numbers[BEHIND] = -1
            numbers[LEAST_CARRIED] = LEAST_BYTES if last not in (0, name) and self._may_carry() else _NEVER
        else:
            if self._put == self._seen or not self._may_carry():
                return NOT_LENT
            descriptor, ticket = connection.lend_more(1)
            if descriptor < 0:
                return NOT_LENT
            if self._put - ticket >= _NEAR:
                connection.owe(1)
                return NOT_LENT
            numbers[BEHIND], numbers[LEAST_CARRIED] = ticket - 1, 0
        numbers[DESCRIPTOR] = descriptor
        done: int = self._answer_pull(wanted.pointer, *self._places)
        if done == CARRIED:
            self._put = number = self._put + 1
            connection.keep_lent(number)
            self._answers += 1
            self._batches.append(_Answer(number, connection, numbers[LENGTH], file.hold(), failed))
            self._look_in_time()
        elif done < 0:
            connection.owe(1)
        elif done < numbers[LENGTH]:
            connection.give_back(bytes(memoryview(self._made)[done : numbers[LENGTH]]))
            connection.go_on_sending()
        return done

    def have_stay(
        self,
        connection: RemotingConnection,
        asked: ctypes.c_void_p,
        kinds: Sequence[Kind],
        told: Callable[[Told], None],
    ) -> bool:
        """Whether the thread reads the connection's requests from now on, and answers those of these kinds (as `Stays.begin` has
        them): for some milliseconds, or until somebody else wants to write to it. `told` is called in a later turn of the loop,
        before the connection has anything else that came."""
        away = self._take_away(connection) if self._stays.have_room else None
        if away is None:
            return False
        self._stays.begin(connection, away.descriptor, away.tickets, asked, kinds, told)
        self._look_in_time()
        return True

    def have_sender(self, connection: RemotingConnection, told: Callable[[int], None]) -> bool:
        """Whether the thread reads the connection's requests from now on, and takes those that are sends while it has the lane:
        as long as there are some, or until somebody wants it back. It sends what the loop answers meanwhile, too. `told` is
        called with the number of frames that were taken, in a later turn of the loop, before the connection has anything else
        that came."""
        away = self._take_away(connection, MOST_LEFT_BYTES) if self._senders.have_room else None
        if away is None:
            return False
        self._senders.begin(connection, connection.packed_peer, away.begun, away.descriptor, away.tickets, told)
        self._look_in_time()
        return True

    def _take_away(self, connection: RemotingConnection, most_begun_bytes: int = 0) -> _Away | None:
        """Read from the connection no more, which is about to stay as the next piece; None where that may not be now. What was
        read of a frame may have so many bytes."""
        if self._thread is None or self._put - self._seen >= _MOST_PIECES:
            return None
        descriptor, before, begun = connection.go_away(self._seen, most_begun_bytes)
        if descriptor < 0:
            return None
        own = self._put + 1
        if before and own - before >= _NEAR:
            connection.come_back(begun)
            return None
        connection.keep_lent(own)
        self._put = own
        return _Away(descriptor, (own, before), begun)

    @property
    def has_senders(self) -> bool:
        """Whether anybody stays for what it sends."""
        return bool(self._senders)

    def waiting_senders(self) -> tuple[int, int]:
        """See `Senders.waiting`."""
        return self._senders.waiting()

    def recall_senders(self) -> None:
        """Have them come back: the lane is not lent for now."""
        self._senders.recall_all()

    def finish_senders(self) -> None:
        """Return when they are back, soon, as nobody waits for a peer or for the disk."""
        if self._senders:
            self._senders.finish(self._put)
            self._settle()

    def recall_stays(self) -> None:
        """Have all who stay come back: something changed that requests are checked against. What comes now is the loop's."""
        self._stays.recall_all()

    def take_stays_back(self) -> None:
        """Return when nobody stays, and all is told that was done in stays. What comes from then on is the loop's, until somebody
        stays again."""
        self.finish_all()
        self._tell()

    def _may_carry(self) -> bool:
        """Whether the thread may have one more answer."""
        if self._thread is None:
            return False
        if self._answers >= MOST_ANSWERS or self._put - self._seen >= _MOST_PIECES:
            self._settle()
        return self._answers < MOST_ANSWERS and self._put - self._seen < _MOST_PIECES

    def finish_all(self) -> None:
        """Return when nothing is looked at any more."""
        if self._put != self._seen or self._stays or self._senders:
            self.finish(self._put)

    def _has_room(self, count: int, size: int) -> bool:
        if self._put != self._seen:
            self._settle()
        return self._put - self._seen + count <= _MOST_PIECES and self._kept_bytes + size <= _MOST_BYTES

    # ---- what connections need of it

    def keeps(self, lender: Lender, ticket: int) -> bool:
        """See `carrying.Carrier`."""
        if self._seen < ticket:
            self._settle()
        if lender in self._senders:
            self._pass_on(lender)
            return True
        if lender in self._stays:
            self._stays.recall_one(lender)  # it goes on sending when it comes back
            return True
        if self._seen >= ticket:
            return False
        self._ask(self._at)
        self._settle()  # nobody tells of what was done before that
        if self._seen >= ticket:
            return False
        self._waiting[lender] = ticket
        return True

    def _pass_on(self, lender: Lender) -> None:
        """The thread, which answers what it takes of this one, sends it what the loop answers, too."""
        if self._put - self._seen >= _MOST_PIECES or self._kept_bytes >= _MOST_BYTES:
            self._senders.recall_one(lender)
            return
        content = b"".join(lender.take_out())
        first, self._put = self._put, self._put + 1
        self._batches.append(_Batch(first, self._put, [lender], array("q", (0, len(content))), content))
        self._kept_bytes += len(content)
        self._senders.pass_on(lender, content)

    def finish(self, ticket: int) -> None:
        """See `carrying.Carrier`."""
        self._wait(self._at, ticket)
        self._stays.finish(ticket)
        if self._senders.finish(ticket):
            # what was passed on is behind the ticket: who waits may close the connection
            self._wait(self._at, self._put)
        self._settle()

    # ---- inside

    def _run(self) -> None:
        """The thread. It holds the object, and so the memory that it uses."""
        self._carry(self._at)

    def _heard(self) -> None:
        os.eventfd_read(self._event)
        try:
            if self.lane_listener is not None:
                self.lane_listener()
        finally:
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
        given_back: list[Lender] = []
        if self._stays or self._senders:
            self._settle_stays()  # what is left of their answers goes before what was put for them since
        if count := self._missed_count[0]:
            missed = self._missed[: _MISSED_NUMBERS * count].tolist()
            numbers, written = missed[::_MISSED_NUMBERS], missed[1::_MISSED_NUMBERS]
            given_back = [self._give_back(*each) for each in zip(numbers, written, strict=True)]
        while self._batches and self._batches[0].end <= self._seen:
            done = self._batches.popleft()
            if isinstance(done, _Answer):
                self._answers -= 1
                done.log.release()
            else:
                self._kept_bytes -= len(done.content)
        for lender in given_back:
            assert self._loop is not None
            # not at once: who waits here may cut the log, and whoever goes on may have more requests
            self._loop.call_soon(lender.go_on_sending)

    def _settle_stays(self) -> None:
        for over in (*self._stays.over(), *self._senders.over()):
            if over.rest is None:
                over.lender.abort()
            elif over.rest:
                over.lender.give_back(over.rest)
            for waiting in over.waiting:
                assert self.waiting_listener is not None, "who lends the lane with syncs hears of it"
                self.waiting_listener(over.lender, waiting)
            assert self._loop is not None
            self._over.append(over)
            self._loop.call_soon(self._come_back, over)  # not at once, likewise

    def _tell(self) -> None:
        while self._over:
            self._over.popleft().tell()

    def _come_back(self, over: Over) -> None:
        try:
            self._tell()
        finally:
            over.lender.come_back(over.left)

    def _give_back(self, number: int, written: int) -> Lender:
        """Of a piece so much was written."""
        batch = next(each for each in self._batches if number < each.end)
        if isinstance(batch, _Answer):
            self._give_answer_back(batch, number, written)
            return batch.lender
        index = number - batch.first
        begin, end = batch.places[2 * index : 2 * index + 2]
        lender = batch.lenders[index]
        lender.give_back(batch.content[begin + written : end])
        return lender

    def _give_answer_back(self, answer: _Answer, number: int, written: int) -> None:
        """It is made again: then at once, before its file may change. What was sent cannot be taken back."""
        if written == NOT_MADE:
            assert self._loop is not None
            # not at once: it reads the log, which may be cut right now
            self._loop.call_soon(answer.failed.tell, *answer.failed.request)
        elif self._make_again(self._at, number, self._made_at, _MADE_BYTES):
            answer.lender.give_back(bytes(memoryview(self._made)[written : answer.length]))
        else:
            answer.lender.abort()

    def _see_in_time(self) -> None:
        """Release what is done, also when nobody puts anything behind it. Have who stays for long come back, also when he asks
        nothing more."""
        self._timer = None
        self._stays.recall(self._looked_to)
        self._senders.recall_idle()
        self._looked_to = self._put
        self._settle()
        self._look_in_time()

    def _look_in_time(self) -> None:
        if self._timer is None and self._loop is not None and (self._answers or self._stays or self._senders):
            self._timer = self._loop.call_later(_LOOK_S, self._see_in_time)
