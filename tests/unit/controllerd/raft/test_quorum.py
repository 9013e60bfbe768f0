"""Quorum arithmetic against slow, obvious models: count the majorities, or try all ways in which open votes may end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange, Transition, change, leave_joint
from controllerd.raft.quorum import Configuration, VoteResult

_NAMES = "abcdefg"
_VOTERS = st.sets(st.sampled_from(_NAMES), min_size=1)
_MATCHED = st.dictionaries(st.sampled_from(_NAMES + "xyz"), st.integers(0, 9))
_VOTES = st.dictionaries(st.sampled_from(_NAMES + "xyz"), st.booleans())


def joint(voters: Iterable[str], outgoing: Iterable[str]) -> Configuration:
    return Configuration(tuple(sorted(voters)), tuple(sorted(outgoing)))


def slow_agrees(configuration: Configuration, nodes: Iterable[str]) -> bool:
    """Whether the nodes are more than half of each set of voters."""
    sets = [configuration.voters, *([configuration.outgoing] if configuration.outgoing else [])]
    return all(2 * len(set(voters) & set(nodes)) > len(voters) for voters in sets)


def slow_committed(configuration: Configuration, matched: Mapping[str, int]) -> int:
    return max(i for i in range(10) if slow_agrees(configuration, {n for n in "abcdefgxyz" if matched.get(n, 0) >= i}))


def slow_vote(configuration: Configuration, votes: Mapping[str, bool]) -> VoteResult:
    """Won or lost when every way in which the others may still vote ends like that."""
    open_votes = sorted(set(configuration.all_voters) - set(votes))
    ends = set()
    for choice in product((True, False), repeat=len(open_votes)):
        final = {**votes, **dict(zip(open_votes, choice, strict=True))}
        ends.add(slow_agrees(configuration, {node for node, granted in final.items() if granted}))
    return VoteResult.PENDING if len(ends) > 1 else VoteResult.WON if ends == {True} else VoteResult.LOST


@given(_VOTERS, st.sets(st.sampled_from(_NAMES)), _MATCHED)
def test_committed_index(voters: set[str], outgoing: set[str], matched: dict[str, int]) -> None:
    configuration = joint(voters, outgoing)
    assert configuration.committed_index(matched) == slow_committed(configuration, matched)


@given(_VOTERS, st.sets(st.sampled_from(_NAMES)), _VOTES)
def test_vote_result(voters: set[str], outgoing: set[str], votes: dict[str, bool]) -> None:
    configuration = joint(voters, outgoing)
    assert configuration.vote_result(votes) is slow_vote(configuration, votes)
    granted = {node for node, vote in votes.items() if vote}
    assert configuration.has_majority(granted) == slow_agrees(configuration, granted)


@given(_VOTERS, st.sets(st.sampled_from(_NAMES)), _MATCHED, st.sampled_from(_NAMES))
def test_more_acknowledged_never_decides_less(
    voters: set[str], outgoing: set[str], matched: dict[str, int], node: str
) -> None:
    configuration = joint(voters, outgoing)
    before = configuration.committed_index(matched)
    assert configuration.committed_index(matched | {node: matched.get(node, 0) + 1}) >= before


def test_who_knows_of_no_group_decides_nothing() -> None:
    nobody = Configuration()
    assert nobody.committed_index({"a": 9}) == 0
    assert nobody.vote_result({"a": True}) is VoteResult.PENDING
    assert not nobody.has_majority({"a", "b"})


_CHANGES = st.lists(
    st.builds(MemberChange, st.sampled_from(ChangeKind), st.sampled_from(_NAMES), st.just("")), min_size=1, max_size=4
)


@given(
    _VOTERS, st.sets(st.sampled_from(_NAMES)), st.lists(st.tuples(_CHANGES, st.sampled_from(Transition)), max_size=6)
)
def test_from_step_to_step_majorities_overlap(
    voters: set[str], learners: set[str], steps: list[tuple[list[MemberChange], Transition]]
) -> None:
    """No set of nodes can decide by one configuration while the rest decides by the next: what every step must keep."""
    configuration = Configuration(tuple(sorted(voters)), learners=tuple(sorted(learners - voters)))
    for changes, transition in steps:
        try:
            after = change(configuration, changes, transition)
        except ChangeRefused:
            continue
        path = [configuration, after, *([leave_joint(after)] if after.is_joint else [])]
        for one, other in pairwise(path):
            assert_overlap(one, other)
            assert set(one.retired) <= set(other.retired)
        members = {*configuration.members, *after.members}
        for node in members:
            places = (node in path[-1].voters, node in path[-1].learners, node in path[-1].retired)
            assert sum(places) == 1, f"{node} is in {places}"
        configuration = path[-1]


def assert_overlap(one: Configuration, other: Configuration) -> None:
    everybody = sorted({*one.all_voters, *other.all_voters})
    for choice in product((True, False), repeat=len(everybody)):
        side = {node for node, chosen in zip(everybody, choice, strict=True) if chosen}
        assert not (slow_agrees(one, side) and slow_agrees(other, set(everybody) - side)), (one, other, side)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"voters": ("b", "a")}, "sorted and unique"),
        ({"voters": ("a", "a")}, "sorted and unique"),
        ({"learners": ("a",)}, "needs a voter"),
        ({"voters": ("a",), "learners": ("a",)}, "a learner has a vote"),
        ({"voters": ("a",), "outgoing": ("b",), "learners": ("b",)}, "a learner has a vote"),
        ({"voters": ("a",), "outgoing": ("a",), "learners_next": ("a",)}, "still is one"),
        ({"voters": ("a",), "learners_next": ("b",)}, "was no voter"),
        ({"voters": ("a",), "auto_leave": True}, "no change to end"),
        ({"voters": ("a",), "addresses": (("b", "h:1"),)}, "no member"),
        ({"voters": ("a",), "retired": ("a",)}, "a former member is a member"),
        ({"voters": tuple(f"n{n:03d}" for n in range(65))}, "more than 64"),
    ],
)
def test_an_impossible_configuration_cannot_be_made(fields: dict[str, object], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Configuration(**fields)  # type: ignore[arg-type]
