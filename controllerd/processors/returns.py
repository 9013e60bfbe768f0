"""Controllers that lost their log: the leader lets their new incarnations in, and puts them in the place of the lost ones.

The one is asked for by the controller that comes back (RAFT_RETURN), again and again until it is answered; the other is looked
for now and then, by whoever leads. What is put into the membership, and why that is safe, is in `controllerd/raft/returning.py`.
"""

from __future__ import annotations

import logging

from controllerd.processors.serving import Handles
from controllerd.raft.driver import RaftDriver
from controllerd.raft.incarnations import name_of
from controllerd.raft.members import Members
from controllerd.raft.returning import admission, replacement
from controllerd.settings import NODE_ID
from remoting import codes
from remoting.errors import InvalidParameter, LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.client import split_address
from remoting.transport.connection import RemotingConnection
from remoting.transport.tasks import TaskOwner

log = logging.getLogger(__name__)

_CHANGE_TIMEOUT_MS = 8000
_MAX_NODE_ID = 64


class Returns:
    """One replacement at a time; `look` is called now and then."""

    def __init__(self, group: str, driver: RaftDriver, members: Members, owner: TaskOwner) -> None:
        self._group = group
        self._driver = driver
        self._members = members
        self._owner = owner
        self._is_under_way = False

    def handles(self) -> Handles:
        return {codes.RAFT_RETURN: self._admit}

    async def _admit(self, connection: RemotingConnection, request: Command) -> None:
        """Answered when the membership holds the new incarnation, so that it may forget what it was before."""
        node, address = request.ext.get("node", ""), request.ext.get("address", "")
        if request.ext.get("group") != self._group:
            raise RequestError(codes.CONTROLLER_INVALID_REQUEST, f"this is the controller group {self._group!r}")
        if not NODE_ID.fullmatch(name_of(node)) or not name_of(node) != node or len(node) > _MAX_NODE_ID:
            raise InvalidParameter(f"{node[:_MAX_NODE_ID]!r} is no new incarnation of a controller")
        split_address(address)
        core = self._driver.node.core
        changes = admission(core.configuration, core.active, node, address)
        if changes:
            log.warning(
                "controller %s lost its log (%s): it comes back as %s",
                name_of(node),
                request.ext.get("reason", ""),
                node,
            )
            await self._driver.change_membership(changes, self._members.table(), _CHANGE_TIMEOUT_MS)
        connection.respond(request, ext={"cluster": core.configuration.cluster})

    def look(self) -> None:
        """Let one that has caught up take its place."""
        if self._is_under_way or not self._driver.is_serving:
            return
        core = self._driver.node.core
        changes = replacement(core.configuration)
        if not changes:
            return
        progress = core.progress[changes[0].node]
        if progress.was_active and core.log.committed - progress.match <= core.settings.promote_lag_entries:
            self._is_under_way = True
            self._owner.spawn(self._replace(), "replace a lost controller")

    async def _replace(self) -> None:
        try:
            changes = replacement(self._driver.node.core.configuration)
            await self._driver.change_membership(changes, self._members.table(), _CHANGE_TIMEOUT_MS)
        except LogboomError as error:
            log.info("the returned controller is not put in its place yet: %s", error)
        else:
            log.warning("controller %s is back, as %s", name_of(changes[0].node), changes[0].node)
        finally:
            self._is_under_way = False
