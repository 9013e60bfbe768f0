"""The controllers as one of them knows them: it says of itself what it is, and of the rest only what it has heard."""

from __future__ import annotations

from dataclasses import replace

from controllerd.raft.driver import RaftDriver
from controllerd.raft.incarnations import name_of
from controllerd.raft.members import Members
from controllerd.raft.messages import Role
from remoting.facts.cluster_view import ControllerView
from remoting.facts.words import ControllerRole


class ControllersView:
    """Everybody goes by name here."""

    def __init__(self, name: str, driver: RaftDriver, members: Members) -> None:
        """`name` is this controller's."""
        self._name = name
        self._driver = driver
        self.members = members

    def known_leader(self) -> str | None:
        """None while this controller was elected and does not serve yet, too."""
        core = self._driver.node.core
        if core.leader is None or (core.role is Role.LEADER and not self._driver.is_serving):
            return None
        return name_of(core.leader)

    def listed(self) -> tuple[ControllerView, ...]:
        """One entry for each member."""
        return tuple(self._controller(name, address) for name, address in self.members.named().items())

    def essence(self) -> tuple[object, ...]:
        """What is the same for as long as nothing was decided, all members live, and the same one leads."""
        core = self._driver.node.core
        return (
            core.log.applied,
            core.term,
            self.known_leader(),
            self._driver.disk_error,
            *(progress.was_active for progress in core.progress.values()),
        )

    def _controller(self, name: str, address: str) -> ControllerView:
        core = self._driver.node.core
        node = self.members.present(name)
        found = ControllerView(
            id=name,
            address=address,
            member=self.members.role(node),
            role=ControllerRole.UNKNOWN,
            leader=name == self.known_leader(),
        )
        if name == self._name:
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
