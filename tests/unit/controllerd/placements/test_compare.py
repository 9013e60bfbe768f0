"""What the leader proposes: shares follow what live masters register, and who is down keeps its share."""

from __future__ import annotations

from collections.abc import Mapping

from controllerd.placements.compare import Told
from controllerd.placements.requests import Drop, Propose
from controllerd.placements.state import PlacementsState
from remoting.facts.placements import PlacementFact, ShareFact, TopicPlacement
from tests.support.placement_differences import differences

A, B = ShareFact("a", 8), ShareFact("b", 8)


def state(*shares: ShareFact, proposed: bool = False) -> PlacementsState:
    fact = PlacementFact(3, shares)
    present = TopicPlacement("orders", 1, fact, PlacementFact(4, shares) if proposed else None)
    return PlacementsState({"orders": present}, 1, 4)


def asked(
    placed: PlacementsState, groups: Mapping[str, Mapping[str, int]], members: str = "ab", *, all_there: bool = True
) -> list[Propose | Drop]:
    return list(differences(placed, Told(groups, set(members), all_there)))


def test_a_topic_gets_its_first_placement_when_all_brokers_know_of_placements() -> None:
    groups = {"a": {"orders": 8}, "b": {"orders": 8}}
    assert asked(PlacementsState(), groups) == [Propose("orders", 0, (A, B), ("a", "b"))]
    assert asked(PlacementsState(), groups, all_there=False) == []


def test_nothing_is_asked_for_what_is_as_it_should_be() -> None:
    assert asked(state(A, B), {"a": {"orders": 8}, "b": {"orders": 8}}) == []


def test_another_number_of_queues_and_another_group_are_changes() -> None:
    assert asked(state(A), {"a": {"orders": 16}}) == [Propose("orders", 3, (ShareFact("a", 16),), ("a",))]
    assert asked(state(A), {"a": {"orders": 8}, "b": {"orders": 8}}) == [Propose("orders", 3, (A, B), ("a", "b"))]


def test_there_is_one_proposal_at_a_time() -> None:
    assert asked(state(A, proposed=True), {"a": {"orders": 16}}) == []


def test_who_is_down_keeps_its_share_and_is_waited_for() -> None:
    assert asked(state(A, B), {"a": {"orders": 8}}) == []
    assert asked(state(A, B), {"a": {"orders": 16}}) == [], "b would have to prepare"


def test_a_live_master_without_the_topic_leaves_when_it_has_prepared() -> None:
    assert asked(state(A, B), {"a": {"orders": 8}, "b": {}}) == [Propose("orders", 3, (A,), ("a", "b"))]


def test_a_group_that_the_controllers_forgot_is_gone() -> None:
    assert asked(state(A, B), {"a": {"orders": 8}}, members="a") == [Propose("orders", 3, (A,), ("a",))]


def test_a_topic_that_nobody_has_is_dropped_but_not_while_somebody_is_down() -> None:
    assert asked(state(A, B), {"a": {}, "b": {}}) == [Drop("orders")]
    assert asked(state(A, B), {"a": {}}) == []


def test_a_topic_that_nobody_lets_be_written_now_keeps_its_placement() -> None:
    """What is dropped is forgotten with its handovers, so ordered groups would get what moved before what came before it."""
    assert asked(state(A, B), {"a": {"orders": 0}, "b": {"orders": 0}}) == []
    assert asked(state(A, B), {"a": {"orders": 0}, "b": {}}) == []
    assert asked(state(A, B), {"a": {"orders": 8}, "b": {"orders": 0}}) == [Propose("orders", 3, (A,), ("a", "b"))]
    assert asked(PlacementsState(), {"a": {"orders": 0}, "b": {"orders": 0}}) == []
