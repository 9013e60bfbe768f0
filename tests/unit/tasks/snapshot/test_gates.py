"""Where an ordered group waits after a change of placement."""

from __future__ import annotations

from remoting.facts.broker_state import ConsumedTopicState, GateState
from remoting.facts.snapshot import ConsumedTopicGate
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import billing, look, state


def test_where_an_ordered_group_waits_at_a_gate_is_told() -> None:
    gate = GateState(version=3, since_ms=7000, sources=("broker-z",), silent=("broker-z",), queue_ids=(1,))
    told = billing(topics=(ConsumedTopicState(topic="orders", gate=gate),))
    snapshot, _ = build(look(states={1: state(1, "master", groups=(told,))}), Memory())
    (group,) = snapshot.consumer_groups
    (topic,) = (each for each in group.topics if each.topic == "orders")
    assert topic.gates == (ConsumedTopicGate(group="broker-a", gate=gate),)
    assert (topic.blocked_queues, group.blocked_queues) == (1, 1), "the queue that holds messages back at the gate"
