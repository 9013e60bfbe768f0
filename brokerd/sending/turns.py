"""Sends of one turn of the loop, of whatever endpoint: laid out by the kernel behind what the log holds, appended run by run, and
answered when each run is acknowledged.

Who lays out holds the log's end for no longer than his turn: a turn begins, takes what it is offered, and ends with `append`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from brokerd.sending.acknowledging import Acknowledger
from brokerd.sending.boundary import SendKernel, Source, Stop, Taken
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import ROLE_CHANGED
from brokerd.store.put_status import PutStatus
from brokerd.store.run import Run
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error

_STORED: Final = frozenset({PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT})
_MAX_RUN_BYTES: Final = 4 * 1024 * 1024


class Answers(Protocol):
    """What an endpoint has to tell of one run, and whom."""

    def appended(self, run: Run) -> bool:
        """The run is in the log; whether somebody waits for more than that."""

    def acknowledged(self, status: PutStatus) -> None:
        """The run is stored: everywhere, or not in time."""

    def refused(self, error: RequestError) -> None:
        """Nothing of the run is stored, or that is unknown."""


OfRun = TypeVar("OfRun", bound=Answers)
OfRun_contra = TypeVar("OfRun_contra", bound=Answers, contravariant=True)


class Offer(Protocol[OfRun_contra]):
    """What one peer sent, of which the kernel takes what it can."""

    @property
    def goes_on(self) -> bool:
        """Whether there is something of it that may be taken."""

    def source(self) -> Source:
        """What may be taken of it now."""

    def note(self, taken: Taken, answers: OfRun_contra) -> None:
        """So much was laid out in the run whose answers these are."""

    def leave(self) -> None:
        """Nothing is taken any more in this turn."""


class SendTurns:
    """Of one broker: each endpoint begins its own, one after the other."""

    def __init__(self, store: MessageStore, acknowledger: Acknowledger, kernel: SendKernel, counters: Counters) -> None:
        self.store = store
        self.acknowledger = acknowledger
        self.kernel = kernel
        self.counters = counters

    def begin(self, new_answers: Callable[[], OfRun]) -> SendTurn[OfRun]:
        """A turn, each run of which has answers that are made so."""
        return SendTurn(self, new_answers)


class SendTurn(Generic[OfRun]):
    """The runs of a turn, one after the other. `run` is the present one, `answers` are what is told of it; `error` says why there
    is none any more."""

    __slots__ = (
        "_acknowledger",
        "_counters",
        "_kernel",
        "_least_bytes",
        "_new_answers",
        "_store",
        "answers",
        "error",
        "run",
    )

    def __init__(self, turns: SendTurns, new_answers: Callable[[], OfRun]) -> None:
        self._store = turns.store
        self._acknowledger = turns.acknowledger
        self._kernel = turns.kernel
        self._counters = turns.counters
        self._new_answers = new_answers
        self._least_bytes = 0
        self.run: Run | None = None
        self.answers: OfRun  # when there is a run
        self.error = self._acknowledger.refusal()

    def begin_run(self) -> Run | None:
        """The next run; None when nothing is taken any more in this turn."""
        if self.error is None:
            try:
                self.run = self._store.begin_run(self._least_bytes)
                self.answers = self._new_answers()
            except LogboomError as error:
                self.error = as_request_error(error, codes.SERVICE_NOT_AVAILABLE)
        return self.run

    def take(self, offers: Iterable[Offer[OfRun]]) -> None:
        """Take of the offers what is for the kernel, of as many as possible at once, in their order."""
        rest = deque([offer for offer in offers if offer.goes_on])
        while rest:
            run = self.run or self.begin_run()
            if run is None:
                for offer in rest:
                    offer.leave()
                return
            answers = self.answers
            for taken in self._kernel.take(run, _sources_of(rest)):
                offer = rest.popleft()
                offer.note(taken, answers)
            if taken.stop is not Stop.END and offer.goes_on:
                rest.appendleft(offer)
            self.laid_out()
            if taken.stop is Stop.FULL:
                self.append(run.room + 1)

    def laid_out(self) -> None:
        """Something was laid out in the present run, and its answers know of it."""
        run = self.run
        assert run is not None
        if run.size >= _MAX_RUN_BYTES:
            self.append()

    def append(self, least_bytes: int = 0) -> None:
        """Append the present run, and have it answered when it is acknowledged. The next has room for so many bytes."""
        run = self.run
        self._least_bytes = least_bytes
        if run is None:
            return
        answers, self.run = self.answers, None
        if not run.records:
            return
        try:
            self._store.append_laid_out(run)
        except LogboomError as error:
            answers.refused(as_request_error(error, codes.SERVICE_NOT_AVAILABLE))
            return
        self._acknowledger.appended(run.end_offset)
        if answers.appended(run):
            self._acknowledger.wait(
                run.end_offset, self._counters.timed(run.message_count, partial(_tell_status, answers))
            )
        else:
            self._counters.unawaited(run.message_count)
        self._counters.stored(run)  # behind the answers, for which somebody may wait


def _tell_status(answers: Answers, status: PutStatus) -> None:
    if status not in _STORED:
        answers.refused(RequestError(codes.SERVICE_NOT_AVAILABLE, ROLE_CHANGED))
    else:
        answers.acknowledged(status)


def _sources_of(offers: Iterable[Offer[OfRun]]) -> list[Source]:
    """For one call of the kernel: no more than a run should have, and one at least."""
    sources: list[Source] = []
    size = 0
    for offer in offers:
        source = offer.source()
        size += len(source.buffer) - source.position
        if sources and size > _MAX_RUN_BYTES:
            break
        sources.append(source)
    return sources
