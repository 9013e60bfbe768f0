"""The controllers as one of them knows them: it says of itself what it is, and of the rest only what it has heard."""

from __future__ import annotations

from dataclasses import replace

from controllerd.raft.driver import RaftDriver
from controllerd.raft.members import Members
from controllerd.raft.messages import Role
from controllerd.raft.quorum import NodeId
from remoting.facts.cluster_view import ControllerView
from remoting.facts.words import ControllerRole


class ControllersView:
    """`node_id` is this controller's."""

    def __init__(self, node_id: NodeId, driver: RaftDriver, members: Members) -> None:
        self._node_id = node_id
        self._driver = driver
        self.members = members

    def known_leader(self) -> NodeId | None:
        """None while this controller was elected and does not serve yet, too."""
        core = self._driver.node.core
        return None if core.role is Role.LEADER and not self._driver.is_serving else core.leader

    def listed(self) -> tuple[ControllerView, ...]:
        """One entry for each member."""
        return tuple(self._controller(node, address) for node, address in self.members.table().items())

    def _controller(self, node: NodeId, address: str) -> ControllerView:
        core = self._driver.node.core
        found = ControllerView(
            id=node,
            address=address,
            member=self.members.role(node),
            role=ControllerRole.UNKNOWN,
            leader=node == self.known_leader(),
        )
        if node == self._node_id:
            return replace(
                found,
                role=ControllerRole(core.role),
                term=core.term,
                commit_index=core.log.committed,
                applied_index=core.log.applied,
                alive=True,
                problem=self._driver.disk_error,
            )
        if core.role is Role.LEADER and (progress := core.progress.get(node)) is not None:
            if not progress.was_active:
                return replace(found, alive=False)
            held = min(progress.match, core.log.committed)
            return replace(found, alive=True, role=ControllerRole.FOLLOWER, term=core.term, commit_index=held)
        if node == core.leader:
            return replace(found, role=ControllerRole.LEADER, term=core.term, alive=True)
        return found
