"""The journal of placements: it survives a switch, is cut with the log, and the controllers hear what is acknowledged."""

from __future__ import annotations

import random

from brokerd.journal.journal import JournalSettings
from brokerd.placement.placement import Placement, Share
from brokerd.placement.rules import Waiting
from brokerd.placement.service import PlacementService
from remoting.facts.placements import PlacementFact, PlacementNews, ShareFact, TopicPlacement
from tests.support.memory_log import MemoryRecordLog
from tests.support.turns import Turns

A, B = ShareFact("a", 8), ShareFact("b", 8)
V1 = PlacementFact(1, (A,))
V2 = PlacementFact(2, (A, B))


class Placed:
    def __init__(self, log: MemoryRecordLog | None = None, *, leads: bool = True) -> None:
        self.log = log or MemoryRecordLog()
        self.turns = Turns()
        self.ends = {0: 5}
        settings = JournalSettings(snapshot_every_records=4, snapshot_bytes_factor=0)
        self.service = PlacementService(self.log, "a", lambda _topic: dict(self.ends), self.turns, settings)
        self.service.rebuild()
        self.told = 0
        if leads:
            self.service.catch_up()
            self.service.lead()

    def first(self) -> None:
        """The topic has its first placement, in this group alone."""
        self.take(1, TopicPlacement("orders", 1, None, V1, ("a",)))
        self.take(1, TopicPlacement("orders", 1, V1))

    def take(self, revision: int, *facts: TopicPlacement, whole: bool = False, is_placing: bool = True) -> None:
        names = tuple(fact.topic for fact in facts) if whole else None
        news = PlacementNews(revision, 9, facts, is_placing=is_placing, names=names)
        self.service.take(news, self._acknowledged)

    def _acknowledged(self) -> None:
        self.told += 1


def proposed(active: PlacementFact | None = None) -> TopicPlacement:
    return TopicPlacement("orders", 1, active, V2, ("a", "b"))


def test_the_controllers_hear_what_is_acknowledged() -> None:
    placed = Placed()
    placed.log.acknowledges = False
    placed.take(1, proposed())
    assert placed.service.owner("orders", "x") is Waiting.MOVES, "that holds at once"
    assert (placed.service.prepared(), placed.told) == ({}, 0)
    placed.log.acknowledge()
    assert (placed.service.prepared(), placed.told) == ({"orders": 2}, 1)


def test_a_new_master_knows_what_was_prepared() -> None:
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    later = Placed(placed.log)
    assert later.service.table.topics == placed.service.table.topics
    assert later.service.prepared() == {"orders": 2}
    later.take(2, TopicPlacement("orders", 2, V2))
    (handover,) = later.service.handovers.of("orders")
    assert (handover.ends, handover.sources) == ({0: 5}, ("a",))


def test_what_is_cut_off_is_not_known() -> None:
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    end = placed.log.end_offset
    placed.take(2, TopicPlacement("orders", 2, V2))
    assert placed.service.handovers.of("orders")
    placed.service.step_down()
    placed.log.cut(end)
    placed.service.truncated(end)
    placed.turns.run()
    assert not placed.service.handovers.of("orders")
    assert placed.service.table.topics["orders"].proposed == Placement(2, (Share("a", 8), Share("b", 8)))


def test_where_no_placement_says_the_broker_takes_what_comes() -> None:
    placed = Placed()
    assert placed.service.owner("orders", "x") is None
    placed.take(1, is_placing=False)
    assert placed.service.owner("orders", "x") is None


def test_a_topic_that_gets_its_placement_in_a_moment_waits_for_it_also_after_a_switch() -> None:
    placed = Placed()
    placed.take(1)
    assert placed.service.owner("orders", "x") is Waiting.UNKNOWN
    later = Placed(placed.log)
    assert later.service.owner("orders", "x") is Waiting.UNKNOWN, "what the controllers say is not known yet"
    later.take(1, is_placing=False)
    assert later.service.owner("orders", "x") is None


def test_a_placement_without_this_group_is_known_too() -> None:
    placed = Placed()
    placed.take(1, TopicPlacement("orders", 1, PlacementFact(1, (B,))))
    assert placed.service.owner("orders", "x") == ("b", placed.service.owner("orders", "x")[1])  # type: ignore[index]
    assert not placed.service.table.topics, "and not recorded"
    placed.take(2, whole=True)
    assert placed.service.owner("orders", "x") is Waiting.UNKNOWN


def test_a_topic_that_nobody_has_is_forgotten() -> None:
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    placed.take(2, TopicPlacement("orders", 2, V2))
    placed.take(3, whole=True)
    assert not placed.service.table.topics
    assert not placed.service.handovers.of("orders")


