"""Send requests (codes 10, 310, 320): what all connections sent in one turn of the loop is laid out by the kernel and appended
together in the next; what the kernel leaves takes the general path, in its turn.

A connection offers what it read undecoded (`offer`), and holds it until the kernel took of it what it could; then it decodes the
rest. Requests that were decoded (because somebody checks them first, or the frame began otherwise than usual) come to `handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from brokerd.processors.sending.admission import Admission
from brokerd.processors.sending.general import GeneralSends
from brokerd.sending.boundary import ANSWER_OK, Source, Stop, Taken
from brokerd.sending.reading import short_names
from brokerd.sending.turns import SendTurn, SendTurns
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting import frame
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import MOST_TAKEN, RemotingConnection

_Part = tuple[RemotingConnection, Taken]

# How answers begin, by what became of what they answer to
_OPENINGS: Final = {
    PutStatus.PUT_OK: ANSWER_OK,
    PutStatus.FLUSH_DISK_TIMEOUT: b'{"code":10,',
    PutStatus.FLUSH_SLAVE_TIMEOUT: b'{"code":12,',
}


class SendProcessor:
    """The handler of send frames, and what connections offer to."""

    def __init__(
        self, turns: SendTurns, general: GeneralSends, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        self._turns = turns
        self._general = general
        self._call_soon = call_soon
        self._admission: Admission | None = None
        self._waiting: list[tuple[RemotingConnection, Sequence[Command] | None]] = []  # None: what it offers

    def admit_by(self, admission: Admission) -> None:
        """Requests are signed: from now on what connections offer has to pass this. What comes to `handle` has passed as much."""
        self._admission = admission

    @property
    def goes_first(self) -> bool:
        """Whether the next turn begins with sends: a client that waits for one batch before it sends the next one should not wait
        for others' pulls as well."""
        return bool(self._waiting)

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        """Whether to take of the buffer what is for the kernel, in the next turn; the connection then goes on behind that."""
        if not self._turns.kernel.may_take(buffer, connection.packed_peer):
            return False
        self._wait(connection, None)
        return True

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Take send requests with short field names (codes 310 and 320)."""
        self._wait(connection, requests)

    def handle_long_names(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Take send requests with long field names (code 10)."""
        for request in requests:
            request.ext = short_names(request.ext)
        self._wait(connection, requests)

    def _wait(self, connection: RemotingConnection, requests: Sequence[Command] | None) -> None:
        self._waiting.append((connection, requests))
        if len(self._waiting) == 1:
            self._call_soon(self._process)

    def _process(self) -> None:
        waiting, self._waiting = self._waiting, []
        turn = self._turns.begin(_Answers)
        offers: list[_Offer] = []
        taken = 0  # of the offers
        for connection, requests in waiting:
            if requests is not None:
                turn.take(offers[taken:])  # what somebody offered before he sent this comes before it
                taken = len(offers)
                self._take_decoded(turn, connection, requests)
            elif buffer := connection.offered:
                offers.append(self._let_in(_Offer(connection, buffer)))
        turn.take(offers[taken:])
        turn.append()
        for offer in offers:  # not earlier: who handles what is decoded may append too
            offer.connection.go_on(offer.position, offer.answered, decoding=offer.is_other_next)

    def _let_in(self, offer: _Offer) -> _Offer:
        """The same, with as much to take of it as may be."""
        if self._admission is not None:
            offer.most, offer.is_other_next = self._admission.let_in(offer.connection, offer.buffer, offer.most)
        return offer

    def _take_decoded(
        self, turn: SendTurn[_Answers], connection: RemotingConnection, requests: Sequence[Command]
    ) -> None:
        """Lay out the requests; append first what is laid out where something else must come next."""
        index, peer = 0, connection.packed_peer
        while index < len(requests):
            run = turn.run or turn.begin_run()
            if run is None:
                self._refuse(turn, connection, requests[index:])
                return
            taken = self._turns.kernel.take_decoded(run, requests, index, peer)
            turn.answers.add(connection, taken)
            turn.laid_out()
            index = taken.position
            if taken.stop is Stop.FULL:
                turn.append(run.room + 1)
            elif taken.stop is Stop.OTHER:
                self._take_other(turn, connection, requests[index])
                index += 1

    def _take_other(self, turn: SendTurn[_Answers], connection: RemotingConnection, request: Command) -> None:
        """What the kernel left: into the same run if that may be."""
        if self._general.is_apart(request):
            turn.append()
            self._general.send(connection, request)
            return
        prepared = self._general.prepare(connection, request)
        while prepared is not None:
            run = turn.run or turn.begin_run()
            if run is None:
                self._refuse(turn, connection, [request])
                return
            laid_out = self._general.lay_out(run, request, prepared)
            if not isinstance(laid_out, int):
                turn.answers.add(connection, laid_out)
                turn.laid_out()
                return
            if laid_out > run.most_bytes:
                turn.append()
                self._general.append(connection, request, prepared)
                return
            turn.append(laid_out)

    def _refuse(self, turn: SendTurn[_Answers], connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Tell why nothing is taken."""
        assert turn.error is not None
        self._turns.counters.refuse(turn.error, len(requests))
        for request in requests:
            connection.respond_error(request, turn.error)


class _Offer:
    """What a connection offered (`turns.Offer`): what of it may be taken, and what was. `is_other_next`: what follows is not for
    the kernel."""

    __slots__ = ("answered", "buffer", "connection", "is_other_next", "most", "position")

    def __init__(self, connection: RemotingConnection, buffer: bytes) -> None:
        self.connection = connection
        self.buffer = buffer
        self.position = 0
        self.most = MOST_TAKEN
        self.answered = 0
        self.is_other_next = False

    @property
    def goes_on(self) -> bool:
        return self.most > 0

    def source(self) -> Source:
        return Source(self.buffer, self.position, self.connection.packed_peer, self.most)

    def note(self, taken: Taken, answers: _Answers) -> None:
        self.answered += taken.answered
        if taken.stop is Stop.FULL:
            self.most -= frame.count_frames(self.buffer, self.position, taken.position)
            if not self.most:
                self.is_other_next = True
        elif taken.stop is Stop.OTHER:
            self.is_other_next = True
            self.most = 0
        self.position = taken.position
        answers.add(self.connection, taken)

    def leave(self) -> None:
        self.is_other_next = True  # decoded, it is refused


class _Answers:
    """Those of one run (`turns.Answers`)."""

    __slots__ = ("_early", "_parts")

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._early: list[_Part] = []  # those that are answered when they are in the log

    def add(self, connection: RemotingConnection, taken: Taken) -> None:
        """Requests of a connection are laid out."""
        if taken.opaques:
            self._parts.append((connection, taken))
        if taken.early is not None:
            self._early.append((connection, taken.early))

    def appended(self, _run: Run) -> bool:
        for connection, taken in self._early:
            connection.respond_encoded(b"".join(taken.answers), len(taken.opaques))
        self._early = []
        return bool(self._parts)

    def acknowledged(self, status: PutStatus) -> None:
        opening = _OPENINGS[status]
        for connection, taken in self._parts:
            answers = b"".join(taken.answers)
            if opening is not ANSWER_OK:
                answers = answers.replace(ANSWER_OK, opening)
            connection.respond_encoded(answers, len(taken.opaques))

    def refused(self, error: RequestError) -> None:
        for connection, taken in (*self._parts, *self._early):
            answers = [frame.encode_response(error.code, opaque, remark=str(error)) for opaque in taken.opaques]
            connection.respond_encoded(b"".join(answers), len(answers))
