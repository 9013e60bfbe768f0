"""Requests of this end of a connection that were not answered yet, matched with their answers by opaque."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from remoting.errors import ConnectionLost, LogboomError, RequestTimeout
from remoting.frame import Command

Answered = Callable[[Command | LogboomError], None]

_MAX_OPAQUE: Final = 0x7FFFFFFF


class OpenRequests:
    """Those of one connection. Each is told its answer, ConnectionLost or RequestTimeout, exactly once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._last_opaque = 0
        self._open: dict[int, tuple[Answered, asyncio.TimerHandle]] = {}

    def next_opaque(self) -> int:
        """One that no open request has."""
        self._last_opaque = (self._last_opaque + 1) & _MAX_OPAQUE
        return self._last_opaque

    def begin(self, code: int, peer: str, timeout_ms: int, answered: Answered) -> int:
        """The opaque of a request to that peer, whose answer is waited for from now on."""
        opaque = self.next_opaque()
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, opaque, code, peer, timeout_ms)
        self._open[opaque] = answered, timer
        return opaque

    def resolve(self, response: Command) -> None:
        """An answer came; one that nobody waits for is dropped."""
        entry = self._open.pop(response.opaque, None)
        if entry is not None:
            answered, timer = entry
            timer.cancel()
            answered(response)

    def lose(self, peer: str) -> None:
        """The connection to that peer closed."""
        lost, self._open = self._open, {}
        for answered, timer in lost.values():
            timer.cancel()
            answered(ConnectionLost(f"the connection to {peer} closed"))

    def _expire(self, opaque: int, code: int, peer: str, timeout_ms: int) -> None:
        answered, _ = self._open.pop(opaque)
        answered(RequestTimeout(f"{peer} did not answer request {code} within {timeout_ms} ms"))


def told_to(future: asyncio.Future[Command]) -> Answered:
    """What gives the answer to a future, unless its owner gave it up; the answer keeps its body."""

    def answered(result: Command | LogboomError) -> None:
        if future.done():
            return
        if isinstance(result, LogboomError):
            future.set_exception(result)
        else:
            result.body = bytes(result.body)
            future.set_result(result)

    return answered
