"""The methods of processors as handlers: what is the leader's is refused where this controller does not lead, some is measured.

Whether a request is the leader's is said by its row in `remoting/registry.py`. A method that awaits runs as a task of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import iscoroutinefunction
from typing import Any, Final

from controllerd.metrics import Counters
from controllerd.raft.driver import RaftDriver
from remoting import codes
from remoting.errors import NotLeader
from remoting.frame import Command
from remoting.registry import ROWS, By
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each, spawned
from remoting.transport.tasks import TaskOwner

Handle = Callable[[RemotingConnection, Command], None]
AsyncHandle = Callable[[RemotingConnection, Command], Coroutine[Any, Any, None]]
Handles = Mapping[int, Handle | AsyncHandle]

_TYPES: Final = range(900, 1100)  # the codes that are counted under the names that the protocol gives them


class Serving:
    """Counts the requests that only the leader answers, and refuses them elsewhere."""

    def __init__(self, driver: RaftDriver, counters: Counters, owner: TaskOwner) -> None:
        self._driver = driver
        self._counters = counters
        self._owner = owner

    def handlers(self, handles: Handles) -> dict[int, Handler]:
        """Request code -> handler."""
        return {code: self._handler(code, handle, nullcontext) for code, handle in handles.items()}

    def measured(self, handles: Handles) -> dict[int, Handler]:
        """The same, each request counted and timed."""
        return {code: self._handler(code, handle, self._measure(code)) for code, handle in handles.items()}

    def _measure(self, code: int) -> Callable[[], AbstractContextManager[None]]:
        name = codes.REQUESTS[code] if code in _TYPES else str(code)
        return lambda: self._counters.request_types.measured(name)

    def _handler(
        self, code: int, handle: Handle | AsyncHandle, around: Callable[[], AbstractContextManager[None]]
    ) -> Handler:
        check = self._check_leading if ROWS[code].by & By.LEADER else _nothing

        def begun(connection: RemotingConnection, request: Command) -> Coroutine[Any, Any, None] | None:
            check()
            return handle(connection, request)

        def at_once(connection: RemotingConnection, request: Command) -> None:
            with around():
                begun(connection, request)

        async def awaiting(connection: RemotingConnection, request: Command) -> None:
            with around():
                if (rest := begun(connection, request)) is not None:
                    await rest

        return spawned(self._owner, awaiting) if iscoroutinefunction(handle) else each(at_once)

    def _check_leading(self) -> None:
        self._counters.requests += 1
        if not self._driver.is_serving:
            self._counters.requests_refused += 1
            raise NotLeader()


def _nothing() -> None:
    """Any controller may answer."""
