"""A controller that lost its log comes back: what the leader puts into the membership for it (pure)

What the lost log had promised may be known to one other member only, and that one may be away. So asking the others for terms
and votes would not do: the lost incarnation's id never votes and never counts again. A new one comes in as a learner, gets
everything, and takes the lost one's place in one joint change. Until then the lost one counts as a member that is down, so the
group needs a majority of the others; without one nobody can tell what was decided, and the controller waits.

Why its new vote undoes none of its former ones: those were given before it asked. A majority without it has decided the entry
that lets it in, and shares a member with every majority that a former vote is part of; so a candidate that a former vote can
still elect is of a term up to that entry's. Whoever counts the new vote acts on a membership that holds it, has followed a
leader of that term or a later one, and so is a candidate of later terms only.

The rules need nothing but the membership: whoever leads next goes on where the last leader stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllerd.raft.incarnations import incarnations, name_of
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange
from controllerd.raft.quorum import Configuration, NodeId


def admission(
    configuration: Configuration, active: Iterable[NodeId], node: NodeId, address: str
) -> tuple[MemberChange, ...]:
    """What makes the new incarnation `node` a learner; nothing when it is a member already. Raises ChangeRefused.

    `active` are the members that the leader hears. One of the same name among them means that somebody started a copy.
    """
    if node in configuration.members:
        return ()
    name = name_of(node)
    former = incarnations(configuration, name)
    if not former:
        raise ChangeRefused(f"no controller {name} is a member of this group; add it")
    alive = set(former) & set(active)
    if alive:
        raise ChangeRefused(
            f"{', '.join(sorted(alive))} is heard at the moment: another process is controller {name}, or it has just ended"
        )
    given_up = [each for each in former if each in configuration.learners]
    return (
        *(MemberChange(ChangeKind.REMOVE, each) for each in given_up),
        MemberChange(ChangeKind.ADD_LEARNER, node, address),
    )


def replacement(configuration: Configuration) -> tuple[MemberChange, ...]:
    """The change that puts one returned controller in the place of the incarnation that it lost, when one waits for it."""
    if configuration.is_joint:
        return ()
    for node in configuration.learners:
        lost = [each for each in incarnations(configuration, name_of(node)) if each != node]
        if lost:
            return (MemberChange(ChangeKind.PROMOTE, node), *(MemberChange(ChangeKind.REMOVE, each) for each in lost))
    return ()
