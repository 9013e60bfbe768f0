"""The required set, step by step."""

from __future__ import annotations

from brokerd.replication.required_set.sync_state import SyncState
from remoting import codes


def state(*members: int, set_epoch: int = 5) -> SyncState:
    return SyncState(1, members, set_epoch, retry_ms=100, rejoin_delay_ms=1000)


def propose(sync: SyncState, *lagging: int, now_ms: int = 0) -> set[int] | None:
    proposal = sync.propose(frozenset(lagging), now_ms)
    return None if proposal is None else set(proposal.members)


def test_a_joining_replica_is_required_before_it_is_proposed() -> None:
    sync = state(1)
    sync.join(2)
    assert sync.required == {1, 2}
    assert propose(sync) == {1, 2}
    sync.accepted(1, {1, 2}, 6)
    assert (sync.local, sync.set_epoch, sync.joining) == ({1, 2}, 6, set())


def test_one_proposal_at_a_time_and_the_next_one_has_both() -> None:
    sync = state(1)
    sync.join(2)
    assert propose(sync) == {1, 2}
    sync.join(3)
    assert propose(sync) is None
    assert sync.required == {1, 2, 3}
    sync.accepted(1, {1, 2}, 6)
    assert sync.required == {1, 2, 3}
    assert propose(sync) == {1, 2, 3}


def test_a_member_stays_required_until_the_controller_let_it_go() -> None:
    sync = state(1, 2)
    assert propose(sync, 2) == {1}
    assert sync.required == {1, 2}
    sync.accepted(1, {1}, 6)
    assert sync.required == {1}


def test_an_unknown_outcome_is_required_until_the_epoch_has_moved() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.unknown(1, now_ms=10)
    sync.leave_joining({2})
    assert sync.required == {1, 2}
    assert sync.needs_read
    assert propose(sync, now_ms=500) is None, "first a read"
    sync.observed({1}, 5)
    assert sync.required == {1, 2}, "the epoch of the base proves nothing: the request may still be under way"
    assert propose(sync, 2, now_ms=500) == {1, 2}, "nobody else can be spared: the attempt itself settles it"
    sync.accepted(2, {1, 2}, 6)
    assert propose(sync, 2, now_ms=500) == {1}
    sync.accepted(3, {1}, 7)
    assert sync.required == {1}


def test_an_unknown_outcome_that_was_applied_is_learnt_by_a_read() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.unknown(1, now_ms=10)
    sync.observed({1, 2}, 6)
    assert (sync.local, sync._unknown) == ({1, 2}, set())
    sync.accepted(1, {1, 2}, 6)  # the late answer
    assert (sync.local, sync.set_epoch) == ({1, 2}, 6)


def test_an_unknown_outcome_is_settled_by_sparing_a_healthy_member_for_a_moment() -> None:
    sync = state(1, 2)
    sync.join(3)
    assert propose(sync) == {1, 2, 3}
    sync.unknown(1, now_ms=0)
    sync.observed({1, 2}, 5)
    sync.leave_joining({3})
    assert propose(sync, 3, now_ms=100) == {1}
    assert sync.required == {1, 2, 3}
    sync.accepted(2, {1}, 6)
    assert sync.required == {1}
    sync.join(2)
    assert propose(sync, 3, now_ms=100) == {1, 2}


def test_an_unknown_shrink_needs_no_settling() -> None:
    sync = state(1, 2)
    propose(sync, 2)
    sync.unknown(1, now_ms=0)
    sync.observed({1, 2}, 5)
    assert propose(sync, now_ms=1000) is None
    assert sync.required == {1, 2}


def test_a_definite_refusal_of_a_member_lets_it_go_for_a_while() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.refused(1, codes.CONTROLLER_BROKER_NOT_ALIVE, now_ms=10)
    assert sync.required == {1}
    assert not sync.may_join(2, 1009)
    assert sync.may_join(2, 1010)


def test_a_fenced_proposal_asks_for_a_read_and_keeps_who_is_joining() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.refused(1, codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, now_ms=10)
    assert sync.needs_read
    assert sync.required == {1, 2}
    sync.observed({1, 3}, 8)
    assert sync.required == {1, 2, 3}


def test_a_refused_copy_says_nothing_about_an_earlier_attempt_of_the_same_set() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.unknown(1, now_ms=0)
    sync.observed({1}, 5)
    assert propose(sync, now_ms=100) == {1, 2}
    sync.refused(2, codes.CONTROLLER_BROKER_NOT_ALIVE, now_ms=200)
    assert sync.required == {1, 2}


def test_answers_for_other_tokens_change_nothing_but_what_they_prove() -> None:
    sync = state(1)
    sync.join(2)
    propose(sync)
    sync.refused(99, codes.CONTROLLER_BROKER_NOT_ALIVE, now_ms=0)
    sync.unknown(99, now_ms=0)
    assert sync.in_flight is not None
    assert sync.required == {1, 2}
    sync.observed({1}, 4)  # an old read
    assert sync.set_epoch == 5


def test_many_unknown_attempts_take_no_more_room_than_one() -> None:
    sync = state(1)
    sync.join(2)
    for attempt in range(100):
        now_ms = attempt * 1000
        assert propose(sync, now_ms=now_ms) == {1, 2}
        sync.unknown(attempt + 1, now_ms)
        sync.observed({1}, 5)
    assert len(sync._unknown) == 1
