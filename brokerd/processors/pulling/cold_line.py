"""Requests for old messages, which only the tier has, stand in the line of all who read there (`brokerd/loop/cold_line.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from brokerd.loop.cold_line import FULL, ColdLine
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection

MOST_HELD_BYTES: Final = 64 << 20  # by all who stand in line: what of their requests is kept
_LONGEST_NUMBER: Final = 20
_LATE: Final = RequestError(
    codes.SYSTEM_BUSY,
    "[TIMEOUT_CLEAN_QUEUE]this request for messages that only the tier has waited longer than its kind may (flow.pull_wait_ms); "
    "try again",
)
_MUCH: Final = RequestError(
    codes.SYSTEM_BUSY,
    f"[OVERLOAD]requests for messages that only the tier has wait already, with {MOST_HELD_BYTES >> 20} MiB of fields; try "
    "again later",
)


@dataclass(slots=True)
class ColdRequests:
    """Without a tier there is no line. `is_cold` says whether a queue's message with that offset is not in files any more. Who
    stood in line for `wait_ms` is refused, and who would make what is kept of requests there more than MOST_HELD_BYTES."""

    line: ColdLine | None
    is_cold: Callable[[str, int, int], bool]
    wait_ms: int
    held_bytes: int = 0

    def in_line(self, handler: Handler) -> Handler:
        """The same for requests of a queue from an offset on, in their turns. How many of one connection stand there is bounded
        by how many it may have open."""
        line = self.line
        if line is None:
            return handler

        def handle(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            for request in requests:
                if not _asks_for(request.ext, self.is_cold):
                    handler(connection, (request,))
                else:
                    self._enter(handler, connection, request)

        return handle

    def enter(
        self, connection: RemotingConnection, size: int, request: Callable[[], Command], turn: Callable[[], None]
    ) -> None:
        """Have the turn of a request of the connection, now or later; `request` decodes it for who says something else to it.
        So many bytes of it are kept until then."""
        line = self.line
        assert line is not None, "without a line nobody stands in it"
        until_s = line.clock_s() + self.wait_ms / 1000
        if self.held_bytes + size > MOST_HELD_BYTES:
            connection.respond_error(request(), _MUCH)
            return
        self.held_bytes += size

        def have_it() -> None:
            self.held_bytes -= size
            turn()

        def still() -> bool:
            if is_wanted():
                return True
            self.held_bytes -= size
            return False

        def is_wanted() -> bool:
            if not connection.is_open:
                return False
            if connection.is_slow:  # it has answers in front of this one to read
                connection.take_back(request())
                return False
            if line.clock_s() > until_s:
                connection.respond_error(request(), _LATE)
                return False
            return True

        if not line.enter(connection, have_it, still):
            self.held_bytes -= size
            connection.respond_error(request(), FULL)

    def _enter(self, handler: Handler, connection: RemotingConnection, request: Command) -> None:
        # Nobody needs these, and the body is a view of all that was read with it
        request.body = b""
        request.remark = None
        size = sum(len(name) + len(value) for name, value in request.ext.items())
        self.enter(connection, size, lambda: request, partial(handler, connection, (request,)))


def _asks_for(ext: dict[str, str], is_cold: Callable[[str, int, int], bool]) -> bool:
    """Whether it asks for what is cold, if it is a right one at all: what is wrong with it is said by its handler."""
    queue_id, offset = ext.get("queueId", ""), ext.get("queueOffset", "")
    if len(queue_id) > _LONGEST_NUMBER or len(offset) > _LONGEST_NUMBER:
        return False
    try:
        return is_cold(ext.get("topic", ""), int(queue_id), int(offset))
    except ValueError:
        return False
