"""One long-lived connection to every controller: what a session wants sent goes out here, what comes back is handed to it.

The connections are also how controllers notice a death: a closed one is noticed at once. They are therefore made as early and
as often as possible (one over a cut network is given up and dialled anew), and nothing that a slow or frozen controller does may
block the others: one-way heartbeats to a controller that does not read are dropped, requests have a time-out. When no controller
can be reached, nothing else of the broker notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from brokerd.replication.controllers.controller_session import SessionRequest
from brokerd.replication.controllers.session import Session
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from remoting.transport.client import NOBODY, Identity, connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 0.25
_CLOSE_TIMEOUT_S = 1.0

Answered = Callable[[Command | LogboomError], None]


class ControllerLink:
    """The shell of a session."""

    def __init__(
        self,
        addresses: Sequence[str],
        session: Session,
        request_timeout_ms: int,
        unreachable_ms: int,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        broken: Callable[[str], None],
        identity: Identity = NOBODY,
    ) -> None:
        """A controller whose machine acknowledges nothing for `unreachable_ms` is dialled anew.

        `broken` is called when digesting an answer fails unexpectedly: the broker must not go on.
        """
        self._broken = broken
        self._identity = identity
        self.addresses = tuple(addresses)
        self._session = session
        self._request_timeout_ms = request_timeout_ms
        self._unreachable_ms = unreachable_ms
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._connections: dict[str, RemotingConnection] = {}
        self._closed: dict[str, asyncio.Event] = {}
        self._tasks = TaskOwner("controllers")
        self._connected_listeners: list[Callable[[str], None]] = []
        self._step_scheduled = False

    def on_connected(self, listener: Callable[[str], None]) -> None:
        """Called with the address of a controller whenever a connection to it was made."""
        self._connected_listeners.append(listener)

    @property
    def connected(self) -> list[str]:
        return sorted(address for address, connection in self._connections.items() if connection.is_open)

    def start(self) -> None:
        for address in self.addresses:
            self._connect_to(address)

    async def close(self) -> None:
        """End the tasks and close the connections, after sending what is queued."""
        await self._tasks.close()
        for connection in self._connections.values():
            connection.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                for address in self._connections:
                    await self._closed[address].wait()
        for connection in self._connections.values():
            connection.abort()
        self._connections.clear()

    def _connect_to(self, address: str) -> None:
        self._tasks.spawn(self._keep_connected(address), f"connection to {address}")

    def _follow_membership(self, addresses: tuple[str, ...]) -> None:
        """Controllers came or left."""
        before, self.addresses = self.addresses, addresses
        for address in addresses:
            if address not in before:
                self._connect_to(address)
        for address in before:
            if address not in addresses and address in self._connections:
                self._connections[address].close()

    def step_soon(self) -> None:
        """Let the session send what became due, before the loop's next wait."""
        if not self._step_scheduled:
            self._step_scheduled = True
            asyncio.get_running_loop().call_soon(self.step)

    def step(self) -> None:
        """Let the session send what is due now."""
        self._step_scheduled = False
        self._session.tick(self._now_ms(), self._wall_ms())
        if self._session.addresses != self.addresses:
            self._follow_membership(self._session.addresses)
        for request in self._session.take_requests():
            self._send(request)

    def request(
        self, address: str, code: int, ext: Mapping[str, str], body: Bytes, timeout_ms: int, answered: Answered
    ) -> None:
        """A request of another part (the name server link) over the same connection."""
        connection = self._connections.get(address)
        if connection is None:
            answered(ConnectionLost(f"no connection to {address}"))
        else:
            connection.request(code, ext, body, timeout_ms, answered)

    def _send(self, request: SessionRequest) -> None:
        connection = self._connections.get(request.address)
        if not request.token:
            if connection is not None:
                connection.notify(request.code, request.ext, request.body)
            return

        def answered(result: Command | LogboomError) -> None:
            try:
                if isinstance(result, LogboomError):
                    self._session.failed(request.token, str(result), self._now_ms())
                else:
                    self._session.answered(request.token, result.code, result.ext, bytes(result.body), self._now_ms())
            except Exception as error:  # the outermost edge of an answer
                log.exception("replication broke")
                self._broken(f"replication broke: {error}")
            self.step_soon()

        if connection is None:
            answered(ConnectionLost(f"no connection to controller {request.address}"))
        else:
            connection.request(request.code, request.ext, request.body, self._request_timeout_ms, answered)

    async def _keep_connected(self, address: str) -> None:
        retry_s = _FIRST_RETRY_S
        while address in self.addresses:
            closed = self._closed[address] = asyncio.Event()
            try:
                connection = await connect(
                    address,
                    closed=lambda _, closed=closed: closed.set(),  # type: ignore[misc]
                    unreachable_ms=self._unreachable_ms,
                    identity=self._identity,
                )
            except ConnectionLost as error:
                log.debug("%s", error)
            else:
                log.info("connected to controller %s", address)
                self._connections[address] = connection
                self._session.connected(address, self._now_ms())
                for listener in self._connected_listeners:
                    listener(address)
                self.step()
                await closed.wait()
                retry_s = _FIRST_RETRY_S
                del self._connections[address]
                log.warning("the connection to controller %s closed", address)
                self._session.disconnected(address, self._now_ms())
                self.step()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
