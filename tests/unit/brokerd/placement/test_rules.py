"""What a master records of the controllers' news, and who takes a message group meanwhile."""

from __future__ import annotations

from brokerd.placement import table
from brokerd.placement.handovers import Handovers
from brokerd.placement.placement import Placement, Share, owner_of
from brokerd.placement.rules import Waiting, news_of, owner_now
from brokerd.placement.table import PlacementTable, TopicState
from remoting.facts.placements import PlacementFact, ShareFact, TopicPlacement

ENDS = {0: 10, 1: 20}
GROUPS = [f"order-{number}" for number in range(300)]


def fact(version: int, *names: str, queues: int = 8) -> PlacementFact:
    return PlacementFact(version, tuple(ShareFact(name, queues) for name in names))


def placement(version: int, *names: str, queues: int = 8) -> Placement:
    return Placement(version, tuple(Share(name, queues) for name in names))


def told(
    active: PlacementFact | None, proposed: PlacementFact | None = None, voters: tuple[str, ...] = ()
) -> TopicPlacement:
    return TopicPlacement("orders", 1, active, proposed, voters)


def kinds(news: TopicPlacement, state: TopicState | None, last_version: int = 9) -> list[str]:
    return [kind for kind, _ in news_of(news, last_version, state, "a", ENDS)]


def test_the_first_placement_of_one_group_moves_nothing() -> None:
    state = TopicState(None, placement(1, "a"))
    assert [owner_now(state, group) for group in GROUPS] == [owner_of(placement(1, "a"), group) for group in GROUPS]
    assert owner_now(TopicState(None, placement(1, "a", "b")), "order") is Waiting.MOVES


def test_what_moves_is_taken_by_nobody_while_a_change_is_under_way() -> None:
    before, after = placement(1, "a", "b"), placement(2, "a", "b", "c")
    state = TopicState(before, after)
    for group in GROUPS:
        same = owner_of(before, group) == owner_of(after, group)
        assert owner_now(state, group) == (owner_of(before, group) if same else Waiting.MOVES)
    assert owner_now(TopicState(), "order") is None


def test_it_prepares_once_for_what_it_votes_on() -> None:
    news = told(None, fact(1, "a", "b"), ("a", "b"))
    assert kinds(news, None) == [table.PREPARED]
    assert kinds(news, TopicState(None, placement(1, "a", "b"), ENDS)) == []
    assert kinds(told(None, fact(1, "b", "c"), ("b", "c")), None) == []


def test_what_came_into_force_hands_over() -> None:
    state = TopicState(placement(1, "a"), placement(2, "a", "b"), {0: 3})
    handovers = Handovers()
    tables = PlacementTable(handovers)
    tables.topics["orders"] = state
    for kind, body in news_of(told(fact(2, "a", "b")), 2, state, "a", ENDS):
        tables.apply(kind, body, 0)
    assert tables.topics["orders"] == TopicState(placement(2, "a", "b"))
    (handover,) = handovers.of("orders")
    assert (handover.version, handover.ends, handover.starts, handover.sources) == (2, {0: 3}, ENDS, ("a",))


def test_the_first_placement_of_several_has_all_of_them_as_sources() -> None:
    state = TopicState(None, placement(1, "a", "b"), ENDS)
    ((_, body),) = news_of(told(fact(1, "a", "b")), 1, state, "a", ENDS)
    assert body["sources"] == ["a", "b"]
    ((_, body),) = news_of(told(fact(1, "a")), 1, TopicState(None, placement(1, "a"), ENDS), "a", ENDS)
    assert body["sources"] == []


def test_a_proposal_that_came_to_nothing_is_given_up_and_the_next_one_prepared() -> None:
    state = TopicState(placement(1, "a"), placement(2, "a", "b"), ENDS)
    assert kinds(told(fact(1, "a")), state, 2) == [table.ABORTED]
    assert kinds(told(fact(1, "a"), fact(3, "a", "b"), ("a", "b")), state, 3) == [table.ABORTED, table.PREPARED]


def test_old_news_change_nothing() -> None:
    state = TopicState(placement(1, "a"), placement(2, "a", "b"), ENDS)
    assert kinds(told(fact(1, "a")), state, 1) == []
    assert kinds(told(fact(1, "a"), fact(2, "a", "b"), ("a", "b")), state, 2) == []
    assert kinds(told(fact(1, "a"), fact(2, "a", "b"), ("a", "b")), TopicState(placement(2, "a", "b")), 2) == []


def test_who_left_knows_that_it_did_although_later_ones_made_do_without_it() -> None:
    state = TopicState(placement(1, "a", "b"), placement(2, "b"), ENDS)
    assert kinds(told(fact(4, "b", "c")), state) == [table.ACTIVATED]
    newcomer = TopicState(placement(1, "b"), placement(2, "a", "b"), ENDS)
    assert kinds(told(fact(4, "b", "c")), newcomer) == [table.ABORTED]


def test_who_lost_what_it_had_prepared_takes_all_for_moved() -> None:
    ((kind, body),) = news_of(told(fact(2, "a", "b")), 2, TopicState(placement(1, "a")), "a", ENDS)
    assert (kind, body["ends"], body["starts"]) == (table.ACTIVATED, [[0, 10], [1, 20]], [[0, 10], [1, 20]])
