"""One long-lived connection to every controller: what a session wants sent goes out here, what comes back is handed to it.

Whatever the session is told goes through `tell`, so that an invariant that breaks in there ends the process.

The connections are also how controllers notice a death: a closed one is noticed at once. They are therefore made as early and
as often as possible (one over a cut network is given up and dialled anew), and nothing that a slow or frozen controller does may
block the others: one-way heartbeats to a controller that does not read are dropped, requests have a time-out. When no controller
can be reached, nothing else of the broker notices.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from brokerd.replication.controllers.session import Session, SessionRequest
from brokerd.replication.controllers.wishes import Wishes
from brokerd.replication.settings import ReplicationSettings
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.05
_LONGEST_RETRY_S = 0.25
_CLOSE_TIMEOUT_S = 1.0

Answered = Callable[[Command | LogboomError], None]


# Calls an event with the arguments and the time; what the event raises ends the process. False: it raised.
Tell = Callable[..., bool]


def _nobody_waits() -> None:
    """For answers."""


class ControllerLink:
    """The shell of a session."""

    def __init__(
        self,
        settings: ReplicationSettings,
        session: Session,
        wishes: Wishes,
        tell: Tell,
        wall_ms: Callable[[], int],
        identity: Identity = NOBODY,
    ) -> None:
        """A controller whose machine acknowledges nothing for as long as a controller waits for heartbeats is dialled anew."""
        self.addresses = session.addresses
        self._session = session
        self._wishes = wishes
        self._tell = tell
        self._wall_ms = wall_ms
        self._identity = identity
        self._request_timeout_ms = settings.controller_request_timeout_ms
        self._unreachable_ms = settings.controller_heartbeat_timeout_ms
        self._connections: dict[str, RemotingConnection] = {}
        self._closed: dict[str, asyncio.Event] = {}
        self._tasks = TaskOwner("controllers")
        # Told the address of a controller whenever a connection to it was made
        self.connected_listeners: list[Callable[[str], None]] = []
        # Called when the session took an answer and said what it wants next
        self.on_answered: Callable[[], None] = _nobody_waits

    @property
    def name_servers(self) -> tuple[str, ...]:
        return self._session.name_servers

    def start(self) -> None:
        """Dial the controllers, and step whenever it is wanted."""
        self._tasks.spawn(self._step_when_wanted(), "steps")
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
        self._wishes.are_there.set()

    def step(self) -> None:
        """Let the session send what is due now."""
        self._tell(self._step)

    def _step(self, now_ms: int) -> None:
        self._wishes.pass_on(self._session)
        self._session.tick(now_ms, self._wall_ms())
        if self._session.addresses != self.addresses:
            self._follow_membership(self._session.addresses)
        for request in self._session.take_requests():
            self._send(request)

    async def _step_when_wanted(self) -> None:
        while True:
            await self._wishes.are_there.wait()
            self._wishes.are_there.clear()
            self.step()
            self.on_answered()

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
            if isinstance(result, LogboomError):
                self._tell(self._session.failed, request.token, str(result))
            else:
                self._tell(self._session.answered, request.token, result.code, result.ext, bytes(result.body))
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
                self._tell(self._session.connected, address)
                for listener in self.connected_listeners:
                    listener(address)
                self.step()
                await closed.wait()
                retry_s = _FIRST_RETRY_S
                del self._connections[address]
                log.warning("the connection to controller %s closed", address)
                self._tell(self._session.disconnected, address)
                self.step()
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
