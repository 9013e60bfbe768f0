"""Send requests (codes 10, 310, 320): what all connections sent in one turn of the loop is laid out by the kernel and appended
together in the next; what the kernel leaves takes the general path, in its turn.

A connection offers what it read undecoded (`offer`), and holds it until the kernel took of it what it could; then it decodes the
rest. Requests that were decoded (because somebody checks them first, or the frame began otherwise than usual) come to `handle`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter_ns
from typing import Final

from brokerd.processors.sending.admission import Admission
from brokerd.processors.sending.general import GeneralSends
from brokerd.sending.acknowledging import Acknowledger
from brokerd.sending.boundary import ANSWER_OK, SendKernel, Source, Stop, Taken
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import ROLE_CHANGED
from brokerd.sending.reading import short_names
from brokerd.statistics.figures import Durations
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from brokerd.store.store import MessageStore
from remoting import codes, frame
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.frame import Command
from remoting.transport.connection import MOST_TAKEN, RemotingConnection

Part = tuple[RemotingConnection, Taken]

# How answers begin, by what became of what they answer to
_OPENINGS: Final = {
    PutStatus.PUT_OK: ANSWER_OK,
    PutStatus.FLUSH_DISK_TIMEOUT: b'{"code":10,',
    PutStatus.FLUSH_SLAVE_TIMEOUT: b'{"code":12,',
}
_MAX_RUN_BYTES: Final = 4 * 1024 * 1024


class SendProcessor:
    """The handler of send frames, and what connections offer to."""

    def __init__(
        self,
        store: MessageStore,
        acknowledger: Acknowledger,
        kernel: SendKernel,
        general: GeneralSends,
        counters: Counters,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._acknowledger = acknowledger
        self._kernel = kernel
        self._general = general
        self._counters = counters
        self._call_soon = call_soon
        self._admission: Admission | None = None
        self._waiting: list[tuple[RemotingConnection, Sequence[Command] | None]] = []  # None: what it offers

    def admit_by(self, admission: Admission) -> None:
        """Requests are signed: from now on what connections offer has to pass this. What comes to `handle` has passed as much."""
        self._admission = admission

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        """Whether to take of the buffer what is for the kernel, in the next turn; the connection then goes on behind that."""
        if not self._kernel.may_take(buffer, connection.packed_peer):
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
        turn = _Turn(self._store, self._acknowledger, self._counters)
        offers: list[_Offer] = []
        taken = 0  # of the offers
        for connection, requests in waiting:
            if requests is not None:
                self._take(turn, offers[taken:])  # what somebody offered before he sent this comes before it
                taken = len(offers)
                self._take_decoded(turn, connection, requests)
            elif buffer := connection.offered:
                offers.append(self._let_in(_Offer(connection, buffer)))
        self._take(turn, offers[taken:])
        turn.append()
        for offer in offers:  # not earlier: who handles what is decoded may append too
            offer.connection.go_on(offer.position, offer.answered, decoding=offer.is_other_next)

    def _let_in(self, offer: _Offer) -> _Offer:
        """The same, with as much to take of it as may be."""
        if self._admission is not None:
            offer.most, offer.is_other_next = self._admission.let_in(offer.connection, offer.buffer, offer.most)
        return offer

    def _take(self, turn: _Turn, offers: Sequence[_Offer]) -> None:
        """Take of the offers what is for the kernel."""
        rest = deque(offer for offer in offers if offer.most)
        while rest:
            run = turn.run or turn.begin()
            if run is None:
                for offer in rest:
                    offer.is_other_next = True  # decoded, they are refused
                return
            sources = _sources_of(rest)
            parts = []
            for taken in self._kernel.take(run, sources):
                offer = rest.popleft()
                offer.note(taken)
                parts.append((offer.connection, taken))
            turn.add(parts)
            if taken.stop is Stop.FULL:
                if offer.most:
                    rest.appendleft(offer)
                turn.append(run.room + 1)

    def _take_decoded(self, turn: _Turn, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Lay out the requests; append first what is laid out where something else must come next."""
        index, peer = 0, connection.packed_peer
        while index < len(requests):
            run = turn.run or turn.begin()
            if run is None:
                turn.refuse(connection, requests[index:])
                return
            taken = self._kernel.take_decoded(run, requests, index, peer)
            turn.add([(connection, taken)])
            index = taken.position
            if taken.stop is Stop.FULL:
                turn.append(run.room + 1)
            elif taken.stop is Stop.OTHER:
                self._take_other(turn, connection, requests[index])
                index += 1

    def _take_other(self, turn: _Turn, connection: RemotingConnection, request: Command) -> None:
        """What the kernel left: into the same run if that may be."""
        if self._general.is_apart(request):
            turn.append()
            self._general.send(connection, request)
            return
        prepared = self._general.prepare(connection, request)
        while prepared is not None:
            run = turn.run or turn.begin()
            if run is None:
                turn.refuse(connection, [request])
                return
            laid_out = self._general.lay_out(run, request, prepared)
            if not isinstance(laid_out, int):
                turn.add([(connection, laid_out)])
                return
            if laid_out > run.most_bytes:
                turn.append()
                self._general.append(connection, request, prepared)
                return
            turn.append(laid_out)


