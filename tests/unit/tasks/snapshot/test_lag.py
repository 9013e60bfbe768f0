"""A group's lag: every queue that it will receive counts, from where it will begin, and a sum that lacks a part says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remoting.facts.broker_state import (
    BrokerState,
    ConsumedQueueState,
    ConsumedTopicState,
    GroupState,
    MemberState,
    SubscriptionState,
)
from remoting.facts.snapshot import ClusterSnapshot, ConsumerGroup
from remoting.facts.words import GroupStart
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Look, Memory
from tests.unit.tasks.snapshot.cluster import CONTROLLERS, NOW_MS, look, replica, state, topic, view

ORDERS = "orders-of-all-the-shops-in-the-north-and-in-the-south-and-of-those-that-closed-last-year-x"
BILLING = "billing-of-orders-that-were-paid-with-a-card-and-of-those-that-were-paid-by-a-transfer-xxx"
assert len(ORDERS) == len(BILLING) == 90


def reader(offsets: dict[int, int], start: GroupStart | None = None, name: str = BILLING) -> GroupState:
    """A group that is at these offsets; with `start` somebody of it is connected."""
    queues = tuple(ConsumedQueueState(queue_id=each, consumer_offset=offsets[each], in_flight=0) for each in offsets)
    return GroupState(
        name=name,
        topics=(ConsumedTopicState(topic=ORDERS, queues=queues),) if queues else (),
        members=(MemberState(client_id="c1"),) if start else (),
        subscriptions=(SubscriptionState(topic=ORDERS, start=start),) if start else (),
    )


def lag_of(snapshot: ClusterSnapshot) -> ConsumerGroup:
    (group,) = snapshot.consumer_groups
    return group


def alone(master: BrokerState) -> ConsumerGroup:
    snapshot, _ = build(look(states={1: master, 2: state(2), 3: state(3)}), Memory())
    return lag_of(replace(snapshot, consumer_groups=snapshot.consumer_groups[:1]))


def test_a_group_that_read_two_of_eight_queues_has_the_other_six_to_receive() -> None:
    highs = (60, 71, 64, 70, 61, 63, 62, 60)
    orders = topic(ORDERS, *highs, young=True)
    group = alone(state(1, "master", topics=(orders,), groups=(reader({0: 0, 1: 0}),)))
    assert (group.lag, group.lag_at_least) == (511, False)
    (consumed,) = group.topics
    assert (consumed.lag, consumed.lag_at_least) == (511, False)
    assert [queue.lag for queue in consumed.queues] == list(highs)
    assert [queue.start_offset for queue in consumed.queues] == [None, None, 0, 0, 0, 0, 0, 0]


def test_a_group_that_only_subscribed_has_the_topic_to_receive() -> None:
    group = alone(
        state(1, "master", topics=(topic(ORDERS, 5, 6, young=True),), groups=(reader({}, GroupStart.LAST_MESSAGE),))
    )
    assert (group.lag, group.lag_at_least, group.topic_count) == (11, False, 1)


@pytest.mark.parametrize(
    ("start", "lags"),
    [
        (GroupStart.FIRST, [6, 4]),
        (GroupStart.END, [6, 0]),
        (GroupStart.LAST_MESSAGE, [6, 1]),
        (GroupStart.UNKNOWN, [6, None]),
        (None, [6, None]),
    ],
)
def test_in_an_old_queue_the_lag_counts_from_where_the_group_starts(
    start: GroupStart | None, lags: list[int | None]
) -> None:
    orders = topic(ORDERS, 10, 8, min_offset=4, young=False)
    group = alone(state(1, "master", topics=(orders,), groups=(reader({0: 2}, start),)))
    assert [queue.lag for queue in group.topics[0].queues] == lags
    assert (group.lag, group.lag_at_least) == (sum(each or 0 for each in lags), None in lags)


def test_nobody_has_messages_to_receive_of_a_queue_that_is_not_read_any_more() -> None:
    orders = topic(ORDERS, 10, young=True)
    group = alone(state(1, "master", topics=(orders,), groups=(reader({0: 4, 7: 2}),)))
    assert [(queue.queue_id, queue.lag) for queue in group.topics[0].queues] == [(0, 6), (7, 0)]
    assert (group.lag, group.lag_at_least) == (6, False)


def test_what_comes_back_to_a_group_counts_from_the_first_message() -> None:
    back = f"%RETRY%{BILLING}+{ORDERS}"
    topics = (topic(ORDERS, 3, young=True), topic(back, 9, min_offset=2, young=False), topic("%RETRY%other", 5))
    group = alone(state(1, "master", topics=topics, groups=(reader({0: 3}, GroupStart.END),)))
    assert {each.topic: each.lag for each in group.topics} == {back: 7, ORDERS: 0}
    assert (group.lag, group.lag_at_least) == (7, False)


# ---- several broker groups


def two_groups(**states: BrokerState) -> Look:
    """broker-a with one replica, broker-b with another; those of `states` answer."""
    first = view(replicas=(replica(1, "master"),), sync_state_set=(1,))
    other = replace(first.groups[0], broker_name="broker-b", replicas=(replica(9, "master"),), master_broker_id=9)
    both = replace(first, groups=(first.groups[0], other))
    addresses = {"a": "127.0.0.1:10911", "b": "127.0.0.1:10991"}
    return replace(
        look(view=both, states={}, views=dict.fromkeys(CONTROLLERS, both)),
        states={addresses[name]: each for name, each in states.items()},
    )


def broker_a(**changes: Any) -> BrokerState:
    orders = topic(ORDERS, 10, 10, young=True)
    return state(1, "master", **{"topics": (orders,), "groups": (reader({0: 4}),), **changes})


def broker_b(role: str = "master", **changes: Any) -> BrokerState:
    """Where nobody of the group was yet."""
    told = {"topics": (topic(ORDERS, 20, young=True),), "groups": (reader({}),), **changes}
    return replace(state(9, role, **told), broker_name="broker-b")


def test_queues_of_brokers_that_the_group_never_read_from_count() -> None:
    snapshot, _ = build(two_groups(a=broker_a(), b=broker_b()), Memory())
    group = lag_of(snapshot)
    assert [(queue.group, queue.lag) for queue in group.topics[0].queues] == [
        ("broker-a", 6),
        ("broker-a", 10),
        ("broker-b", 20),
    ]
    assert (group.lag, group.lag_at_least) == (36, False)


def test_while_a_broker_is_silent_the_sum_is_a_least_one() -> None:
    _, memory = build(two_groups(a=broker_a(), b=broker_b()), Memory())
    silent = replace(two_groups(a=broker_a()), now_ms=NOW_MS + 1000)
    group = lag_of(build(silent, memory)[0])
    assert (group.lag, group.lag_at_least, group.topics[0].lag_at_least) == (16, True, True)
    assert [queue.lag for queue in group.topics[0].queues] == [6, 10, None]
    fresh = lag_of(build(silent, Memory())[0])
    assert (fresh.lag, fresh.lag_at_least) == (16, True), "nobody knows what the silent one has"


def test_a_group_that_only_a_silent_broker_knew_is_not_forgotten() -> None:
    own = broker_b(groups=(reader({0: 5}),))
    snapshot, memory = build(two_groups(a=broker_a(topics=(), groups=()), b=own), Memory())
    assert lag_of(snapshot).lag == 15
    for _ in range(2):
        snapshot, memory = build(two_groups(a=broker_a(topics=(), groups=())), memory)
        group = lag_of(snapshot)
        assert (group.name, group.lag, group.lag_at_least, group.member_count) == (BILLING, None, True, 0)
    snapshot, _ = build(two_groups(a=broker_a(topics=(), groups=()), b=broker_b(groups=())), memory)
    assert snapshot.consumer_groups == (), "it answers again, and the group is gone"


def test_what_a_replica_tells_in_its_master_s_place_is_a_least_value() -> None:
    told = {"topics": (topic(ORDERS, 10, young=True),), "groups": (reader({0: 4}),)}
    group = lag_of(build(look(states={2: state(2, **told), 3: state(3, end_offset=10, **told)}), Memory())[0])
    assert (group.lag, group.lag_at_least) == (6, True)
