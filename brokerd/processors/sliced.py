"""Requests that look at many queues or groups before they are answered: in portions, by turns, and all of them together so much
in a turn of the loop. What a closed connection asked for is dropped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.store.cold import ColdMiss, all_of
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each

log = logging.getLogger(__name__)

LOOKS_AT_ONCE: Final = 512  # in one turn: some milliseconds
MOST_REQUESTS: Final = 256
_PORTION: Final = 32
_MOST_MISSES: Final = 16

T = TypeVar("T")
# Answers a request; yields how many looks it took since it last did. It does nothing else before it has all that it needs.
Answering = Callable[[RemotingConnection, Command], Iterator[int]]


def in_portions(ask: Callable[[int], T], queue_ids: Iterable[int]) -> Generator[int, None, list[T]]:
    """What is asked of each queue. Raises ColdMiss when some of it has to be fetched; all of that is, at the same time."""
    found: list[T] = []
    left = iter(queue_ids)
    miss: ColdMiss | None = None
    while portion := list(islice(left, _PORTION)):
        try:
            found += all_of(ask, portion)
        except ColdMiss as error:
            miss = error
        yield len(portion)
    if miss is not None:
        raise miss
    return found


class _Work:
    """One request."""

    __slots__ = ("answering", "connection", "misses", "request", "steps")

    def __init__(self, answering: Answering, connection: RemotingConnection, request: Command) -> None:
        self.answering = answering
        self.connection = connection
        self.request = request
        self.misses = 0
        self.steps: Iterator[int] = iter(())

    def refuse(self, error: LogboomError) -> None:
        self.connection.respond_error(self.request, error)


class Slices:
    """Those that are being answered. `call_soon` is the loop's; `waits` has those that wait for the tier."""

    def __init__(self, call_soon: Callable[..., Any], waits: FetchWaits) -> None:
        self._call_soon = call_soon
        self._waits = waits
        self._works: deque[_Work] = deque()
        self._left = LOOKS_AT_ONCE  # in this turn
        self._next_turn_comes = False

    def handler(self, answering: Answering) -> Handler:
        """As `each`; a short answer is given at once."""

        def handle(connection: RemotingConnection, request: Command) -> None:
            if len(self._works) >= MOST_REQUESTS:
                raise RequestError(
                    codes.SYSTEM_BUSY, f"{MOST_REQUESTS} requests look at many queues already; try again"
                )
            self._begin(_Work(answering, connection, request))

        return each(handle)

    def connection_closed(self, connection: object) -> None:
        self._works = deque(work for work in self._works if work.connection is not connection)

    # ---- inside

    def _begin(self, work: _Work) -> None:
        work.steps = work.answering(work.connection, work.request)
        self._works.append(work)
        self._work_off()

    def _work_off(self) -> None:
        while self._works and self._left > 0:
            work = self._works.popleft()
            if self._step(work):
                self._works.append(work)
        if not self._next_turn_comes and (self._works or self._left < LOOKS_AT_ONCE):
            self._next_turn_comes = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._next_turn_comes = False
        self._left = LOOKS_AT_ONCE
        self._work_off()

    def _step(self, work: _Work) -> bool:
        """Whether there is more to do."""
        try:
            looks = next(work.steps, None)
        except ColdMiss as miss:
            self._wait(work, miss)
        except LogboomError as error:
            work.refuse(error)
        except Exception as error:
            log.exception("request %d of %s failed", work.request.code, work.connection.peer)
            work.refuse(RequestError(codes.SYSTEM_ERROR, f"internal error: {type(error).__name__}"))
        else:
            self._left -= looks or 0
            return looks is not None
        return False

    def _wait(self, work: _Work, miss: ColdMiss) -> None:
        """Begin anew when what was missed is there."""
        misses = [miss]

        def ask() -> None:
            if misses:
                raise misses.pop()
            self._begin(work)

        work.misses += 1
        try:
            if work.misses > _MOST_MISSES:
                raise RequestError(codes.SYSTEM_BUSY, "the tier did not keep what this needs long enough; try again")
            self._waits.attempt(work.connection, ask, work.refuse)
        except RequestError as error:
            work.refuse(error)
