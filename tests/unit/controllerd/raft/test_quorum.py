"""Quorum arithmetic against slow, obvious models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controllerd.raft.quorum import Configuration, VoteResult

_NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=7, unique=True)


@given(_NAMES, st.dictionaries(st.sampled_from("abcdefgxyz"), st.integers(0, 9)))
def test_committed_index_is_the_highest_that_a_majority_holds(names: list[str], matched: dict[str, int]) -> None:
    configuration = Configuration.of(tuple(names))
    slow = max(index for index in range(10) if 2 * sum(matched.get(name, 0) >= index for name in names) > len(names))
    assert configuration.committed_index(matched) == slow


@given(_NAMES, st.dictionaries(st.sampled_from("abcdefgxyz"), st.booleans()))
def test_vote_result(names: list[str], votes: dict[str, bool]) -> None:
    granted = sum(votes.get(name) is True for name in names)
    open_votes = sum(name not in votes for name in names)
    if 2 * granted > len(names):
        expected = VoteResult.WON
    elif 2 * (granted + open_votes) <= len(names):
        expected = VoteResult.LOST
    else:
        expected = VoteResult.PENDING
    assert Configuration.of(tuple(names)).vote_result(votes) is expected
