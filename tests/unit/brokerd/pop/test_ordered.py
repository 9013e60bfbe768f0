"""Ordered groups: one batch of a queue at a time, in order, again after its time, skipping what is finished."""

from __future__ import annotations

import pytest

from brokerd.pop.requests import AckStatus, PopStatus
from tests.support.pop_broker import PopBroker, Receive, master

OK, INVALID = AckStatus.OK, AckStatus.INVALID_HANDLE


@pytest.fixture
def broker() -> PopBroker:
    made = master()
    made.group("g", fifo=True)
    return made


def receive(broker: PopBroker, count: int = 32, **fields: object) -> Receive:
    return broker.receive(count, fifo=True, **fields)


def nothing(broker: PopBroker, **fields: object) -> bool:
    return receive(broker, **fields).outcome.status == PopStatus.NOTHING


def test_nothing_more_of_a_queue_until_its_batch_is_finished(broker: PopBroker) -> None:
    broker.topic("t", 2)
    broker.send("a", "b", "c")
    broker.send("x", queue_id=1)
    first = receive(broker, 2, queue_id=0)
    assert first.bodies == ["a", "b"]
    assert first.outcome.revive_queue_id == 999
    assert nothing(broker, queue_id=0)
    assert receive(broker).bodies == ["x"], "other queues go on"
    assert broker.ack(first.messages[0]) == [OK]
    assert nothing(broker, queue_id=0)
    assert broker.ack(first.messages[1]) == [OK]
    assert receive(broker, queue_id=0).bodies == ["c"]


def test_after_its_time_a_batch_starts_at_its_first_unfinished_message(broker: PopBroker) -> None:
    broker.send("a", "b", "c", "d")
    first = receive(broker, 3, invisible_time_ms=1000)
    assert broker.ack(first.messages[1]) == [OK]
    broker.turns.run(999)
    assert nothing(broker)
    broker.turns.run(1)
    again = receive(broker, invisible_time_ms=1000)
    assert again.bodies == ["a", "c"], "what is finished in the middle does not come again"
    assert [message.delivery_attempt for message in again.messages] == [2, 2]
    assert broker.ack(*first.messages) == [INVALID, OK, INVALID], "old handles do not advance the queue"
    assert broker.ack(*again.messages) == [OK, OK]
    assert receive(broker).bodies == ["d"]
    assert broker.stored("%RETRY%g+t") == []


def test_a_returned_batch_may_be_taken_in_smaller_pieces(broker: PopBroker) -> None:
    broker.send(*"abcdef")
    receive(broker, 4, invisible_time_ms=1000)
    broker.turns.run(1000)
    seen = []
    while (piece := receive(broker, 3)).outcome.status == PopStatus.FOUND:
        seen.append("".join(piece.bodies))
        assert broker.ack(*piece.messages) == [OK] * len(piece.messages)
    assert seen == ["abc", "d", "ef"]


def test_a_repeated_attempt_gets_its_batch_again_uncounted(broker: PopBroker) -> None:
    broker.topic("t", 4)
    for queue_id in range(4):
        broker.send(f"{queue_id}a", f"{queue_id}b", queue_id=queue_id)
    lost = receive(broker, 2, attempt_id="one")
    broker.turns.run(100)
    again = receive(broker, 2, attempt_id="one")
    assert again.bodies == lost.bodies
    assert [message.delivery_attempt for message in again.messages] == [1, 1]
    assert broker.ack(*lost.messages) == [INVALID, INVALID]
    other = receive(broker, 2, attempt_id="two")
    assert not set(other.bodies) & set(lost.bodies)
    assert broker.ack(*again.messages) == [OK, OK]


def test_finishing_a_batch_wakes_who_waits_for_the_queue(broker: PopBroker) -> None:
    broker.send("a", "b")
    first = receive(broker, 1)
    waiting = receive(broker, 1, wait_ms=5000)
    assert waiting.waits
    broker.ack(first.messages[0])
    assert waiting.bodies == ["b"]


def test_the_end_of_its_time_wakes_who_waits_for_the_queue(broker: PopBroker) -> None:
    broker.send("a")
    receive(broker, 1, invisible_time_ms=3000)
    waiting = receive(broker, 1, wait_ms=5000)
    broker.turns.run(2999)
    assert waiting.waits
    broker.turns.run(1)
    assert waiting.bodies == ["a"]


def test_an_arrival_behind_a_taken_batch_wakes_nobody(broker: PopBroker) -> None:
    broker.send("a")
    receive(broker)
    waiting = receive(broker, wait_ms=5000)
    broker.send("b")
    broker.turns.run(10)
    assert waiting.waits
    assert broker.pop_service.waiting_count == 1


def test_postponing_one_message_postpones_the_batch(broker: PopBroker) -> None:
    broker.send("a", "b", "c")
    first = receive(broker, 2, invisible_time_ms=1000)
    assert broker.change(first.messages[0], 5000).status == OK
    broker.turns.run(4999)
    assert nothing(broker)
    broker.turns.run(1)
    again = receive(broker)
    assert again.bodies == ["a", "b"]
    assert [message.delivery_attempt for message in again.messages] == [2, 2]


