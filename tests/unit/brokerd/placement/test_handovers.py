"""The handovers of a broker group: by topic, the oldest first, and gone when they are pruned."""

from __future__ import annotations

from brokerd.placement.handovers import Handover, Handovers


def handover(version: int, *, topic: str = "orders", end: int = 5) -> Handover:
    return Handover(topic, version, {0: end}, {0: end}, ("a", "b"))


def test_they_are_kept_by_topic_the_oldest_first() -> None:
    handovers = Handovers()
    handovers.add(handover(4))
    handovers.add(handover(2))
    handovers.add(handover(3, topic="bills"))
    assert [each.version for each in handovers.of("orders")] == [2, 4]
    assert [each.version for each in handovers.of("bills")] == [3]
    assert not handovers.of("payments")


def test_the_same_version_is_there_once() -> None:
    handovers = Handovers()
    handovers.add(handover(2))
    handovers.add(handover(2, end=9))
    assert [each.ends for each in handovers.of("orders")] == [{0: 9}]


def test_what_is_pruned_is_gone() -> None:
    handovers = Handovers()
    handovers.add(handover(2))
    handovers.add(handover(4))
    handovers.prune("orders", 2)
    handovers.prune("orders", 3)
    handovers.prune("bills", 2)
    assert [each.version for each in handovers.of("orders")] == [4]
    handovers.prune("orders", 4)
    assert not handovers.of("orders")


def test_a_deleted_topic_has_none() -> None:
    handovers = Handovers()
    handovers.add(handover(2))
    handovers.add(handover(3, topic="bills"))
    handovers.drop("orders")
    handovers.drop("payments")
    assert not handovers.of("orders")
    assert handovers.of("bills")
