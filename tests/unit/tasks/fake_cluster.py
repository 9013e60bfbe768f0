"""A controller and brokers on loopback that answer from a table: enough of the protocol to be asked about and read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from remoting import codes
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import RemotingServer


def answering(answer: Callable[[Command], Any]) -> Handler:
    """A handler that answers every request with a JSON body."""

    def handle(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            connection.respond(request, codes.SUCCESS, body=orjson.dumps(answer(request)))

    return handle


async def serve(handlers: dict[int, Handler]) -> RemotingServer:
    """A server on a free port."""
    server = RemotingServer("127.0.0.1", 0, handlers)
    await server.start()
    return server
