"""The sockets between brokers: the replication listener, the connection to the master, and the driver's `Outlet` over both.

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
from typing import Any, Protocol

from brokerd.replication.roles.driver import ReplicationDriver
from remoting.disk import Bytes
from remoting.errors import LogboomError
from remoting.transport.client import split_address
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 1.0
_CLOSE_TIMEOUT_S = 1.0


class Link(Protocol):
    """One connection as the hub sees it."""

    transport: asyncio.Transport | None
    paused: bool


class Hub:
    """All replication connections of this broker; implements `driver.Outlet`."""

    def __init__(self, now_ms: Callable[[], int], tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what masters are dialled with, None = in plaintext."""
        self._tls = tls
        self.now_ms = now_ms
        self._links: dict[int, Link] = {}
        self._sockets: set[int] = set()  # also those that were closed from here and are not gone yet
        self._drained: asyncio.Event | None = None
        self._next = 1
        self._tasks = TaskOwner("replication")
        self._driver: ReplicationDriver | None = None
        self._dial: Callable[[Hub, int], asyncio.BaseProtocol] | None = None

    def attach(self, driver: ReplicationDriver, dial: Callable[[Hub, int], asyncio.BaseProtocol]) -> None:
        """The driver that is told what happens, and the maker of a protocol for a dialled connection (hub, attempt)."""
        self._driver = driver
        self._dial = dial

    @property
    def driver(self) -> ReplicationDriver:
        assert self._driver is not None
        return self._driver

    def tell(self, event: Callable[..., None], *arguments: Any) -> None:
        """Tell the driver of an event. An unexpected error means that an invariant broke: the broker must not go on."""
        try:
            event(*arguments, self.now_ms())
        except Exception as error:  # the outermost edge of every socket event
            log.exception("replication broke")
            self.driver.break_down(f"replication broke: {error}", self.now_ms())

    def register(self, link: Link) -> int:
        number = self._next
        self._next += 1
        self._links[number] = link
        self._sockets.add(number)
        return number

    def knows(self, number: int) -> bool:
        return number in self._links

    def peer_of(self, number: int) -> str:
        """host:port of the other end; "" when it is gone."""
        link = self._links.get(number)
        peer = link.transport.get_extra_info("peername") if link is not None and link.transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else ""

    def lost(self, number: int) -> None:
        """The socket is gone; nothing is said when it was this side that closed it."""
        self._sockets.discard(number)
        if self._drained is not None and not self._sockets:
            self._drained.set()
        if self._links.pop(number, None) is not None:
            self.tell(self.driver.lost, number)

    # driver.Outlet

    def connect(self, address: str, attempt: int) -> None:
        self._tasks.spawn(self._connect(address, attempt), f"connect to {address}")

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        link = self._links.get(connection)
        if link is not None and link.transport is not None:
            link.transport.writelines(buffers)

    def can_send(self, connection: int) -> bool:
        link = self._links.get(connection)
        return link is not None and not link.paused

    def close(self, connection: int) -> None:
        link = self._links.pop(connection, None)
        if link is not None and link.transport is not None:
            link.transport.abort()

    async def close_all(self) -> None:
        """Close every connection and wait until the sockets are gone."""
        await self._tasks.close()
        for number in list(self._links):
            self.close(number)
        if self._sockets:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await self._drained.wait()

    async def _connect(self, address: str, attempt: int) -> None:
        assert self._dial is not None
        dial = self._dial
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await loop.create_connection(lambda: dial(self, attempt), host, port, ssl=self._tls)
        except (OSError, TimeoutError, LogboomError) as error:
            reason = f"cannot connect to the master's replication at {address}: {error or 'no answer'}"
            self.tell(self.driver.connect_failed, attempt, reason)
