"""Requests for old messages, which only the tier has, stand in line: one is answered in a turn of the loop, behind all else.

A broker's event loop serves whoever is ready in a turn one after the other. Many who read what is old keep it busy all the time,
and whoever reads what is new would wait for an answer to each of them; so he waits for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from brokerd.loop.scheduler import Scheduler
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection

_LONGEST_NUMBER = 20


class ColdLine:
    """All of them. `is_cold` says whether a queue's message with that offset is not in files any more; None without a tier."""

    def __init__(self, is_cold: Callable[[str, int, int], bool] | None, scheduler: Scheduler) -> None:
        self._is_cold = is_cold
        self._scheduler = scheduler
        self._line: deque[tuple[Handler, RemotingConnection, Command]] = deque()
        self._is_taken = False  # this turn, or the line's next one is on its way

    def in_line(self, handler: Handler) -> Handler:
        """The same for requests of a queue from an offset on, in their turns. How many stand there is bounded by how many each
        connection may have open."""
        is_cold = self._is_cold
        if is_cold is None:
            return handler

        def handle(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            for request in requests:
                if not _asks_for(request.ext, is_cold):
                    handler(connection, (request,))
                elif self._is_taken:
                    request.body = b""  # nobody needs it, and it is a view of all that was read with it
                    self._line.append((handler, connection, request))
                else:
                    self._take_turn()
                    handler(connection, (request,))

        return handle

    def _take_turn(self) -> None:
        self._is_taken = True
        self._scheduler.call_soon(self._next)

    def _next(self) -> None:
        self._is_taken = False
        while self._line and not self._is_taken:
            handler, connection, request = self._line.popleft()
            if not connection.is_open:
                continue
            if connection.is_slow:  # it has answers in front of this one to read
                connection.take_back(request)
                continue
            self._take_turn()
            handler(connection, (request,))


def _asks_for(ext: dict[str, str], is_cold: Callable[[str, int, int], bool]) -> bool:
    """Whether it asks for what is cold, if it is a right one at all: what is wrong with it is said by its handler."""
    queue_id, offset = ext.get("queueId", ""), ext.get("queueOffset", "")
    if len(queue_id) > _LONGEST_NUMBER or len(offset) > _LONGEST_NUMBER:
        return False
    try:
        return is_cold(ext.get("topic", ""), int(queue_id), int(offset))
    except ValueError:
        return False