def test_a_message_that_was_delivered_too_often_lets_the_others_pass(broker: PopBroker) -> None:
    broker.group("g", fifo=True, retry_max_times=2)
    broker.send("poison", "b", UNIQ_KEY="U")
    attempts = []
    for _ in range(3):
        piece = receive(broker, 1, invisible_time_ms=1000)
        attempts.append((piece.bodies[0], piece.messages[0].delivery_attempt))
        broker.turns.run(1000)
    assert attempts == [("poison", 1), ("poison", 2), ("poison", 3)]
    assert receive(broker, 1).bodies == ["b"]
    (dead,) = broker.stored("%DLQ%g")
    assert dead.body == b"poison"
    assert dead.reconsume_times == 3


def test_giving_a_message_up_lets_the_others_pass(broker: PopBroker) -> None:
    broker.send("a", "b")
    waiting = None
    first = receive(broker, 1)
    waiting = receive(broker, 1, wait_ms=5000)
    assert broker.forward(first.messages[0]) == OK
    assert waiting.bodies == ["b"]
    assert len(broker.stored("%DLQ%g")) == 1


def test_what_retention_took_holds_up_nothing(broker: PopBroker) -> None:
    broker.send("a", "b", "c", "d")
    receive(broker, 3, invisible_time_ms=1000)
    broker.log.expire("t", 0, 2)
    broker.turns.run(1000)
    assert receive(broker, 1, wait_ms=100).bodies == ["c"] or receive(broker, 1).bodies == ["c"]
    assert broker.pop_service.counters.lost == 2


def test_a_new_master_keeps_the_order(broker: PopBroker) -> None:
    broker.send("a", "b", "c", "d")
    first = receive(broker, 3, invisible_time_ms=5000, attempt_id="one")
    broker.ack(first.messages[0])
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert nothing(other)
    again = receive(other, 3, attempt_id="one", invisible_time_ms=5000)
    assert again.bodies == ["b", "c"]
    other.turns.run(5000)
    third = receive(other, 3, invisible_time_ms=5000)
    assert third.bodies == ["b", "c"]
    assert [message.delivery_attempt for message in third.messages] == [2, 2]
    assert other.ack(*third.messages) == [OK, OK]
    assert receive(other).bodies == ["d"]


def test_a_later_postponed_message_does_not_hold_back_earlier_ones(broker: PopBroker) -> None:
    broker.send("a", "b", "c", "d")
    first = receive(broker, 3, invisible_time_ms=1000)
    assert broker.change(first.messages[2], 60_000).status == OK
    broker.turns.run(1000)
    again = receive(broker, invisible_time_ms=1000)
    assert again.bodies == ["a", "b"], "what expired comes again; what is behind it waits for its time"
    assert nothing(broker)
    assert broker.ack(*again.messages) == [OK, OK]
    assert nothing(broker), "the next one is postponed, and the order holds"
    broker.turns.run(59_000)
    assert receive(broker).bodies == ["c"]


def test_only_what_nothing_before_it_is_with_a_client_comes_again(broker: PopBroker) -> None:
    broker.send(*"abcde")
    first = receive(broker, 5, invisible_time_ms=1000)
    assert broker.change(first.messages[1], 5000).status == OK
    broker.turns.run(1000)
    again = receive(broker, invisible_time_ms=60_000)
    assert again.bodies == ["a"], "b is postponed; c, d and e expired and stay behind it"
    assert broker.ack(again.messages[0]) == [OK]
    broker.turns.run(4000)
    assert receive(broker).bodies == ["b", "c", "d", "e"]


def test_what_was_taken_of_queues_that_are_not_read_any_more_is_drained(broker: PopBroker) -> None:
    broker.topic("t", 4)
    broker.send("a", "b", "c", queue_id=3)
    first = receive(broker, 3, invisible_time_ms=1000)
    broker.ack(first.messages[0])
    broker.metadata.commit_offset("g", "t", 3, 3, None)
    broker.turns.run(100)
    broker.topic("t", 2)
    broker.turns.run(900)
    again = receive(broker, queue_id=0)
    assert again.bodies == ["b", "c"]
    assert [message.queue_id for message in again.messages] == [3, 3]
    assert broker.ack(*again.messages) == [OK, OK]
    assert broker.pop_service.ledger.in_flight("g") == 0


def test_a_group_becomes_ordered_while_its_messages_are_with_clients(broker: PopBroker) -> None:
    broker.group("h")
    broker.send(*"abcd")
    first = broker.receive(2, group="h", invisible_time_ms=1000)
    second = broker.receive(1, group="h", invisible_time_ms=5000)
    assert broker.ack(first.messages[0], group="h") == [OK]
    broker.group("h", fifo=True)
    assert nothing(broker, group="h"), "the earliest unfinished message decides"
    broker.turns.run(1000)
    again = receive(broker, group="h", invisible_time_ms=60_000)
    assert again.bodies == ["b"]
    assert again.messages[0].delivery_attempt == 2
    assert broker.ack(*again.messages, group="h") == [OK]
    assert nothing(broker, group="h")
    assert broker.ack(*second.messages, group="h") == [OK], "its handle is as good as before"
    assert receive(broker, group="h").bodies == ["d"]
