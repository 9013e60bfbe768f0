"""Who owns a message group: the same always, by weight, and a change moves as few as it can."""

from __future__ import annotations

import pytest

from brokerd.placement.placement import Placement, Share, owner_of
from remoting.message_groups import queue_of_group

GROUPS = [f"order-{number}" for number in range(4000)]


def placement(**queues: int) -> Placement:
    return Placement(1, tuple(Share(name, count) for name, count in queues.items()))


def test_one_broker_group_has_the_queue_that_it_has_without_a_placement() -> None:
    for group in GROUPS[:200]:
        assert owner_of(placement(a=8), group) == ("a", queue_of_group(group, 8))


def test_it_is_what_it_was_in_every_release() -> None:
    owners = [owner_of(placement(a=8, b=8, c=4), group) for group in GROUPS[:6]]
    assert owners == [("a", 0), ("c", 3), ("b", 2), ("c", 3), ("a", 6), ("b", 1)]


def test_the_order_of_the_shares_does_not_matter() -> None:
    for group in GROUPS[:200]:
        assert owner_of(placement(a=8, b=4, c=2), group) == owner_of(placement(c=2, a=8, b=4), group)


@pytest.mark.parametrize("queues", [{"a": 8, "b": 8}, {"a": 12, "b": 4}, {"a": 1, "b": 2, "c": 3}])
def test_a_broker_group_has_as_many_as_its_queues_are(queues: dict[str, int]) -> None:
    owners = [owner_of(placement(**queues), group)[0] for group in GROUPS]
    for name, count in queues.items():
        expected = len(GROUPS) * count / sum(queues.values())
        assert abs(owners.count(name) - expected) < 0.1 * len(GROUPS) * count / sum(queues.values()) + 40


def test_queues_of_a_broker_group_have_as_many_as_one_another() -> None:
    mine = [queue for name, queue in (owner_of(placement(a=8, b=8), group) for group in GROUPS) if name == "a"]
    for queue in range(8):
        assert abs(mine.count(queue) - len(mine) / 8) < len(mine) / 20


def test_a_new_broker_group_takes_only_what_it_gets() -> None:
    before, after = placement(a=8, b=8), placement(a=8, b=8, c=8)
    moved = 0
    for group in GROUPS:
        if owner_of(before, group) != owner_of(after, group):
            assert owner_of(after, group)[0] == "c"
            moved += 1
    assert abs(moved - len(GROUPS) / 3) < len(GROUPS) / 20


def test_more_queues_move_only_what_they_get() -> None:
    before, after = placement(a=8, b=8), placement(a=16, b=8)
    moved = 0
    for group in GROUPS:
        old, new = owner_of(before, group), owner_of(after, group)
        if old != new:
            assert new[0] == "a"
            assert old[0] == "b" or new[1] >= 8
            moved += 1
    assert moved < len(GROUPS) * 0.55


def test_there_is_no_owner_without_shares() -> None:
    with pytest.raises(IndexError):
        owner_of(Placement(1, ()), "order")
