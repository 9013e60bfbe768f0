"""Request handlers that count themselves, under the names that the protocol gives its requests."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from controllerd.metrics import Counters
from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

Handle = Callable[[RemotingConnection, Command], None]
AsyncHandle = Callable[[RemotingConnection, Command], Coroutine[Any, Any, None]]

_TYPES: Final = {code: name for name, code in vars(codes).items() if isinstance(code, int) and 900 <= code < 1100}


def measured(counters: Counters, code: int, handle: Handle) -> Handle:
    """The same handler, counted and timed."""
    name = _TYPES.get(code, str(code))

    def counted(connection: RemotingConnection, request: Command) -> None:
        with counters.request_types.measured(name):
            handle(connection, request)

    return counted


def measured_async(counters: Counters, code: int, handle: AsyncHandle) -> AsyncHandle:
    """The same for one that awaits."""
    name = _TYPES.get(code, str(code))

    async def counted(connection: RemotingConnection, request: Command) -> None:
        with counters.request_types.measured(name):
            await handle(connection, request)

    return counted
