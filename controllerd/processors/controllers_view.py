"""The controllers as one of them knows them: it says of itself what it is, and of the rest only what it has heard."""

from __future__ import annotations

from typing import Any

from controllerd.raft.driver import RaftDriver
from controllerd.raft.members import Members
from controllerd.raft.messages import Role
from controllerd.raft.quorum import NodeId


class ControllersView:
    """`node_id` is this controller's."""

    def __init__(self, node_id: NodeId, driver: RaftDriver, members: Members) -> None:
        self._node_id = node_id
        self._driver = driver
        self.members = members

    def known_leader(self) -> NodeId | None:
        """None while this controller was elected and does not serve yet, too."""
        state = self._driver.soft_state
        if state.role is Role.LEADER and not self._driver.is_serving:
            return None
        return state.leader

    def listed(self) -> list[dict[str, Any]]:
        """One entry for each member."""
        return [self._controller(node, address) for node, address in self.members.table().items()]

    def _controller(self, node: NodeId, address: str) -> dict[str, Any]:
        core = self._driver.node.core
        found: dict[str, Any] = {
            "id": node,
            "address": address,
            "member": self.members.role(node),
            "role": "unknown",
            "term": None,
            "leader": node == self.known_leader(),
            "commitIndex": None,
            "appliedIndex": None,
            "alive": None,
        }
        if node == self._node_id:
            role = core.role if core.role is not Role.PRE_CANDIDATE else Role.CANDIDATE
            found |= {"role": str(role), "term": core.term, "alive": True}
            found |= {"commitIndex": core.log.committed, "appliedIndex": core.log.applied}
            found |= {"problem": self._driver.disk_error}
        elif core.role is Role.LEADER and (progress := core.progress.get(node)) is not None:
            found["alive"] = progress.was_active
            if progress.was_active:
                held = min(progress.match, core.log.committed)
                found |= {"role": str(Role.FOLLOWER), "term": core.term, "commitIndex": held}
        elif node == core.leader:
            found |= {"role": str(Role.LEADER), "term": core.term, "alive": True}
        return found
