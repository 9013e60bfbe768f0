"""An ack that is asked again, because its answer was lost, is answered as it was; by whoever is the master then."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from brokerd.pop import batches
from brokerd.pop import ledger as ledgers
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus
from brokerd.store.put_status import PutStatus
from tests.support.pop_broker import PopBroker, master

OK, INVALID, FAILED = AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.FAILED


def switched(broker: PopBroker) -> PopBroker:
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    other.turns.run()
    return other


def with_snapshot(broker: PopBroker) -> PopBroker:
    """A new master that knows what a snapshot says and nothing before."""
    broker.pop_service.rolled()
    broker.turns.run()
    broker.log.expire(POP_TOPIC, 0, broker.log.kinds(POP_TOPIC).index("snapshot"))
    return switched(broker)


@pytest.mark.parametrize("after", [lambda broker: broker, switched, with_snapshot])
def test_of_a_batch_that_is_open(after: Any) -> None:
    broker = master()
    broker.send(*"abc")
    one, two, three = broker.receive().messages
    assert broker.ack(one, two) == [OK, OK]
    other = after(broker)
    before = other.log.end_offset
    assert other.ack(one, two) == [OK, OK]
    assert other.log.end_offset == before, "nothing is recorded"
    assert other.progress.in_flight("g", "t", 0) == 1
    assert other.ack(one, three, two) == [OK, OK, OK]


@pytest.mark.parametrize("after", [lambda broker: broker, switched])
def test_of_a_batch_that_is_done(after: Any) -> None:
    broker = master()
    broker.send("a", "b")
    messages = broker.receive().messages
    assert broker.ack(*messages) == [OK, OK]
    other = after(broker)
    assert other.ack(*messages) == [OK, OK]
    assert other.change(messages[0], 5).status == INVALID


def test_in_one_turn() -> None:
    broker = master()
    broker.send("a")
    (message,) = broker.receive().messages
    assert broker.ack(message, message) == [OK, OK]
    assert broker.log.kinds(POP_TOPIC) == ["taken", "acked"]


def test_only_what_a_client_finished_was_finished() -> None:
    """Not what came back, and not what has a newer handle; what it did finish of that batch was, also when its time is over."""
    broker = master()
    broker.send(*"abc")
    one, two, three = broker.receive(invisible_time_ms=1000).messages
    assert broker.ack(one) == [OK]
    newer = broker.change(two, 60_000).receipt_handle
    broker.turns.run(1000)
    assert broker.receive().bodies == ["c"]
    for other in (broker, switched(broker)):
        assert other.ack(one, two, three) == [OK, INVALID, INVALID]
    assert broker.ack(newer) == [OK]


def test_what_was_forwarded_is_forwarded_once() -> None:
    broker = master()
    broker.send("a", "b")
    one, _ = broker.receive().messages
    assert broker.forward(one) == OK
    assert switched(broker).forward(one) == OK
    assert broker.forward(one) == OK
    assert len(broker.stored("%DLQ%g")) == 1


def test_the_answer_waits_for_the_record_that_it_repeats() -> None:
    """Whoever asks again before the replicas have the record is told nothing that a switch could make untrue."""
    broker = master()
    broker.send("a")
    (message,) = broker.receive().messages
    broker.log.acknowledges = False
    answers: list[Any] = []
    for _ in range(2):
        broker.pop_service.ack("g", "t", [message.receipt_handle], answers.append)
        broker.turns.run()
    assert answers == []
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert answers == [[FAILED], [FAILED]]
    broker.log.acknowledges = True
    assert broker.ack(message) == [OK]


def test_a_reset_forgets() -> None:
    broker = master()
    broker.send("a", "b", "c")
    one, two = broker.receive(2).messages
    (three,) = broker.receive().messages
    assert broker.ack(one, three) == [OK, OK]
    broker.pop_service.reset_offset("g", "t", 0, 0)
    assert broker.ack(one, two, three) == [INVALID] * 3
    assert switched(broker).ack(one, two, three) == [INVALID] * 3


def test_a_deleted_group_is_forgotten() -> None:
    broker = master()
    broker.send("a")
    (message,) = broker.receive().messages
    assert broker.ack(message) == [OK]
    broker.metadata.delete_group("g", lambda _: None)
    assert broker.ack(message) == [INVALID]


def test_the_memory_is_bounded_and_the_oldest_goes_first() -> None:
    with patch.object(ledgers, "REMEMBERED", 10):
        broker = master()
        broker.send(*map(str, range(12)))
        messages = [broker.receive(1).messages[0] for _ in range(12)]
        for message in messages:
            assert broker.ack(message) == [OK]
        for other in (broker, switched(broker)):
            assert [other.ack(each)[0] for each in messages] == [INVALID] * 2 + [OK] * 10
            assert len(other.pop_service.ledger._closed) == 10


def test_what_is_done_is_remembered_where_the_oldest_is_forgotten_beside_it() -> None:
    """Leases, which are rows of one block: it gets smaller with the oldest ones, and a row that is just done is no waste."""
    with patch.object(ledgers, "REMEMBERED", 2), patch.object(batches, "_TIGHT", 2):
        broker = master()
        broker.alive.add("c")
        broker.send(*map(str, range(16)))
        messages = [broker.receive(1, client_id="c", auto_renew=True).messages[0] for _ in range(16)]
        for message in messages[1:]:
            assert broker.ack(message) == [OK]
            assert broker.ack(message) == [OK]
        broker.turns.run(60_000)
        assert broker.ack(messages[0]) == [OK], "it is leased still"
        assert broker.pop_service.ledger.in_flight("g") == 0
