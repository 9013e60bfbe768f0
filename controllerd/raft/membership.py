"""Changes of the membership: from one configuration to the next (pure)

When a change takes effect, and why that is safe:

- An entry holds the whole new configuration. Every node adopts it when it *applies* the entry, and a snapshot carries the one of
  its position; so the membership survives restarts as everything else in the log does.
- The leader takes a change only when it has applied every earlier one (a new leader: everything that it found in its log). So
  whoever holds change k+1 was told, in the same append and the same durable record, that change k is decided: nodes that could
  win elections act on configurations that are at most one step apart.
- A node that knows of a decided change that it has not applied yet does not campaign.
- One step is either one voter more or less, whose majorities always overlap, or the entry into a joint configuration, in which
  both the old and the new voters must agree, or the exit from it.
- An id that was a member once is never one again: a node that returns with an emptied disk under its old name could vote twice
  in one term and disown what it acknowledged.

The leader that is removed or becomes a learner counts nowhere from then on, and gives up when it applies that; before, it hands
over to the follower that is furthest. Who is asked whether a change is wise (would the group still have a majority that is
there?) is `check_reachable`; this is no rule of safety, and the caller may do without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controllerd.raft.incarnations import name_of
from controllerd.raft.quorum import MAX_MEMBERS, MAX_RETIRED, Configuration, NodeId
from remoting import codes
from remoting.errors import RequestError


class ChangeRefused(RequestError):
    """A membership change that cannot be made, or not now; nothing was logged. The text says why."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.CONTROLLER_INVALID_REQUEST, message)


class ChangeKind(StrEnum):
    """What becomes of one node."""

    ADD_VOTER = "add-voter"
    ADD_LEARNER = "add-learner"
    PROMOTE = "promote"
    DEMOTE = "demote"
    REMOVE = "remove"
    MOVE = "move"


class Transition(StrEnum):
    """How a change is made: in one step if that is possible, else through a joint configuration, whose end is automatic or asked
    for."""

    AUTO = "auto"
    JOINT = "joint"
    JOINT_EXPLICIT = "joint-explicit"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One node's change. `address` is needed for new members; empty keeps the present one."""

    kind: ChangeKind
    node: NodeId
    address: str = ""


class _Draft:
    """A configuration being worked on, as sets."""

    def __init__(self, base: Configuration) -> None:
        self.voters = set(base.voters)
        self.outgoing = set(base.outgoing)
        self.learners = set(base.learners)
        self.learners_next = set(base.learners_next)
        self.addresses = dict(base.addresses)
        self.retired = set(base.retired)
        self.cluster = base.cluster

    @property
    def members(self) -> set[NodeId]:
        return self.voters | self.outgoing | self.learners

    def make(self, change: MemberChange) -> None:
        node = change.node
        if node in self.retired and change.kind is ChangeKind.REMOVE:
            raise ChangeRefused(f"{node} was removed already")
        if node in self.retired:
            raise ChangeRefused(f"{node} was a member before, and ids are never used again: choose a new id")
        getattr(self, f"_{change.kind.name.lower()}")(node)
        if change.address:
            others = {address for other, address in self.addresses.items() if name_of(other) != name_of(node)}
            if change.address in others:
                raise ChangeRefused(f"another member is at {change.address} already")
            self.addresses[node] = change.address

    def _add_voter(self, node: NodeId) -> None:
        if node in self.voters:
            raise ChangeRefused(f"{node} is a voter already")
        self.learners.discard(node)
        self.learners_next.discard(node)
        self.voters.add(node)

    def _add_learner(self, node: NodeId) -> None:
        if node in self.members:
            raise ChangeRefused(f"{node} is a member already")
        self.learners.add(node)

    def _promote(self, node: NodeId) -> None:
        if node not in self.learners:
            raise ChangeRefused(f"{node} is no learner, so it cannot be promoted")
        self._add_voter(node)

    def _demote(self, node: NodeId) -> None:
        if node not in self.voters:
            raise ChangeRefused(f"{node} is no voter, so it cannot be demoted")
        self.voters.remove(node)
        if node in self.outgoing:
            # It still votes among the outgoing ones, and nobody may be both.
            self.learners_next.add(node)
        else:
            self.learners.add(node)

    def _remove(self, node: NodeId) -> None:
        if node not in self.members:
            raise ChangeRefused(f"{node} is no member")
        self.voters.discard(node)
        self.learners.discard(node)
        self.learners_next.discard(node)

    def _move(self, node: NodeId) -> None:
        if node not in self.members:
            raise ChangeRefused(f"{node} is no member")

    def finish(self, before: Configuration, *, auto_leave: bool) -> Configuration:
        members = self.members
        self.retired |= set(before.members) - members
        if not self.voters:
            raise ChangeRefused("the group would have no voter left")
        if len(members) > MAX_MEMBERS:
            raise ChangeRefused(f"a group has at most {MAX_MEMBERS} members")
        if len(self.retired) > MAX_RETIRED:
            raise ChangeRefused(f"{MAX_RETIRED} ids were used up; start a new group")
        return Configuration(
            tuple(sorted(self.voters)),
            tuple(sorted(self.outgoing)),
            tuple(sorted(self.learners)),
            tuple(sorted(self.learners_next)),
            auto_leave,
            tuple(sorted((node, address) for node, address in self.addresses.items() if node in members)),
            tuple(sorted(self.retired)),
            self.cluster,
        )


