"""Who belongs to the group, who counts, and the majorities over them (pure)

`Configuration` is the only thing that knows who counts. While a change of several members is under way it holds two sets of
voters, the new ones and the outgoing ones, and every decision needs a majority of each; so no moment exists in which two
separate majorities could decide differently. Learners receive everything and count nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

NodeId = str
MAX_MEMBERS: Final = 64
MAX_RETIRED: Final = 4096


class VoteResult(Enum):
    """How a ballot stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority_index(voters: Iterable[NodeId], matched: Mapping[NodeId, int]) -> int:
    """The highest index that a majority of the voters holds; a voter without an entry holds nothing."""
    held = sorted((matched.get(voter, 0) for voter in voters), reverse=True)
    return held[len(held) // 2]


def majority_vote(voters: tuple[NodeId, ...], votes: Mapping[NodeId, bool]) -> VoteResult:
    """How the ballot of these voters stands; votes of others do not count."""
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    majority = len(voters) // 2 + 1
    if granted >= majority:
        return VoteResult.WON
    if len(voters) - refused < majority:
        return VoteResult.LOST
    return VoteResult.PENDING


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of a group at one position of its log. Names are sorted and without duplicates.

    `outgoing` are the voters that a change under way replaces (empty: none is); `learners_next` those of them that stay as
    learners; `auto_leave` says that the leader ends the change by itself. `addresses` is where members are reached, `retired` are
    the ids of former members, which are never used again. `cluster` tells groups of the same name apart ("": not founded yet).
    A node that has yet to learn who its group is has no voters; it decides nothing.
    """

    voters: tuple[NodeId, ...] = ()
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    auto_leave: bool = False
    addresses: tuple[tuple[NodeId, str], ...] = ()
    retired: tuple[NodeId, ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        fault = self._fault()
        if fault:
            raise ValueError(f"no possible membership: {fault}")

    @classmethod
    def of(cls, voters: Iterable[NodeId]) -> Configuration:
        """A configuration that is not in a change, from names in any order."""
        return cls(tuple(sorted(set(voters))))

    @property
    def is_joint(self) -> bool:
        """Whether a change with two sets of voters is under way."""
        return bool(self.outgoing)

    @property
    def all_voters(self) -> tuple[NodeId, ...]:
        """Everybody whose vote counts now."""
        return tuple(sorted({*self.voters, *self.outgoing})) if self.outgoing else self.voters

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Everybody who receives the log."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    def address(self, node: NodeId) -> str | None:
        """Where the member is reached, as far as the membership says so."""
        return next((address for member, address in self.addresses if member == node), None)

    @property
    def _majorities(self) -> list[tuple[NodeId, ...]]:
        """Of whom a majority each has to agree; none before the membership is known."""
        return [voters for voters in (self.voters, self.outgoing) if voters]

    def committed_index(self, matched: Mapping[NodeId, int]) -> int:
        """The highest index that a majority of the voters holds, and one of the outgoing voters if there are any."""
        return min((majority_index(voters, matched) for voters in self._majorities), default=0)

    def vote_result(self, votes: Mapping[NodeId, bool]) -> VoteResult:
        """How the ballot stands: won with all the majorities it needs, lost as soon as one of them is out of reach."""
        results = {majority_vote(voters, votes) for voters in self._majorities}
        if VoteResult.LOST in results:
            return VoteResult.LOST
        return VoteResult.WON if results == {VoteResult.WON} else VoteResult.PENDING

    def has_majority(self, nodes: Iterable[NodeId]) -> bool:
        """Whether the nodes could decide something together."""
        return self.vote_result(dict.fromkeys(nodes, True)) is VoteResult.WON

    def _fault(self) -> str | None:
        lists = (self.voters, self.outgoing, self.learners, self.learners_next, self.retired)
        if any(list(names) != sorted(set(names)) for names in lists):
            return "names are sorted and unique"
        if [node for node, _ in self.addresses] != sorted({node for node, _ in self.addresses}):
            return "addresses are sorted and one for each member"
        members = {*self.voters, *self.outgoing, *self.learners}
        if len(members) > MAX_MEMBERS or len(self.retired) > MAX_RETIRED:
            return f"more than {MAX_MEMBERS} members or {MAX_RETIRED} former ones"
        if members and not self.voters:
            return "a group needs a voter"
        if set(self.learners) & {*self.voters, *self.outgoing}:
            return "a learner has a vote"
        if not set(self.learners_next) <= set(self.outgoing) - set(self.voters):
            return "who becomes a learner was no voter, or still is one"
        if not self.outgoing and self.auto_leave:
            return "there is no change to end"
        if not {node for node, _ in self.addresses} <= members:
            return "an address of somebody who is no member"
        if set(self.retired) & members:
            return "a former member is a member"
        return None