class _Offer:
    """What a connection offered: what of it may be taken, and what was. `is_other_next`: what follows is not for the kernel."""

    __slots__ = ("answered", "buffer", "connection", "is_other_next", "most", "position")

    def __init__(self, connection: RemotingConnection, buffer: bytes) -> None:
        self.connection = connection
        self.buffer = buffer
        self.position = 0
        self.most = MOST_TAKEN
        self.answered = 0
        self.is_other_next = False

    def note(self, taken: Taken) -> None:
        """So much of it was taken."""
        self.answered += taken.answered
        if taken.stop is Stop.FULL:
            self.most -= frame.count_frames(self.buffer, self.position, taken.position)
            if not self.most:
                self.is_other_next = True
        elif taken.stop is Stop.OTHER:
            self.is_other_next = True
        self.position = taken.position


def _sources_of(offers: Iterable[_Offer]) -> list[Source]:
    """For one call of the kernel: no more than a run should have, and one at least."""
    sources: list[Source] = []
    size = 0
    for offer in offers:
        size += len(offer.buffer) - offer.position
        if sources and size > _MAX_RUN_BYTES:
            break
        sources.append(Source(offer.buffer, offer.position, offer.connection.packed_peer, offer.most))
    return sources


class _Turn:
    """The runs of one turn of the loop, one after the other, and whose requests they answer."""

    def __init__(self, store: MessageStore, acknowledger: Acknowledger, counters: Counters) -> None:
        self.run: Run | None = None
        self._store = store
        self._acknowledger = acknowledger
        self._counters = counters
        self._error = acknowledger.refusal()
        self._parts: list[Part] = []
        self._early: list[Part] = []  # those that are answered when they are in the log
        self._least_bytes = 0

    def begin(self) -> Run | None:
        """The next run; None when nothing is taken any more in this turn."""
        if self._error is None:
            try:
                self.run = self._store.begin_run(self._least_bytes)
            except LogboomError as error:
                self._error = as_request_error(error, codes.SERVICE_NOT_AVAILABLE)
        return self.run

    def refuse(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """Tell why there is no run."""
        assert self._error is not None
        self._counters.refuse(self._error, len(requests))
        for request in requests:
            connection.respond_error(request, self._error)

    def add(self, parts: Iterable[Part]) -> None:
        """Requests of connections are laid out in the present run."""
        for connection, taken in parts:
            if taken.opaques:
                self._parts.append((connection, taken))
            if taken.early is not None:
                self._early.append((connection, taken.early))
        run = self.run
        assert run is not None
        if run.end_offset - run.start >= _MAX_RUN_BYTES:
            self.append()

    def append(self, least_bytes: int = 0) -> None:
        """Append the present run, and have its answers sent when it is acknowledged. The next has room for so many bytes."""
        run, parts, early = self.run, self._parts, self._early
        self.run, self._parts, self._early, self._least_bytes = None, [], [], least_bytes
        if run is None or not run.records:
            return
        try:
            self._store.append_laid_out(run)
        except LogboomError as error:
            _refuse((*parts, *early), as_request_error(error, codes.SERVICE_NOT_AVAILABLE))
            return
        counters = self._counters
        counters.stored(run)
        self._acknowledger.appended(run.end_offset)
        for connection, taken in early:
            connection.respond_encoded(b"".join(taken.answers), len(taken.opaques))
        if parts:
            answers = _Answers(parts, counters.puts, len(run.entries))
            self._acknowledger.wait(run.end_offset, answers.send)


class _Answers:
    """What waits for the acknowledgement of a run."""

    __slots__ = ("_appended_ns", "_count", "_durations", "_parts")

    def __init__(self, parts: Sequence[Part], durations: Durations, count: int) -> None:
        self._parts = parts
        self._durations = durations
        self._count = count
        self._appended_ns = perf_counter_ns()

    def send(self, status: PutStatus) -> None:
        """The run was acknowledged, or not: tell everybody."""
        self._durations.add((perf_counter_ns() - self._appended_ns) / 1e6, self._count)
        opening = _OPENINGS.get(status)
        if opening is None:
            _refuse(self._parts, RequestError(codes.SERVICE_NOT_AVAILABLE, ROLE_CHANGED))
            return
        for connection, taken in self._parts:
            answers = b"".join(taken.answers)
            if opening is not ANSWER_OK:
                answers = answers.replace(ANSWER_OK, opening)
            connection.respond_encoded(answers, len(taken.opaques))


def _refuse(parts: Sequence[Part], error: RequestError) -> None:
    """Tell everybody that nothing is stored, or that this is unknown."""
    for connection, taken in parts:
        answers = [frame.encode_response(error.code, opaque, remark=str(error)) for opaque in taken.opaques]
        connection.respond_encoded(b"".join(answers), len(answers))
