"""Request handlers that only the controller that leads carries out; the others count the request and refuse it."""

from __future__ import annotations

from controllerd.metrics import Counters
from controllerd.processors.measure import AsyncHandle
from controllerd.raft.driver import RaftDriver
from remoting.errors import NotLeader
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


def require_leading(driver: RaftDriver, counters: Counters) -> None:
    """Count a request; raises NotLeader when this controller may not answer it."""
    counters.requests += 1
    if not driver.is_serving:
        counters.requests_refused += 1
        raise NotLeader()


def only_leading(driver: RaftDriver, counters: Counters, handle: AsyncHandle) -> AsyncHandle:
    """The same handler, behind `require_leading`."""

    async def guarded(connection: RemotingConnection, request: Command) -> None:
        require_leading(driver, counters)
        await handle(connection, request)

    return guarded
