"""What the log is about to lose moves to the retry topic, and keeps its order there and with what stays."""

from __future__ import annotations

import pytest

from brokerd.pop.requests import PopStatus
from tests.support.pop_broker import PopBroker, Receive, master
from tests.support.turns import Turns

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
    if scope == "MESSAGE_GROUP":
        assert broker.receive().bodies == ["b1"], "nothing of its message group moved"
    assert nothing(broker.receive())
    waiting = broker.receive(wait_ms=5000)
    broker.ack(moved.messages[0])
    assert waiting.waits
    broker.ack(moved.messages[1])
    assert waiting.bodies == (["a3"] if scope == "MESSAGE_GROUP" else ["b1", "a3"])


def test_one_message_that_moved_holds_up_its_own_message_group_alone() -> None:
    """However long it fails; and what waits for it is taken in its turn, also by a new master."""
    broker = ordered("MESSAGE_GROUP")
    send(broker, "a1")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    let_go(broker)
    assert bodies(broker) == [b"a1"]
    send(broker, "a2", "a3")
    for other_message in ("b1", "b2", "c1"):
        send(broker, other_message)
        assert broker.receive(1, invisible_time_ms=1000).bodies == ["a1"]
        others = broker.receive()
        assert others.bodies == [other_message]
        broker.ack(*others.messages)
        assert nothing(broker.receive())
        broker.turns.run(1000)
    other = PopBroker(broker.log.copy(), Turns(start_ms=broker.turns.wall_ms())).become_master()
    last = other.receive(invisible_time_ms=7000)
    assert last.bodies == ["a1"]
    now_ms = other.pop_service.now_ms()
    assert list(other.progress.waiting_groups("g", "t", 0, now_ms)) == [(1, now_ms + 7000, 2)]
    assert nothing(other.receive())
    waiting = other.receive(wait_ms=5000)
    other.ack(*last.messages)
    assert waiting.bodies == ["a2", "a3"]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_repeated_attempt_gets_what_stayed_after_what_moved(scope: str) -> None:
    """Its messages are its own, but what is before them is with somebody else now."""
    broker = ordered(scope)
    send(broker, "a1")
    going = broker.log.end_offset
    send(broker, "a2")
    first, _ = broker.receive(invisible_time_ms=60_000, attempt_id="one").messages
    broker.change(first, 1000)
    broker.turns.run(1000)
    let_go(broker, going)
    moved = broker.receive()
    assert moved.bodies == ["a1"]
    again = broker.receive(attempt_id="one", wait_ms=5000)
    assert again.waits
    broker.ack(*moved.messages)
    assert again.bodies == ["a2"]
    assert [message.delivery_attempt for message in again.messages] == [1]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_new_master_that_takes_a_lease_for_valid_gives_what_stayed_after_what_moved(scope: str) -> None:
    """That the lease ended on the one before is in no record."""
    broker = ordered(scope)
    send(broker, "a1")
    going = broker.log.end_offset
    send(broker, "a2")
    assert broker.receive(client_id="c", auto_renew=True, attempt_id="one").bodies == ["a1", "a2"]
    broker.turns.run(10_000)
    let_go(broker, going)
    assert bodies(broker) == [b"a1"]
    other = PopBroker(broker.log.copy(), Turns(start_ms=broker.turns.wall_ms())).become_master()
    moved = other.receive()
    assert moved.bodies == ["a1"]
    again = other.receive(attempt_id="one", wait_ms=5000)
    assert again.waits
    other.ack(*moved.messages)
    assert again.bodies == ["a2"]


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


@pytest.mark.parametrize("scope", SCOPES)
def test_what_stayed_waits_for_copies_that_are_not_in_their_queue_yet(scope: str) -> None:
    """They are in the log, and the replicas do not have them."""
    broker = ordered(scope)
    send(broker, "a1")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    going = broker.log.end_offset
    send(broker, "a2")
    broker.log.dispatches = False
    let_go(broker, going)
    assert bodies(broker) == []
    waiting = broker.receive(wait_ms=5000)
    assert waiting.waits
    broker.log.dispatch()
    broker.turns.run()
    assert waiting.bodies == ["a1"]
    broker.log.dispatches = True
    behind = broker.receive(wait_ms=5000)
    assert behind.waits
    broker.ack(*waiting.messages)
    assert behind.bodies == ["a2"]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_new_master_waits_for_copies_of_the_one_before(scope: str) -> None:
    broker = ordered(scope)
    send(broker, "a1")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    going = broker.log.end_offset
    send(broker, "a2")
    before = broker.log.end_offset
    let_go(broker, going)
    assert bodies(broker) == [b"a1"]
    log = broker.log.copy(dispatched=before)
    log.dispatches = False
    other = PopBroker(log, Turns(start_ms=broker.turns.wall_ms())).become_master()
    waiting = other.receive(wait_ms=5000)
    assert waiting.waits
    log.dispatch()
    other.turns.run()
    assert waiting.bodies == ["a1"]


def test_a_new_master_goes_on_when_what_it_took_over_holds_no_copies() -> None:
    """Nothing arrives for whoever waits; he is told all the same."""
    broker = ordered("MESSAGE_GROUP")
    send(broker, "a1")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    let_go(broker)
    broker.ack(*broker.receive().messages)
    send(broker, "a2")
    before = broker.log.end_offset
    broker.topic("another")
    log = broker.log.copy(dispatched=before)
    log.dispatches = False
    other = PopBroker(log, Turns(start_ms=broker.turns.wall_ms())).become_master()
    waiting = other.receive(wait_ms=5000)
    assert waiting.waits
    log.dispatch()
    other.turns.run()
    assert waiting.bodies == ["a2"]


def test_copies_are_given_to_a_group_that_holds_all_it_may() -> None:
    """What it holds waits for them: nothing would ever come again otherwise."""
    broker = master(max_in_flight_per_group=2)
    broker.group("g", fifo=True, attributes={"order.scope": "MESSAGE_GROUP"})
    send(broker, "a1")
    broker.receive(1, invisible_time_ms=1000)
    going = broker.log.end_offset
    send(broker, "a2", "a3", "a4")
    assert nothing(broker.receive())
    broker.turns.run(1000)
    let_go(broker, going)
    assert bodies(broker) == [b"a1"]
    assert broker.pop_service.ledger.in_flight("g") == 3
    moved = broker.receive()
    assert moved.bodies == ["a1"]
    broker.ack(*moved.messages)
    assert broker.receive().bodies == ["a2", "a3", "a4"]
