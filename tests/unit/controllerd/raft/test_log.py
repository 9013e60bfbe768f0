"""The in-memory log against a plain list of terms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.raft.log import LostLog, RaftLog
from controllerd.raft.messages import Entry, Snapshot
from controllerd.raft.quorum import Configuration

_TERMS = st.lists(st.integers(1, 6), max_size=12).map(sorted)


def log_of(terms: list[int], committed: int = 0) -> RaftLog:
    return RaftLog(entries=[Entry(index, term) for index, term in enumerate(terms, 1)], committed=committed)


@given(_TERMS, st.integers(0, 13), st.integers(0, 7))
def test_conflict_hint_is_the_highest_index_with_no_later_term(terms: list[int], index: int, term: int) -> None:
    index = min(index, len(terms))
    slow = max([i for i in range(1, index + 1) if terms[i - 1] <= term], default=0)
    found, found_term = log_of(terms).conflict_hint(index, term)
    assert found == slow
    assert found_term == (terms[slow - 1] if slow else 0)


@given(_TERMS, _TERMS, st.integers(0, 12))
def test_following_a_leader_gives_the_leader_s_prefix(mine: list[int], leaders: list[int], prev: int) -> None:
    prev = min(prev, len(leaders))
    log = log_of(mine)
    sent = [Entry(index, term) for index, term in enumerate(leaders, 1)][prev:]
    matched = log.try_append(prev, leaders[prev - 1] if prev else 0, sent)
    if prev and (prev > len(mine) or mine[prev - 1] != leaders[prev - 1]):
        assert matched is None
        return
    assert matched == len(leaders)
    after = [log.term(index) for index in range(prev + 1, log.last_index + 1)]
    assert after[: len(leaders) - prev] == leaders[prev:]
    if leaders[prev:] == mine[prev : len(leaders)]:
        assert log.last_index == max(len(mine), len(leaders)), "a late message must not cut what already matched"


def test_a_contradiction_to_committed_entries_is_found() -> None:
    log = log_of([1, 1, 1], committed=2)
    with pytest.raises(LostLog, match="contradicts"):
        log.try_append(1, 1, [Entry(2, 2)])
    with pytest.raises(LostLog, match="ends at 3"):
        log.commit_to(4)


def test_compaction_keeps_some_entries_and_the_term_before_them() -> None:
    log = log_of([1, 1, 2, 2, 3], committed=4)
    log.applied_to(4)
    log.compact(Snapshot(4, 2, Configuration.of("a"), b""), keep_entries=2)
    assert (log.compacted_index, log.compacted_term, log.first_index, log.last_index) == (2, 1, 3, 5)
    assert log.term(1) is None
    assert log.term(2) == 1
    assert [entry.index for entry in log.kept_entries()] == [3, 4, 5]
    log.compact(Snapshot(4, 2, Configuration.of("a"), b""), keep_entries=9)
    assert log.compacted_index == 2


@given(_TERMS, st.integers(1, 200))
def test_slices_respect_the_limit_but_never_stall(terms: list[int], limit: int) -> None:
    log = log_of(terms)
    found = log.slice(1, len(terms) + 1, limit)
    assert bool(found) == bool(terms)
    assert len(found) <= 1 or sum(entry.size_bytes for entry in found) <= limit
