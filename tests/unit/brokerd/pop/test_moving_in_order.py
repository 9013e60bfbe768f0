"""What the log is about to lose moves to the retry topic, and keeps its order there and with what stays."""

from __future__ import annotations

import pytest

from brokerd.pop.requests import PopStatus
from tests.support.pop_broker import PopBroker, Receive, master

RETRY = "%RETRY%g+t"
SCOPES = ("QUEUE", "MESSAGE_GROUP")


def ordered(scope: str) -> PopBroker:
    broker = master()
    broker.group("g", fifo=True, attributes={"order.scope": scope})
    return broker


def send(broker: PopBroker, *bodies: str) -> None:
    for body in bodies:
        broker.send(body, __SHARDINGKEY=body[0])


def let_go(broker: PopBroker, behind: int | None = None) -> None:
    """The log is about to lose what it has now."""
    broker.log.going_offset = broker.log.end_offset if behind is None else behind
    broker.turns.run(20_000)
    broker.log.going_offset = 0


def bodies(broker: PopBroker) -> list[bytes]:
    return [record.body for record in broker.stored(RETRY)] if broker.metadata.topic(RETRY) is not None else []


def nothing(receive: Receive) -> bool:
    return receive.outcome.status == PopStatus.NOTHING


def test_a_message_does_not_move_before_an_earlier_one_of_its_group_that_is_with_a_client() -> None:
    broker = ordered("MESSAGE_GROUP")
    send(broker, "a1", "b1", "a2", "b2")
    held = broker.receive(1, invisible_time_ms=60_000)
    assert broker.receive(1, invisible_time_ms=1000).bodies == ["b1"]
    broker.turns.run(1000)
    let_go(broker)
    assert bodies(broker) == [b"b1"]
    again = broker.receive()
    assert again.bodies == ["b1"]
    broker.ack(*again.messages)
    broker.ack(*held.messages)
    assert sorted(broker.receive().bodies) == ["a2", "b2"]


def test_a_message_does_not_move_before_an_earlier_one_of_its_queue_that_is_with_a_client() -> None:
    broker = ordered("QUEUE")
    send(broker, "a1", "b1")
    taken = broker.receive(2, invisible_time_ms=1000).messages
    broker.change(taken[0], 60_000)
    broker.turns.run(1000)
    let_go(broker)
    assert bodies(broker) == []
    assert nothing(broker.receive())
    broker.turns.run(60_000)
    assert broker.receive().bodies == ["a1", "b1"]


@pytest.mark.parametrize("scope", SCOPES)
def test_what_moved_comes_before_what_stayed(scope: str) -> None:
    broker = ordered(scope)
    send(broker, "a1", "a2", "b1")
    broker.receive(2, invisible_time_ms=1000)
    broker.turns.run(1000)
    going = broker.log.end_offset
    send(broker, "a3")
    let_go(broker, going)
    assert bodies(broker) == [b"a1", b"a2"]
    moved = broker.receive()
    assert moved.bodies == ["a1", "a2"]
    assert nothing(broker.receive())
    waiting = broker.receive(wait_ms=5000)
    broker.ack(moved.messages[0])
    assert waiting.waits
    broker.ack(moved.messages[1])
    assert waiting.bodies == ["b1", "a3"]


def test_many_move_in_their_order() -> None:
    """More than move at once, and the later ones came back first."""
    broker = master(revive_messages=3)
    broker.group("g", fifo=True, attributes={"order.scope": "MESSAGE_GROUP"})
    send(broker, *(f"a{number}" for number in range(8)))
    for message in broker.receive(8, invisible_time_ms=1000).messages:
        broker.change(message, 1000 - 100 * message.queue_offset)
    broker.turns.run(1500)
    let_go(broker)
    assert bodies(broker) == [f"a{number}".encode() for number in range(8)]
