"""The order among candidates, and what a person is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from controllerd.replicas.elect import choose_master, explain_eligibility
from controllerd.replicas.state import Group, Replica
from tests.unit.controllerd.replicas.builders import CLUSTER, NAME, alter, group_of, group_of_three, run, seen

_REPLICAS = {broker_id: Replica(broker_id, f"a:{broker_id}", "") for broker_id in range(1, 6)}
_DEAD_MASTER = Group(CLUSTER, NAME, 6, 7, 3, (1, 2, 3, 4, 5), master_broker_id=5, had_master=True, replicas=_REPLICAS)


def test_pairs_are_compared_not_differences() -> None:
    """Offsets more than 2 GiB apart, and an older epoch with a larger offset."""
    choice = choose_master(_DEAD_MASTER, [seen(1, 3, 1), seen(2, 3, 2**33), seen(3, 2, 2**60)], None, False)
    assert choice.broker_id == 2


def test_ties_go_to_the_lower_priority_and_then_to_the_lower_id() -> None:
    assert choose_master(_DEAD_MASTER, [seen(1, priority=5), seen(2, priority=4)], None, False).broker_id == 2
    assert choose_master(_DEAD_MASTER, [seen(3), seen(2), seen(4)], None, False).broker_id == 2


_OBSERVED = st.lists(
    st.builds(seen, st.integers(1, 7), st.integers(-1, 3), st.integers(-1, 2**40), st.integers(0, 2)),
    unique_by=lambda each: each.broker_id,
)


@given(_OBSERVED, st.sets(st.integers(1, 5)), st.booleans(), st.randoms())
def test_the_winner_is_a_member_and_nobody_eligible_is_fresher(observed, members, unclean, rng) -> None:  # type: ignore[no-untyped-def]
    group = Group(CLUSTER, NAME, 6, 7, 3, tuple(sorted(members)), had_master=True, replicas=_REPLICAS)
    winner = choose_master(group, observed, None, unclean).broker_id
    shuffled = list(observed)
    rng.shuffle(shuffled)
    assert choose_master(group, shuffled, None, unclean).broker_id == winner
    eligible = [each for each in observed if each.broker_id in members]
    if not eligible and unclean:
        eligible = [each for each in observed if each.broker_id in _REPLICAS]
    if winner is None:
        assert not eligible
        return
    by_id = {each.broker_id: each for each in eligible}
    best = by_id[winner]
    assert all((each.epoch, each.max_offset) <= (best.epoch, best.max_offset) for each in eligible)


def test_eligibility_is_explained_and_agrees_with_the_election() -> None:
    machine = group_of_three()
    run(machine, alter([1, 2], set_epoch=2))
    group = group_of(machine)
    told = explain_eligibility(group, [seen(1), seen(3)])
    assert [(each.broker_id, each.eligible) for each in told] == [(1, False), (2, False), (3, False)]
    assert [each.reason.split(":")[0] for each in told] == ["is the master", "not alive", "not in the sync-state set"]
    everybody = [seen(1), seen(2), seen(3)]
    for unclean in (False, True):
        for each in explain_eligibility(group, everybody, unclean):
            chosen = choose_master(group, everybody, each.broker_id, unclean)
            assert (chosen.broker_id == each.broker_id) is each.eligible
