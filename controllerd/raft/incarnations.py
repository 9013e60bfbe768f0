"""The lives of a controller in its group: one name for people, another Raft id for each life (pure)

A controller whose log was damaged has forgotten votes or entries that it promised, so its id never counts again. It comes back
as a new incarnation: its name with a random part behind it is an id that was never used. Addresses, settings and everything that
people see go by the name; Raft and the membership go by the id. The first incarnation's id is the name alone.
"""

from __future__ import annotations

from typing import Final

from controllerd.raft.quorum import Configuration, NodeId

_SEPARATOR: Final = "~"  # in no name: see `controllerd/settings.py:NODE_ID`


def node_id(name: str, incarnation: str) -> NodeId:
    """The Raft id of an incarnation ("": the first) of the controller with this name."""
    return f"{name}{_SEPARATOR}{incarnation}" if incarnation else name


def name_of(node: NodeId) -> str:
    """Who that is for people, settings and addresses."""
    return node.partition(_SEPARATOR)[0]


def incarnations(configuration: Configuration, name: str) -> tuple[NodeId, ...]:
    """The members of this name: one, or while it comes back two, the present one first.

    The present one is the learner that is to replace a voter, or the new voter while the change that puts it in is under way.
    """
    ranked = [*configuration.learners, *configuration.voters, *configuration.outgoing]
    return tuple(dict.fromkeys(node for node in ranked if name_of(node) == name))


def present(configuration: Configuration, name: str) -> NodeId:
    """The member that has this name now; the name itself when it has none."""
    return next(iter(incarnations(configuration, name)), name)


def names(configuration: Configuration) -> tuple[str, ...]:
    """The members as people know them, sorted."""
    return tuple(sorted({name_of(node) for node in configuration.members}))
