"""Send requests (codes 10, 310, 320): what all connections sent in one turn of the loop is laid out by the kernel and appended
together in the next; what the kernel leaves takes the general path, in its turn.

A connection offers what it read undecoded (`offer`), and holds it until the kernel took of it what it could; then it decodes the
rest. Requests that were decoded (because somebody checks them first, or the frame began otherwise than usual) come to `handle`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from brokerd.native.carrier import Carrier
from brokerd.processors.sending.admission import Admission
from brokerd.processors.sending.general import GeneralSends
from brokerd.sending.boundary import ANSWER_OK, Source, Stop, Taken, Together
from brokerd.sending.late_answers import OPENINGS
from brokerd.sending.lending import SendLending
from brokerd.sending.reading import short_names
from brokerd.sending.readings import Reading
from brokerd.sending.turns import SendTurn, SendTurns
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from remoting import frame
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.carrying import nothing
from remoting.transport.connection import RemotingConnection
from remoting.transport.taking import MOST_TAKEN

_Waiting = tuple[RemotingConnection, Sequence[Command] | None]  # None: what it offers
_Part = tuple[RemotingConnection, Taken]
_Ended = tuple[
    RemotingConnection, int, int
]  # what it offered is taken before a position, with so many two-way requests

LEAST_TOGETHER: Final = 3  # connections: for fewer, looking for what they have in common costs more than it spares
MOST_TOGETHER: Final = 128


class SendProcessor:
    """The handler of send frames, and what connections offer to."""

    def __init__(
        self,
        turns: SendTurns,
        general: GeneralSends,
        call_soon: Callable[[Callable[[], None]], object],
        carrier: Carrier | None = None,
        show: Callable[[], None] = nothing,
    ) -> None:
        """`show` has readers see what is acknowledged by now."""
        self.catch_up = show  # who asks may have heard of what was answered: have it be seen
        self._turns = turns
        self._general = general
        self._call_soon = call_soon
        self._may_take = turns.kernel.may_take
        self._new_answers = partial(_Answers, carrier)
        self._admission: Admission | None = None
        self._lending: SendLending | None = None
        self._waiting: list[_Waiting] = []
        self._has_decoded = False  # among them

    def admit_by(self, admission: Admission) -> None:
        """Requests are signed: from now on what connections offer has to pass this. What comes to `handle` has passed as much."""
        self._admission = admission

    def lend_by(self, lending: SendLending) -> None:
        """Who sends densely has what he sends taken elsewhere, as long as requests are not signed."""
        self._lending = lending
        self.catch_up = lending.catch_up

    def end_lending(self) -> None:
        """Everything that comes from now on is taken here."""
        if self._lending is not None:
            self._lending.end()

    def meaning_changes(self) -> None:
        """An acknowledgement may mean something else from now on: all that is taken elsewhere comes back."""
        if self._lending is not None:
            self._lending.take_all_back()

    @property
    def waiting_elsewhere(self) -> tuple[int, int]:
        """See `SendLending.waiting`."""
        return self._lending.waiting if self._lending is not None else (0, 0)

    @property
    def goes_first(self) -> bool:
        """Whether the next turn begins with sends: a client that waits for one batch before it sends the next one should not wait
        for others' pulls as well."""
        return bool(self._waiting)

    def take_now(self) -> None:
        """Have taken what came in this turn, if anything did: for who has something to do that senders should not wait for."""
        if self._waiting:
            self._process()

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        """Whether to take of the buffer what is for the kernel, in the next turn; the connection then goes on behind that."""
        if not self._may_take(buffer, connection.packed_peer):
            return False
        self._waiting.append((connection, None))
        if len(self._waiting) == 1:
            self._call_soon(self._process)
        return True

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Take send requests with short field names (codes 310 and 320)."""
        self._wait(connection, requests)

    def handle_long_names(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Take send requests with long field names (code 10)."""
        for request in requests:
            request.ext = short_names(request.ext)
        self._wait(connection, requests)

    def _wait(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        self._has_decoded = True
        self._waiting.append((connection, requests))
        if len(self._waiting) == 1:
            self._call_soon(self._process)

    def _process(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:  # somebody had it taken already
            return
        has_decoded, self._has_decoded = self._has_decoded, False
        try:
            self._take(waiting, has_decoded)
        except Exception:
            for connection, _ in waiting:
                connection.give_up()
            raise

    def _take(self, waiting: Sequence[_Waiting], has_decoded: bool) -> None:
        """What was sent in a turn, among which something is decoded, or nothing."""
        turn = self._turns.begin(self._new_answers)
        if self._admission is not None:
            self._admission.begin_turn()
        ended: list[_Ended] = []
        if has_decoded or len(waiting) < LEAST_TOGETHER or self._admission is not None:
            offers = self._take_in_order(turn, waiting)
        else:
            offers = self._take_together(turn, [connection for connection, _ in waiting], ended)
            turn.take(offers)
        turn.append()
        # not earlier: who handles what is decoded may append too
        for connection, position, answered in ended:
            connection.go_on(position, answered, decoding=False)
        for offer in offers:
            offer.connection.go_on(offer.position, offer.answered, decoding=offer.is_other_next)
        if self._lending is not None and self._admission is None:
            for connection, _, _ in ended:
                self._lending.look(connection)
            for offer in offers:
                if not offer.is_other_next:
                    self._lending.look(offer.connection)

    def _take_together(
        self, turn: SendTurn[_Answers], connections: list[RemotingConnection], ended: list[_Ended]
    ) -> list[_Offer]:
        """Have taken what the kernel takes at once of what these offer; the others, which are not at their end."""
        buffers = [connection.offered for connection in connections]
        if not all(buffers):  # some closed meanwhile
            connections = [each for each, buffer in zip(connections, buffers, strict=True) if buffer]
            buffers = [buffer for buffer in buffers if buffer]
        at = 0
        offers: list[_Offer] = []
        while at < len(buffers) and not offers and (run := turn.run or turn.begin_run()) is not None:
            those, theirs = connections[at : at + MOST_TOGETHER], buffers[at : at + MOST_TOGETHER]
            peers = [connection.packed_peer for connection in those]
            together = self._turns.kernel.take_together(run, theirs, peers, MOST_TAKEN)
            if together is None:
                break
            turn.answers.add_together(those, together)
            turn.laid_out()
            done = together.done
            ended += zip(those, together.positions[:done], together.counts, strict=False)
            at += done
            if len(together.positions) > done:
                offers.append(_Offer(those[done], theirs[done]))
                offers[0].begin(together)
        first = at + len(offers)
        offers += map(_Offer, connections[first:], buffers[first:])
        return offers

    def _take_in_order(self, turn: SendTurn[_Answers], waiting: Sequence[_Waiting]) -> list[_Offer]:
        """Have taken what is offered and what was decoded, each in its turn; returns the offers."""
        offers: list[_Offer] = []
        taken = 0  # of the offers
        for connection, requests in waiting:
            if requests is not None:
                turn.take(offers[taken:])  # what somebody offered before he sent this comes before it
                taken = len(offers)
                self._take_decoded(turn, connection, requests)
            elif buffer := connection.offered:
                offers.append(self._let_in(_Offer(connection, buffer)))
        turn.take(offers[taken:] if taken else offers)
        return offers

    def _let_in(self, offer: _Offer) -> _Offer:
        """The same, with as much to take of it as may be."""
        if self._admission is not None:
            offer.most, offer.is_other_next, offer.reading = self._admission.let_in(
                offer.connection, offer.buffer, offer.most
            )
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
    the kernel. `reading`: what is known of its first frames."""

    __slots__ = ("answered", "buffer", "connection", "is_other_next", "most", "position", "reading")

    def __init__(self, connection: RemotingConnection, buffer: bytes) -> None:
        self.connection = connection
        self.buffer = buffer
        self.position = 0
        self.most = MOST_TAKEN
        self.answered = 0
        self.is_other_next = False
        self.reading: Reading | None = None

    @property
    def goes_on(self) -> bool:
        return self.most > 0

    def source(self) -> Source:
        return Source(self.buffer, self.position, self.connection.packed_peer, self.most, self.reading)

    def begin(self, together: Together) -> None:
        """It is the one where that stopped."""
        self.position = together.positions[-1]
        self.most -= together.frames[-1]
        self.answered = together.counts[-1]

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

    __slots__ = ("_carrier", "_early", "_parts", "_together")

    def __init__(self, carrier: Carrier | None) -> None:
        self._carrier = carrier
        self._parts: list[_Part] = []
        self._early: list[_Part] = []  # those that are answered when they are in the log
        self._together: list[tuple[Sequence[RemotingConnection], Together]] = []

    def add(self, connection: RemotingConnection, taken: Taken) -> None:
        """Requests of a connection are laid out."""
        if taken.opaques:
            self._parts.append((connection, taken))
        if taken.early is not None:
            self._early.append((connection, taken.early))

    def add_together(self, connections: Sequence[RemotingConnection], together: Together) -> None:
        """Requests of connections are laid out, before all that is added one by one."""
        if together.early:
            for connection, taken in zip(connections, together.apart(), strict=False):
                self.add(connection, taken)
        elif together.content:
            self._together.append((connections, together))

    def appended(self, _run: Run) -> bool:
        for connection, taken in self._early:
            connection.respond_encoded(b"".join(taken.answers), len(taken.opaques))
        self._early = []
        return bool(self._parts or self._together)

    def acknowledged(self, status: PutStatus) -> None:
        opening = OPENINGS[status]
        for connections, together in self._together:
            content = together.content
            if opening is not ANSWER_OK:
                content = content.replace(ANSWER_OK, opening)
            if self._carrier is None or not self._carrier.answer(connections, together.ends, together.counts, content):
                _answer_each(connections, together, content)
        for connection, taken in self._parts:
            answers = b"".join(taken.answers)
            if opening is not ANSWER_OK:
                answers = answers.replace(ANSWER_OK, opening)
            connection.respond_encoded(answers, len(taken.opaques))

    def refused(self, error: RequestError) -> None:
        for connections, together in self._together:
            self._parts += zip(connections, together.apart(), strict=False)
        for connection, taken in (*self._parts, *self._early):
            answers = [frame.encode_response(error.code, opaque, remark=str(error)) for opaque in taken.opaques]
            connection.respond_encoded(b"".join(answers), len(answers))


def _answer_each(connections: Sequence[RemotingConnection], together: Together, content: bytes) -> None:
    """Send each connection its part of the content."""
    at = 0
    for connection, end, count in zip(connections, together.ends, together.counts, strict=False):
        if count:
            connection.respond_encoded(content[at:end], count)
        at = end
