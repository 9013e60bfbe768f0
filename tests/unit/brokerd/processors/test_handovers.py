"""The gate of ordered groups between brokers: what others are told, and how somebody opens it by hand."""

from __future__ import annotations

from brokerd.metadata.configs import GroupConfig
from brokerd.placement import table
from brokerd.placement.placement import Placement, Share
from remoting import codes
from remoting.facts.broker_state import BrokerState, GateState
from remoting.facts.codec import decode
from tests.support.remoting_broker import RemotingBroker, remoting_master

V1 = Placement(1, (Share("broker-a", 1), Share("broker-b", 1)))


def handed_over(ends: int, starts: int) -> RemotingBroker:
    broker = remoting_master()
    broker.metadata.put_group(GroupConfig("g", fifo=True), lambda _: None)
    kind, body = table.activated("t", V1, {0: ends}, {0: starts}, ("broker-a", "broker-b"))
    broker.placements.table.apply(kind, body, 0)
    return broker


def asked(broker: RemotingBroker, **changes: object) -> tuple[str, str]:
    ext = {"topic": "t", "version": 1, "consumerGroup": "g", "initMode": 1, **changes}
    answer = broker.answer(codes.HANDOVER_PASSED, ext)
    assert answer.code == codes.SUCCESS, answer.remark
    return answer.ext["passed"], answer.ext["left"]


def test_another_broker_group_hears_whether_a_group_passed() -> None:
    broker = handed_over(ends=1, starts=1)
    broker.send("a1")
    assert asked(broker) == ("false", "true")
    broker.ack(*broker.receive().messages)
    assert asked(broker) == ("true", "true")
    broker.log.expire("t", 0, 1)
    assert asked(broker, consumerGroup="") == ("false", "false")
    assert asked(broker, version=2) == ("false", "true"), "a change that this broker has not heard of"


def test_a_replica_does_not_say() -> None:
    broker = handed_over(1, 1)
    broker.is_master = False
    answer = broker.answer(codes.HANDOVER_PASSED, {"topic": "t", "version": 1})
    assert answer.code == codes.SERVICE_NOT_AVAILABLE


def test_somebody_opens_the_gate_for_a_broker_group_that_is_gone() -> None:
    broker = handed_over(ends=0, starts=0)
    broker.send("a2")
    waiting = broker.receive(wait_ms=5000)
    assert waiting.waits
    answer = broker.answer(codes.OPEN_GATE, {"topic": "t", "brokerName": "broker-b"})
    assert answer.code == codes.SUCCESS, answer.remark
    broker.turns.run()
    assert waiting.bodies == ["a2"]
    (handover,) = broker.placements.handovers.of("t")
    assert (handover.sources, handover.ends) == (("broker-a",), {0: 0}), "others are still told where it ended"
    broker.placements.rebuild()


def test_nothing_is_opened_where_nobody_waits() -> None:
    broker = handed_over(ends=0, starts=0)
    answer = broker.answer(codes.OPEN_GATE, {"topic": "t", "brokerName": "broker-x"})
    assert (answer.code, answer.remark) == (codes.SUCCESS, "unchanged")


def test_a_broker_tells_where_its_ordered_groups_wait() -> None:
    broker = handed_over(ends=0, starts=0)
    broker.send("a2")
    since_ms = broker.turns.wall_ms()
    assert broker.receive(wait_ms=5000).waits
    state = decode(BrokerState, broker.answer(codes.BROKER_STATE).body)
    (group,) = (each for each in state.groups if each.name == "g")
    (topic,) = (each for each in group.topics if each.topic == "t")
    assert topic.gate == GateState(version=1, since_ms=since_ms, sources=("broker-b",), queue_ids=(0,))
