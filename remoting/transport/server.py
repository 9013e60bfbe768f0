"""The listening side: accepts remoting connections, keeps the list of them, closes idle ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from remoting import codes
from remoting.errors import LogboomError, SettingsError
from remoting.frame import Command
from remoting.transport.connection import Handler, Intake, RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.refusals import Refusals
from remoting.transport.taking import BufferTaker
from remoting.transport.tasks import TaskOwner
from remoting.transport.tls import ENFORCING, TlsServer, TlsSettings, accepting
from remoting.transport.waiting import MOST_STRANGERS, Waiting
from remoting.transport.watch import UnfinishedSettings, Watch

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 10_000
_IDLE_S = 120.0
_SWEEP_S = 10.0
_DRAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens, and with which TLS. `second_port` is served as well, if it is free, and the ports on further hosts,
    which have to be."""

    host: str
    port: int
    second_port: int | None = None
    tls: TlsServer | None = None
    further_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What a server bears: of each connection; how many peers that do not read their answers, of more, those that began first are
    closed; how many connections. Without an intake, unfinished frames have a budget of the server's own."""

    connection: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_slow_readers: int = 256
    max_connections: int = MAX_CONNECTIONS
    intake: Intake | None = None


class RemotingServer:
    """The listener of one place. `handlers` may be filled until `start`."""

    def __init__(
        self,
        place: Place,
        handlers: Mapping[int, Handler],
        *,
        limits: ServerLimits | None = None,
        closed: Callable[[RemotingConnection], None] | None = None,
        taker: BufferTaker[RemotingConnection] | None = None,
        connections: set[RemotingConnection] | None = None,
    ) -> None:
        """The taker is offered what connections read. The open ones are kept in `connections`."""
        self._place = place
        self._handlers = handlers
        self._limits = limits or ServerLimits()
        self._intake = self._limits.intake or Intake(Watch(UnfinishedSettings()))
        self._taker = taker
        self._slow: dict[RemotingConnection, None] = {}  # in the order in which they became so
        self._strangers = Waiting(MOST_STRANGERS)
        self._refusals = Refusals(log, "connections")
        self._on_closed = closed
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None
        self.connections: set[RemotingConnection] = set() if connections is None else connections

    @property
    def port(self) -> int:
        """The bound port (the one given, or the one chosen for 0)."""
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Bind and serve. Raises SettingsError when the address cannot be bound."""
        place = self._place
        try:
            await self._listen(place.port)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {' and '.join((place.host, *place.further_hosts))}, port {place.port}: {error.strerror}; free "
                "the port or choose another one"
            ) from error
        if place.second_port is not None:
            try:
                await self._listen(place.second_port)
            except OSError as error:
                log.warning("not listening on %s:%d as well: %s", place.host, place.second_port, error.strerror)
        self._sweep()

    async def _listen(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        accept = accepting(self._place.tls, self._accept)
        hosts = (self._place.host, *self._place.further_hosts)
        self._servers.append(await loop.create_server(accept, hosts, port, backlog=1024))

    async def close(self) -> None:
        """Stop listening, send what is queued, close every connection and wait for it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_S):
                    await self._drained.wait()
        for connection in list(self.connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()

    def _accept(self) -> RemotingConnection:
        return RemotingConnection(
            self._handlers,
            self._limits.connection,
            self._connection_opened,
            self._connection_closed,
            taker=self._taker,
            intake=self._intake,
        )

    def _connection_opened(self, connection: RemotingConnection) -> None:
        if len(self.connections) >= self._limits.max_connections and not self._strangers.make_room():
            self._refusals.note(connection.peer, len(self.connections))
            connection.abort()
        self.connections.add(connection)
        if connection.is_stranger:
            connection.watch_proof(self._strangers.end)
            self._strangers.begin(connection)
        connection.watch_slowness(self._slowness_changed)

    def _slowness_changed(self, connection: RemotingConnection, is_slow: bool) -> None:
        if not is_slow:
            self._slow.pop(connection, None)
            return
        self._slow[connection] = None
        while len(self._slow) > self._limits.max_slow_readers:
            oldest = next(iter(self._slow))
            del self._slow[oldest]
            log.warning("closing the connection of %s: too many peers do not read their answers", oldest.peer)
            oldest.abort()

    def _connection_closed(self, connection: RemotingConnection) -> None:
        self.connections.discard(connection)
        self._strangers.end(connection)
        self._slow.pop(connection, None)
        if self._drained is not None and not self.connections:
            self._drained.set()
        if self._on_closed is not None:
            self._on_closed(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - _IDLE_S
        for connection in [each for each in self.connections if each.last_active < oldest]:
            log.info("closing %s: idle for %d s", connection.peer, _IDLE_S)
            connection.close()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)


def each(handle: Callable[[RemotingConnection, Command], None]) -> Handler:
    """A handler for one request at a time: a LogboomError it raises becomes the answer, any other error a SYSTEM_ERROR.

    The body is there until `handle` returns: it is a view of all that was read together with the request, which somebody who
    keeps the request to answer it later must not hold.
    """

    def handler(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            try:
                handle(connection, request)
            except LogboomError as error:
                connection.respond_error(request, error)
            except Exception as error:
                log.exception("request %d of %s failed", request.code, connection.peer)
                connection.respond(request, codes.SYSTEM_ERROR, remark=f"internal error: {type(error).__name__}")
            request.body = b""

    return handler


def spawned(owner: TaskOwner, handle: Callable[[RemotingConnection, Command], Coroutine[Any, Any, None]]) -> Handler:
    """A handler that may await (administration only): each request runs as a task of `owner`."""

    async def run(connection: RemotingConnection, request: Command) -> None:
        try:
            await handle(connection, request)
        except LogboomError as error:
            connection.respond_error(request, error)
        except Exception as error:
            log.exception("request %d of %s failed", request.code, connection.peer)
            connection.respond(request, codes.SYSTEM_ERROR, remark=f"internal error: {type(error).__name__}")

    def handler(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            request.body = bytes(request.body)
            owner.spawn(run(connection, request), f"request {request.code}")

    return handler


def check_reach(host: str, what: str, *, authentication: bool, tls: TlsSettings) -> None:
    """Refuse an address that other machines can reach, unless all who connect are authenticated and speak TLS.

    Raises SettingsError with the sentence that says what to do.
    """
    if authentication and tls.mode == ENFORCING:
        return
    if not is_loopback(host, what):
        raise SettingsError(
            f"{what} {host!r} is reachable from other machines, which needs authentication and TLS on this listener: set "
            "access.authentication=true, tls.mode=enforcing, tls.certificate_path and tls.key_path, or bind it to 127.0.0.1"
        )


def check_loopback(host: str, what: str) -> None:
    """Refuse an address that other machines can reach: this listener has neither authentication nor TLS.

    Raises SettingsError with the sentence that says what to do.
    """
    if not is_loopback(host, what):
        raise SettingsError(
            f"{what} {host!r} is reachable from other machines, and this listener has neither authentication nor TLS; bind it to "
            "127.0.0.1"
        )


def is_loopback(host: str, what: str) -> bool:
    """Whether only this machine reaches an address. Raises SettingsError when it is none of this machine."""
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError as error:
        raise SettingsError(f"{what} {host!r} is not an address of this machine: {error}") from error
    return all(address.startswith("127.") or address == "::1" for address in addresses)