def test_a_topic_that_was_not_ordered_for_a_while_waits_for_all_before_and_not_within_it() -> None:
    """Set to NORMAL it has no placement, and so no handovers: what moved before may overtake what it came from. Set back,
    everything that is there then comes before everything later, wherever it lies."""
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    placed.take(2, TopicPlacement("orders", 2, V2))
    assert [each.version for each in placed.service.handovers.of("orders")] == [2]
    placed.take(3, whole=True)
    placed.ends = {0: 9}
    again = PlacementFact(3, (A, B))
    placed.take(4, TopicPlacement("orders", 4, None, again, ("a", "b")))
    placed.take(5, TopicPlacement("orders", 5, again))
    (handover,) = placed.service.handovers.of("orders")
    assert (handover.version, handover.ends, handover.starts, handover.sources) == (3, {0: 9}, {0: 9}, ("a", "b"))


def test_a_deleted_topic_hands_nothing_over() -> None:
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    placed.take(2, TopicPlacement("orders", 2, V2))
    placed.service.topic_deleted("orders")
    placed.turns.run(1)
    assert not placed.service.handovers.of("orders")
    assert placed.service.table.topics["orders"].active is not None


def test_before_all_is_known_nobody_takes_what_may_be_placed_elsewhere() -> None:
    placed = Placed()
    placed.take(1)
    placed.service.step_down()
    placed.service.lead()
    placed.service.take(PlacementNews(5, 9, is_placing=False, more=True), lambda: None)
    assert placed.service.owner("orders", "x") is Waiting.UNKNOWN
    placed.service.take(PlacementNews(6, 9, is_placing=False), lambda: None)
    assert placed.service.owner("orders", "x") is None


def test_news_from_before_are_left_out() -> None:
    placed = Placed()
    placed.take(3, TopicPlacement("orders", 3, V1))
    placed.take(2, proposed())
    assert placed.service.changes == {}


def test_a_handover_is_pruned_once() -> None:
    placed = Placed()
    placed.first()
    placed.take(1, proposed(V1))
    placed.take(2, TopicPlacement("orders", 2, V2))
    placed.service.prune("orders", 2)
    count = placed.log.appends
    placed.service.prune("orders", 2)
    assert placed.log.appends == count
    assert not Placed(placed.log, leads=False).service.handovers.of("orders")


def test_a_snapshot_holds_everything() -> None:
    rng = random.Random(5)
    placed = Placed()
    for version in range(1, 60):
        shares = (A, B) if rng.random() < 0.5 else (ShareFact("a", rng.randint(1, 9)),)
        topic = rng.choice(("orders", "bills", "notes"))
        active = placed.service.table.topics.get(topic)
        before = active.active if active is not None else None
        known = None
        if before is not None:
            known = PlacementFact(before.version, tuple(ShareFact(*share) for share in before.shares))
        news = PlacementFact(version, shares)
        placed.service.take(
            PlacementNews(2 * version, version, (TopicPlacement(topic, 1, known, news, ("a",)),)), lambda: None
        )
        if rng.random() < 0.8:
            after = TopicPlacement(topic, 1, news)
            placed.service.take(PlacementNews(2 * version + 1, version, (after,)), lambda: None)
        copy = Placed(placed.log, leads=False).service
        assert copy.table.topics == placed.service.table.topics
        assert copy.table.is_placing == placed.service.table.is_placing
        for name in ("orders", "bills", "notes"):
            assert copy.handovers.of(name) == placed.service.handovers.of(name)


def test_nothing_stays_of_topics_that_come_and_go() -> None:
    placed = Placed()
    revision = 1
    for number in range(3):
        name, first = f"orders{number}", PlacementFact(number + 1, (A,))
        placed.take(revision, TopicPlacement(name, 1, None, first, ("a",)))
        if number:
            placed.take(revision + 1, TopicPlacement(name, 1, first))
        placed.take(revision + 2, whole=True)
        revision += 3
    assert not placed.service.table.topics
    assert not placed.service._prepared_at


def test_who_listens_hears_of_changes_alone() -> None:
    """Masters report several times in a second, and thousands of sends may be held."""
    placed = Placed()
    heard: list[int] = []
    placed.service.listeners.append(lambda: heard.append(placed.service.revision))
    placed.take(1, is_placing=False)
    placed.take(1, is_placing=False)
    placed.take(1)
    placed.take(1)
    placed.take(2, proposed())
    assert heard == [1, 1, 2]
