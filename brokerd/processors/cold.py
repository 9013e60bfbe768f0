"""Handlers of requests that may ask for what is in the tier only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.consuming.fetch_waits import FetchWaits
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each

Handle = Callable[[RemotingConnection, Command], None]


def each_cold(waits: FetchWaits, handle: Handle) -> Handler:
    """Like `each`; `handle` is called again when what it missed is there, so it does nothing before it has all that it needs."""

    def attempt(connection: RemotingConnection, request: Command) -> None:
        body = bytes(request.body)

        def ask() -> None:
            request.body = body
            handle(connection, request)

        waits.attempt(connection, ask, partial(connection.respond_error, request))

    return each(attempt)
