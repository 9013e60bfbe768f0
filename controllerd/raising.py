"""The serving leader raises the feature level when every member is there and says that it reads a higher one.

Each member says so when the leader introduces itself on a connection to it (`raft/peers.py`): one process has one level, a
connection reaches one process, and the leader has one to every member. So nothing has to be repeated, and who returns with
another version says so before it hears anything. A member that is not connected keeps the level where it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from controllerd.features import RaiseLevel
from controllerd.machine import ControllerMachine
from controllerd.raft.driver import RaftDriver
from controllerd.raft.quorum import NodeId
from remoting.errors import LogboomError
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)


class Raising:
    """One attempt at a time; `look` is called now and then."""

    def __init__(
        self,
        driver: RaftDriver,
        machine: ControllerMachine,
        level: Callable[[NodeId], int],
        timeout_ms: int,
        owner: TaskOwner,
    ) -> None:
        """`level`: what a member said; 0 while it is not connected."""
        self._driver = driver
        self._machine = machine
        self._level = level
        self._timeout_ms = timeout_ms
        self._owner = owner
        self._is_under_way = False

    def look(self) -> None:
        """Raise the level if that can be done now."""
        if self._is_under_way or not self._driver.is_serving:
            return
        supported = tuple(self._level(node) for node in self._driver.node.core.configuration.members)
        if min(supported) > self._machine.features.level:
            self._is_under_way = True
            self._owner.spawn(self._raise(RaiseLevel(supported)), "raise the feature level")

    async def _raise(self, request: RaiseLevel) -> None:
        try:
            applied = await self._driver.propose(request, self._timeout_ms)
        except LogboomError as error:
            log.warning("the feature level is not raised yet: %s", error)
        else:
            log.info("all controllers read records of feature level %d: it is in force", applied.state.level)
        finally:
            self._is_under_way = False
