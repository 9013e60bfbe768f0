"""Requests to tidy up now: old files (329), expired queues (306), unused topics (316).

Queues follow the log and the queues of a deleted topic go with it, so the last two ask for what is done already; all of them make
the next round of retention begin at once.
"""

from __future__ import annotations

from collections.abc import Callable

from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each


class CleaningProcessor:
    """The handlers. `begin` makes a round of retention begin soon."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        wanted = (codes.CLEAN_EXPIRED_CONSUMEQUEUE, codes.CLEAN_UNUSED_TOPIC, codes.DELETE_EXPIRED_COMMITLOG)
        return dict.fromkeys(wanted, each(self._clean))

    def _clean(self, connection: RemotingConnection, request: Command) -> None:
        self._begin()
        connection.respond(request)
