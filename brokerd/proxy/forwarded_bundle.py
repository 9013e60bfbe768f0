"""The master's side of sends that a replica forwarded together (`bundles.py`): each is a call of its own to the methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.proxy.bundles import BundledAnswer, Outcome, encode_answers
from brokerd.proxy.calls import GrpcStatus
from brokerd.proxy.forwarded_call import MORE_FIELD, ForwardedCall
from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class ForwardedBundle:
    """So many calls that came in one request. What is answered in a turn of the loop goes back together; `done` is told when all
    is answered. `request` is the one to answer next, None until the replica asks for more."""

    def __init__(
        self,
        connection: RemotingConnection,
        request: Command,
        count: int,
        scheduler: Scheduler,
        done: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._request: Command | None = request
        self._left = count
        self._scheduler = scheduler
        self._done = done
        self._answers: list[BundledAnswer] = []
        self._timer: Timer | None = None

    def add(self, answer: BundledAnswer) -> None:
        """One of its calls is answered."""
        self._left -= 1
        self._answers.append(answer)
        if self._request is None:
            return
        if not self._left:
            self._respond()
        elif self._timer is None:
            self._timer = self._scheduler.call_later(0, self._respond)

    def fetch(self, request: Command) -> None:
        """The replica asks for more answers."""
        self._request = request
        if self._answers:
            self._respond()

    def cancel(self) -> None:
        """Nobody waits for the answers."""
        self._drop_timer()
        self._request = None

    def _respond(self) -> None:
        self._drop_timer()
        request, self._request = self._request, None
        answers, self._answers = self._answers, []
        assert request is not None
        if not self._left:
            self._done()
        more = {MORE_FIELD: "1"} if self._left else None
        self._connection.respond(request, codes.SUCCESS, more, encode_answers(answers))

    def _drop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@dataclass(slots=True, eq=False, kw_only=True)
class BundledCall(ForwardedCall):
    """A unary call of a bundle, which has the request to answer."""

    bundle: ForwardedBundle

    def finish(self) -> None:
        self._end(Outcome.ANSWERED, self.messages[0] if self.messages else b"")

    def fail(self, status: GrpcStatus, text: str) -> None:
        self._end(Outcome.FAILED, text.encode())

    def give_back(self) -> None:
        self._end(Outcome.GIVEN_BACK, b"")

    def cancel(self) -> None:
        if self.live:
            on_cancel, self.on_cancel = self.on_cancel, None
            if on_cancel is not None:
                on_cancel()
            self._end(Outcome.FAILED, b"cancelled")

    def _end(self, outcome: Outcome, content: bytes) -> None:
        if self.live:
            self.live = False
            self.finished(self)
            self.bundle.add(BundledAnswer(self.origin.call_id, outcome, content))
