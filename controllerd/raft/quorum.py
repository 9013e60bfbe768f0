"""Quorum arithmetic over the present membership (pure)

`Configuration` is the only thing that knows who counts, so that a later joint membership changes this module and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from controllerd.raft.messages import NodeId


class VoteResult(Enum):
    """How a ballot stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members of the group; `voters` is sorted and without duplicates."""

    voters: tuple[NodeId, ...]

    def __post_init__(self) -> None:
        assert self.voters, "a group needs a voter"
        assert list(self.voters) == sorted(set(self.voters)), "voters are sorted and unique"

    @classmethod
    def of(cls, voters: tuple[NodeId, ...]) -> Configuration:
        """A configuration from voters in any order."""
        return cls(tuple(sorted(set(voters))))

    def committed_index(self, matched: Mapping[NodeId, int]) -> int:
        """The highest index that a majority of voters holds; a voter without an entry holds nothing."""
        held = sorted((matched.get(voter, 0) for voter in self.voters), reverse=True)
        return held[len(self.voters) // 2]

    def vote_result(self, votes: Mapping[NodeId, bool]) -> VoteResult:
        """How the ballot stands; votes of non-voters do not count."""
        granted = sum(1 for voter in self.voters if votes.get(voter) is True)
        refused = sum(1 for voter in self.voters if votes.get(voter) is False)
        majority = len(self.voters) // 2 + 1
        if granted >= majority:
            return VoteResult.WON
        if len(self.voters) - refused < majority:
            return VoteResult.LOST
        return VoteResult.PENDING

    def has_majority(self, nodes: set[NodeId]) -> bool:
        """Whether the nodes include a majority of the voters."""
        return self.vote_result(dict.fromkeys(nodes, True)) is VoteResult.WON
