"""The sockets between brokers: the driver's `Outlet` over all of them, and the one that this broker dials.

Connections have numbers here, and the driver knows only those. A connection that was closed from this side is forgotten at once:
whatever still arrives on it reaches nobody. Closing is always abrupt, since what would be waiting to be sent belongs to a role
that has ended, and a peer that hangs must not be waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

from brokerd.replication.roles.driver import ReplicationDriver
from remoting.disk import Bytes
from remoting.errors import LogboomError
from remoting.invariants import what_broke
from remoting.transport.client import split_address
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 1.0
_CLOSE_TIMEOUT_S = 1.0
_BUFFER_BYTES = 1024 * 1024


class Hub:
    """All replication connections of this broker; implements `log_sender.Outlet`."""

    def __init__(
        self,
        make_driver: Callable[[Hub], ReplicationDriver],
        now_ms: Callable[[], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`make_driver` gets this hub as its outlet; the driver is then told what happens. `tls`: what masters are dialled with,
        None = in plaintext."""
        self._tls = tls
        self.now_ms = now_ms
        self._connections: dict[int, Connection] = {}
        self._sockets: set[int] = set()  # also those that were closed from here and are not gone yet
        self._drained: asyncio.Event | None = None
        self.on_event: Callable[[], None] | None = None  # called after each event
        self._next = 1
        self._tasks = TaskOwner("replication")
        self.driver = make_driver(self)

    def tell(self, event: Callable[..., None], /, *arguments: Any) -> bool:
        """Tell the driver, or who tells it, of an event at this time; whether that went well.

        An unexpected error means that an invariant broke: the broker must not go on.
        """
        try:
            event(*arguments, self.now_ms())
        except Exception as error:  # the outermost edge of every event
            log.exception("replication broke")
            self.driver.break_down(f"replication broke: {what_broke(error)}", self.now_ms())
            return False
        if self.on_event is not None:
            self.on_event()
        return True

    def register(self, connection: Connection) -> int:
        number = self._next
        self._next += 1
        self._connections[number] = connection
        self._sockets.add(number)
        return number

    def knows(self, number: int) -> bool:
        return number in self._connections

    def peer_of(self, number: int) -> str:
        """host:port of the other end; "" when it is gone."""
        found = self._connections.get(number)
        peer = found.transport.get_extra_info("peername") if found is not None and found.transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else ""

    def lost(self, number: int) -> None:
        """The socket is gone; nothing is said when it was this side that closed it."""
        self._sockets.discard(number)
        if self._drained is not None and not self._sockets:
            self._drained.set()
        if self._connections.pop(number, None) is not None:
            self.tell(self.driver.lost, number)

    # log_sender.Outlet

    def connect(self, address: str, attempt: int) -> None:
        self._tasks.spawn(self._connect(address, attempt), f"connect to {address}")

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        found = self._connections.get(connection)
        if found is not None and found.transport is not None:
            found.transport.writelines(buffers)

    def can_send(self, connection: int) -> bool:
        found = self._connections.get(connection)
        return found is not None and not found.paused

    def close(self, connection: int) -> None:
        found = self._connections.pop(connection, None)
        if found is not None and found.transport is not None:
            found.transport.abort()

    async def close_all(self) -> None:
        """Close every connection and wait until the sockets are gone."""
        await self._tasks.close()
        for number in list(self._connections):
            self.close(number)
        if self._sockets:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._drained.wait()

    async def _connect(self, address: str, attempt: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: DialledConnection(self, attempt), host, port, ssl=self._tls)
        except (OSError, TimeoutError, LogboomError) as error:
            reason = f"cannot connect to the master's replication at {address}: {error or 'no answer'}"
            self.tell(self.driver.connect_failed, attempt, reason)


class Connection(asyncio.BaseProtocol):
    """One connection between brokers, whichever end dialled it."""

    def __init__(self, hub: Hub) -> None:
        self.transport: asyncio.Transport | None = None
        self.paused = False
        self._hub = hub
        self._number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport has the methods of asyncio.Transport without being one.
        self.transport = cast(asyncio.Transport, transport)
        self._number = self._hub.register(self)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._hub.lost(self._number)


class DialledConnection(Connection, asyncio.BufferedProtocol):
    """A replica's connection to its master.

    Bytes are received into one buffer that is used over and over; log bytes go from there to the log file without being put
    together or copied in between, because the driver uses them before the next read.
    """

    def __init__(self, hub: Hub, attempt: int) -> None:
        super().__init__(hub)
        self._attempt = attempt
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._hub.tell(self._hub.driver.connected, self._attempt, self._number)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._hub.knows(self._number):
            self._hub.tell(self._hub.driver.received, self._number, self._buffer[:nbytes])
