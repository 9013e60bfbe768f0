"""Where the members of the group are: from the start-up settings, from the membership in the log, and from who introduced itself.

The settings win for the names they hold, so that addresses can be changed by restarting with others; the membership knows the
members that joined later; and a node that is only being brought in knows the leader from its introduction. Raft goes by the ids
of incarnations, people by names: `table` and `role` are for the one, `named` and what is asked by name for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from controllerd.raft.acquaintances import Acquaintances
from controllerd.raft.incarnations import name_of, names, present
from controllerd.raft.quorum import Configuration, NodeId

_MAX_MET: Final = 64


class Members:
    """One table for everybody who sends to members or shows them. `configured` keeps it up to date."""

    def __init__(
        self,
        node_id: NodeId,
        settings: Mapping[NodeId, str],
        lives: Sequence[str] = (),
        acquaintances: Acquaintances | None = None,
    ) -> None:
        """`lives` are this node's own, the present one first; `acquaintances` those in which it met the others."""
        self.node_id = node_id
        self.lives = tuple(lives)
        self.acquaintances = acquaintances or Acquaintances()
        self.configuration = Configuration()
        self._settings = dict(settings)
        self._met: dict[NodeId, str] = {}

    def configured(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def met(self, node: NodeId, address: str) -> None:
        """A node introduced itself; only used as long as nothing else says where it is."""
        if node in self._met or len(self._met) < _MAX_MET:
            self._met[node] = address

    def address(self, node: NodeId) -> str | None:
        """Where the node is reached; None for former members and strangers."""
        if node in self.configuration.retired:
            return None
        return self._settings.get(name_of(node)) or self.configuration.address(node) or self._met.get(node)

    def role(self, node: NodeId) -> str:
        """voter, learner, leaving (it votes until the change under way ends) or unknown."""
        if node in self.configuration.learners:
            return "learner"
        if node in self.configuration.voters:
            return "voter"
        return "leaving" if node in self.configuration.outgoing else "unknown"

    def table(self) -> dict[NodeId, str]:
        """All members by id; before the membership is known, those of the settings."""
        nodes = self.configuration.members or sorted(self._settings)
        return {node: self.address(node) or "" for node in nodes}

    def named(self) -> dict[str, str]:
        """All members by name."""
        nodes = names(self.configuration) or sorted(self._settings)
        return {name: self.address(present(self.configuration, name)) or "" for name in nodes}

    def present(self, name: str) -> NodeId:
        """Who has this name now."""
        return present(self.configuration, name)

    def retired(self) -> list[str]:
        """The names of former members that are none any more."""
        gone = {name_of(node) for node in self.configuration.retired}
        return sorted(gone - set(names(self.configuration)))
