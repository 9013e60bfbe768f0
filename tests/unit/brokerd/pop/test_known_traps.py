"""Where other brokers' POP is known to go wrong, as a client without random tags meets it."""

from __future__ import annotations

from brokerd.pop.handles import decode_handle
from brokerd.pop.requests import AckStatus, PoppedMessage, PopRequest, PopStatus
from remoting import codes
from tests.support.pop_broker import master

OK, INVALID = AckStatus.OK, AckStatus.INVALID_HANDLE


def fields_of(message: PoppedMessage) -> tuple[int, int]:
    handle = decode_handle(message.receipt_handle)
    assert handle is not None
    return handle.start_offset, handle.pop_time_ms


def test_what_is_taken_twice_in_a_millisecond_has_two_pop_times() -> None:
    """Two batches that begin alike would be one to those who compare group, queue, start and time."""
    broker = master()
    broker.send("a")
    (first,) = broker.receive(has_tag=False).messages
    for _ in range(3):
        changed = broker.change(first, 0)
        assert changed.status == OK
        (again,) = broker.receive(has_tag=False).messages
        assert fields_of(again)[0] == fields_of(first)[0]
        assert fields_of(again)[1] > fields_of(first)[1]
        assert broker.ack(first) == [INVALID]
        first = again
    assert broker.ack(first) == [OK]
    assert broker.turns.wall_ms() < fields_of(first)[1], "the clock stood"


def test_queue_1_from_23_on_is_not_queue_12_from_3_on() -> None:
    """Their numbers written one behind the other are the same text."""
    broker = master()
    broker.topic("t", 13)
    broker.send(*map(str, range(24)), queue_id=1)
    broker.send(*map(str, range(4)), queue_id=12)
    assert broker.ack(*broker.receive(23, queue_id=1, has_tag=False).messages) == [OK] * 23
    assert broker.ack(*broker.receive(3, queue_id=12, has_tag=False).messages) == [OK] * 3
    one, other = sorted(broker.receive(has_tag=False).messages, key=lambda each: each.queue_id)
    assert (one.queue_id, *fields_of(one)) == (1, 23, fields_of(other)[1])
    assert (other.queue_id, fields_of(other)[0]) == (12, 3)
    assert broker.ack(one) == [OK]
    broker.turns.run(10_000)
    (left,) = broker.receive().messages
    assert (left.queue_id, left.queue_offset) == (12, 3)


def test_who_waits_for_a_group_that_is_deleted_is_told() -> None:
    broker = master()
    broker.group("h")
    waiting, of_others = broker.receive(group="h", wait_ms=5000), broker.receive(wait_ms=5000)
    errors: list[object] = []
    deadline_ms = broker.turns.monotonic_ms() + 5000
    broker.pop_service.looking.notify(PopRequest("h", "t", -1, 1, 0, deadline_ms), errors.append)
    broker.metadata.delete_group("h", lambda _: None)
    assert waiting.outcome.error is not None
    assert waiting.outcome.error.code == codes.SUBSCRIPTION_GROUP_NOT_EXIST
    assert len(errors) == 1
    assert of_others.waits


def test_the_broker_renews_nothing_that_is_finished() -> None:
    broker = master(gone_client_ms=1000)
    broker.group("g", retry_max_times=1)
    broker.alive.add("c1")
    broker.send("acked", "given up", "kept")
    acked, given_up, kept = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages
    assert broker.ack(acked) == [OK]
    assert broker.forward(given_up) == OK
    broker.turns.run(300_000)
    assert broker.receive().outcome.status is PopStatus.NOTHING
    assert [record.body for record in broker.stored("%DLQ%g")] == [b"given up"]
    assert broker.pop_service.ledger.in_flight("g") == 1
    assert broker.ack(kept) == [OK]
    assert broker.pop_service.ledger.in_flight("g") == 0
    renewed = broker.pop_service.counters.renewed
    broker.turns.run(300_000)
    assert broker.pop_service.counters.renewed == renewed


def test_an_attempt_is_known_by_queue() -> None:
    """One that took of a queue before gets that again, and nothing that another attempt has of another queue."""
    broker = master()
    broker.group("g", fifo=True)
    broker.topic("t", 2)
    broker.send("0a", "0b", queue_id=0)
    first = broker.receive(1, fifo=True, attempt_id="one")
    broker.send("1a", queue_id=1)
    second = broker.receive(1, fifo=True, attempt_id="two")
    assert (first.bodies, second.bodies) == (["0a"], ["1a"])
    assert broker.receive(1, fifo=True, attempt_id="one").bodies == ["0a"]
    assert broker.receive(1, fifo=True, attempt_id="two").bodies == ["1a"]
    assert broker.receive(1, fifo=True, attempt_id="three").outcome.status is PopStatus.NOTHING