def change(
    base: Configuration,
    changes: Sequence[MemberChange],
    transition: Transition = Transition.AUTO,
    addresses: Mapping[NodeId, str] | None = None,
) -> Configuration:
    """The configuration to log for these changes, with the known addresses of members that have none. Raises ChangeRefused."""
    if base.is_joint:
        raise ChangeRefused("another change of the membership is under way; wait until it is finished")
    if not changes:
        raise ChangeRefused("no change was named")
    if len({each.node for each in changes}) < len(changes):
        raise ChangeRefused("a change names every node once")
    base = replace(base, addresses=_known(base, addresses or {}))
    draft = _Draft(base)
    simple = _Draft(base)
    for each in changes:
        simple.make(each)
    if transition is Transition.AUTO and len(simple.voters ^ set(base.voters)) <= 1:
        return simple.finish(base, auto_leave=False)
    draft.outgoing = set(base.voters)
    for each in changes:
        draft.make(each)
    return draft.finish(base, auto_leave=transition is not Transition.JOINT_EXPLICIT)


def leave_joint(base: Configuration) -> Configuration:
    """The configuration after a joint one. Raises ChangeRefused when `base` is none."""
    if not base.is_joint:
        raise ChangeRefused("no change of the membership is under way")
    draft = _Draft(base)
    draft.outgoing = set()
    draft.learners |= draft.learners_next
    draft.learners_next = set()
    return draft.finish(base, auto_leave=False)


def found(base: Configuration, cluster: str, addresses: Mapping[NodeId, str]) -> Configuration:
    """The first configuration in the log: the group gets its id, and nodes that join later learn where the founders are."""
    assert not base.cluster, "a group is founded once"
    return replace(base, cluster=cluster, addresses=_known(base, addresses))


def _known(base: Configuration, addresses: Mapping[NodeId, str]) -> tuple[tuple[NodeId, str], ...]:
    known = {node: address for node, address in addresses.items() if node in base.members} | dict(base.addresses)
    return tuple(sorted(known.items()))


def check_reachable(before: Configuration, after: Configuration, active: Iterable[NodeId]) -> None:
    """Refuse a change after which the members that are there now could decide nothing. Raises ChangeRefused."""
    active = set(active)
    if after.has_majority(active):
        return
    absent = sorted(set(after.all_voters) - active)
    new = sorted(set(absent) - set(before.members))
    advice = (
        f"add {', '.join(new)} as a learner first and promote it when it has caught up"
        if new
        else "start the missing ones, or remove them first"
    )
    raise ChangeRefused(
        f"the group would lose its majority: of the voters {', '.join(after.all_voters)} the leader does not hear "
        f"{', '.join(absent)}; {advice}"
    )
