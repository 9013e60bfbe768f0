"""The dialling side: one connection per address, made on demand and remade after a loss."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.limits import ConnectionLimits


def split_address(address: str) -> tuple[str, int]:
    """(host, port) of host:port; raises InvalidParameter with the rule."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidParameter(f"{address!r} is not an address: write host:port with a port from 1 to 65535")
    return host.strip("[]"), int(port)


async def connect(
    address: str,
    *,
    handlers: Mapping[int, Handler] | None = None,
    closed: Callable[[RemotingConnection], None] | None = None,
    timeout_ms: int = 1000,
    unreachable_ms: int = 0,
    identity: Identity = NOBODY,
) -> RemotingConnection:
    """Dial an address. Raises ConnectionLost when it does not answer in time.

    `unreachable_ms` > 0 closes the connection when the other machine has acknowledged nothing of what was sent for so long.
    Without it a connection outlives a cut network for minutes, and after the heal still waits for its next, rare repetition.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, connection = await loop.create_connection(
                lambda: RemotingConnection(handlers or {}, ConnectionLimits(always_reads=True), closed=closed),
                host,
                port,
                ssl=identity.tls,
            )
        if unreachable_ms:
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unreachable_ms)
    except (OSError, TimeoutError) as error:
        raise ConnectionLost(f"cannot connect to {address}: {error or 'no answer'}") from error
    if identity.credentials is not None:
        connection.sign_with(identity.credentials.signer((connection.peer_address, address)))
    return connection


class RemotingClient:
    """Requests to any number of addresses over one connection each. `unreachable_ms`: see `connect`."""

    def __init__(self, *, unreachable_ms: int = 0, identity: Identity = NOBODY) -> None:
        self._identity = identity
        self._unreachable_ms = unreachable_ms
        self._connections: dict[str, RemotingConnection] = {}
        self._dialling: dict[str, asyncio.Lock] = {}

    async def connection(self, address: str) -> RemotingConnection:
        """The open connection to an address, dialled if there is none. Raises ConnectionLost."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        async with self._dialling.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = self._connections[address] = await connect(
                    address, unreachable_ms=self._unreachable_ms, identity=self._identity
                )
        return connection

    async def dial(self, address: str, handlers: Mapping[int, Handler]) -> RemotingConnection:
        """A connection of the caller's own, who closes it; what the other side asks on it is handled. Raises ConnectionLost."""
        return await connect(address, handlers=handlers, unreachable_ms=self._unreachable_ms, identity=self._identity)

    async def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        timeout_ms: int = 3000,
        accept: tuple[int, ...] = (codes.SUCCESS,),
    ) -> Command:
        """Ask and wait; an answer whose code is not in `accept` is raised as RequestError."""
        connection = await self.connection(address)
        response = await connection.call(code, ext, body, timeout_ms)
        if response.code not in accept:
            raise RequestError(response.code, response.remark or f"{address} answered code {response.code}")
        return response

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
