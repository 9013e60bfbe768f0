"""What is not finished comes back: in time, at once, or to the dead-letter topic."""

from __future__ import annotations

import pytest

from brokerd.pop.batch import Batch
from brokerd.pop.handles import decode_handle
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PopStatus
from remoting.errors import InvalidParameter
from tests.support.memory_log import draft
from tests.support.pop_broker import master

OK, INVALID, FAILED = AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.FAILED
RETRY = "%RETRY%g+t"


# ---- coming back


def test_what_is_not_finished_comes_back_in_time() -> None:
    broker = master()
    broker.send("a", "b", "c", keys="k")
    one, two, three = broker.receive(invisible_time_ms=5000).messages
    assert broker.ack(two) == [OK]
    broker.turns.run(4999)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.ack(one) == [OK]
    broker.turns.run(1)
    again = broker.receive(invisible_time_ms=5000)
    assert again.bodies == ["c"]
    message = again.messages[0]
    assert message.delivery_attempt == 2
    assert (message.retry_flag, message.queue_offset) == (0, 2), "from where it is"
    assert message.topic == "t"
    assert broker.ack(three) == [INVALID], "its handle expired"
    assert broker.ack(message) == [OK]
    broker.turns.run(60_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.pop_service.ledger.committed_offset("g", "t", 0) == 3


def test_what_comes_again_is_not_stored_again() -> None:
    broker = master()
    broker.send("a", tag="x", KEYS="k1 k2", UNIQ_KEY="U")
    first = broker.receive(invisible_time_ms=1000).messages[0]
    broker.turns.run(1000)
    for attempt in range(2, 12):
        (again,) = broker.receive(invisible_time_ms=1000, expression="x").messages
        assert (again.record, again.delivery_attempt) == (first.record, attempt)
        broker.turns.run(1000)
    assert len(broker.stored("t")) == 1
    assert broker.metadata.topic(RETRY) is None
    assert broker.log.kinds(POP_TOPIC) == ["taken"] * 11


def test_a_copy_keeps_everything_but_its_count() -> None:
    broker = master()
    broker.send("a", tag="x", KEYS="k1 k2", UNIQ_KEY="U", POP_CK="stale", INNER_MULTI_DISPATCH="l")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.log.going_offset = broker.log.end_offset
    broker.turns.run(10_000)
    original, copy = broker.stored("t")[0], broker.stored(RETRY)[0]
    assert copy._replace(size=0, queue_offset=0, physical_offset=0, store_timestamp_ms=0) == original._replace(
        size=0,
        queue_offset=0,
        physical_offset=0,
        store_timestamp_ms=0,
        topic=RETRY,
        reconsume_times=1,
        properties=copy.properties,
    )
    properties = copy.property_map()
    assert properties.pop("1ST_POP_TIME")
    assert properties == {"TAGS": "x", "KEYS": "k1 k2", "UNIQ_KEY": "U"}
    (moved,) = broker.receive(expression="x").messages
    assert (moved.retry_flag, moved.delivery_attempt) == (2, 2)


def test_any_count_that_a_producer_wrote_comes_back_and_ends() -> None:
    broker = master()
    broker.log.append_messages([draft("t", b"a", 0)._replace(reconsume_times=2**31 - 1)])
    for _ in range(40):
        broker.receive(invisible_time_ms=1000)
        broker.turns.run(1000)
    returned = broker.stored(RETRY) + broker.stored("%DLQ%g")
    assert returned
    assert {message.reconsume_times for message in returned} == {2**31 - 1}


def test_returned_messages_and_new_ones_both_get_their_share() -> None:
    broker = master()
    broker.send(*map(str, range(64)))
    broker.receive(32, invisible_time_ms=1000)
    broker.receive(32, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.send(*(f"new {number}" for number in range(200)))
    attempts = [broker.receive(1, invisible_time_ms=100_000).messages[0].delivery_attempt for _ in range(200)]
    assert 20 <= attempts.count(2) <= 60


def test_a_full_batch_takes_new_and_returned_messages_together() -> None:
    broker = master()
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.send("b")
    receive = broker.receive()
    assert receive.bodies == ["a", "b"]
    handles = [decode_handle(message.receipt_handle) for message in receive.messages]
    assert {(each.retry_flag, each.start_offset) for each in handles if each} == {(0, 0)}, "one batch of one queue"
    assert [message.delivery_attempt for message in receive.messages] == [2, 1]
    assert broker.ack(*receive.messages) == [OK, OK]


def test_the_attempts_are_limited_and_the_dead_letter_names_its_origin() -> None:
    broker = master()
    broker.group("g", retry_max_times=3)
    broker.send("poison", UNIQ_KEY="UNIQUE")
    attempts = []
    for _ in range(6):
        receive = broker.receive(invisible_time_ms=1000)
        if receive.outcome.status == PopStatus.FOUND:
            attempts.append(receive.messages[0].delivery_attempt)
        broker.turns.run(1000)
    assert attempts == [1, 2, 3, 4]
    (dead,) = broker.stored("%DLQ%g")
    assert dead.body == b"poison"
    assert dead.reconsume_times == 4
    assert dead.property_map()["DLQ_ORIGIN_TOPIC"] == "t"
    assert dead.property_map()["DLQ_ORIGIN_MESSAGE_ID"] == "UNIQUE"
    assert not any(queue.batches for queue in broker.pop_service.ledger.queues())
    assert broker.pop_service.counters.dead_lettered == 1


def test_a_dead_letter_that_fails_again_stays_where_it_is() -> None:
    broker = master()
    broker.group("g", retry_max_times=1)
    broker.send("poison")
    for _ in range(2):
        broker.receive(invisible_time_ms=1000)
        broker.turns.run(1000)
    attempts = []
    for _ in range(5):
        receive = broker.receive(topic="%DLQ%g", invisible_time_ms=1000)
        if receive.outcome.status == PopStatus.FOUND:
            attempts.append(receive.messages[0].delivery_attempt)
        broker.turns.run(1000)
    assert attempts == [1, 2]
    assert len(broker.stored("%DLQ%g")) == 1
    again = broker.receive(group="other", topic="%DLQ%g").messages[0]
    assert broker.forward(again, group="other", topic="%DLQ%g") == OK
    assert len(broker.stored("%DLQ%g")) == 1
    assert broker.stored("%DLQ%other") == []


def test_a_client_may_give_a_message_up() -> None:
    broker = master()
    broker.send("a", "b")
    one, two = broker.receive(invisible_time_ms=1000).messages
    assert broker.forward(one) == OK
    assert broker.forward(one) == OK, "it is asked again"
    assert broker.ack(two) == [OK]
    (dead,) = broker.stored("%DLQ%g")
    assert dead.body == b"a"
    assert dead.reconsume_times == 1
    assert dead.property_map()["DLQ_ORIGIN_MESSAGE_ID"]
    broker.turns.run(10_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING


def test_what_retention_or_deletion_took_is_counted_and_dropped() -> None:
    broker = master()
    broker.topic("u")
    broker.send("a", "b", "c")
    broker.send("u", topic="u")
    broker.receive(invisible_time_ms=1000)
    broker.log.expire("t", 0, 2)
    broker.turns.run(1000)
    assert broker.pop_service.counters.lost == 2
    assert broker.receive().bodies == ["c"]
    broker.receive(topic="u", invisible_time_ms=1000)
    broker.metadata.delete_topic("u", lambda _: None)
    broker.turns.run(2000)
    assert broker.stored("%RETRY%g+u") == []
    assert broker.pop_service.ledger.queue("g", "u", 0) is None


def test_what_leaves_waits_while_the_log_refuses() -> None:
    broker = master()
    broker.group("g", retry_max_times=0)
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run(5500)
    assert broker.pop_service.counters.revive_failures == 5
    assert broker.receive().outcome.status == PopStatus.NOTHING
    broker.log.refusal = None
    broker.turns.run(1000)
    assert [record.body for record in broker.stored("%DLQ%g")] == [b"a"]
    assert broker.pop_service.ledger.in_flight("g") == 0


@pytest.mark.parametrize(("times", "is_read"), [(16, False), (0, True)])
def test_what_is_due_is_read_only_when_it_may_leave(times: int, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = master()
    broker.group("g", retry_max_times=times)
    broker.send("a", "b")
    broker.receive(invisible_time_ms=1000)
    reads: list[int] = []
    read_messages = broker.log.read_messages
    monkeypatch.setattr(
        broker.log,
        "read_messages",
        lambda *asked, **options: (reads.append(asked[2]), read_messages(*asked, **options))[1],
    )
    broker.turns.run(1000)
    assert bool(reads) is is_read
    assert len(broker.stored("%DLQ%g")) == (2 if is_read else 0)


def test_many_due_at_once_come_back_in_slices() -> None:
    broker = master()
    for _ in range(40):
        broker.send(*map(str, range(32)))
        broker.receive(32, invisible_time_ms=1000)
    broker.turns.run(1000)
    assert broker.pop_service.counters.revived == 40 * 32
    assert broker.pop_service.ledger.returned_count("g", "t") == 40 * 32
    for _ in range(40):
        assert broker.ack(*broker.receive(32).messages) == [OK] * 32
    assert not any(queue.batches for queue in broker.pop_service.ledger.queues())


def test_singles_that_are_due_at_once_come_back_in_slices_but_for_what_must_not() -> None:
    broker = master(revive_messages=7)
    broker.group("g", retry_max_times=1)
    broker.topic("t", 2)
    broker.send("poison")
    broker.receive(1, invisible_time_ms=500)
    broker.turns.run(500)
    broker.receive(1, invisible_time_ms=1000)  # for the last time
    for number in range(59):
        broker.send(str(number), queue_id=number % 2)
    singles = [broker.receive(1, invisible_time_ms=1000).messages[0] for _ in range(59)]
    assert broker.ack(*singles[:4], *singles[30:34]) == [OK] * 8
    assert broker.change(singles[4], 5000).status == OK
    broker.turns.run(999)
    assert broker.pop_service.ledger.returned_count("g", "t") == 0
    broker.turns.run(1)
    counters, ledger = broker.pop_service.counters, broker.pop_service.ledger
    assert counters.revived == 1 + 50, "the first one came back before"
    assert ledger.returned_count("g", "t") == 50
    assert ledger.in_flight("g") == 51, "and one was postponed"
    assert [record.body for record in broker.stored("%DLQ%g")] == [b"poison"]
    given = [message for _ in range(4) for message in broker.receive(16).messages]
    assert {message.record for message in given} == {message.record for message in singles[5:30] + singles[34:]}
    assert {message.delivery_attempt for message in given} == {2}
    assert broker.ack(*given) == [OK] * 50
    assert ledger.in_flight("g") == 1
    assert ledger.returned_count("g", "t") == 0


def test_singles_of_which_some_are_gone_come_back_without_these() -> None:
    broker = master()
    broker.send(*map(str, range(20)))
    for _ in range(20):
        broker.receive(1, invisible_time_ms=1000)
    broker.log.expire("t", 0, 6)
    broker.turns.run(1000)
    assert broker.pop_service.counters.lost == 6
    assert broker.receive().bodies == [str(number) for number in range(6, 20)]


def test_only_part_of_a_returned_batch_may_be_taken() -> None:
    broker = master()
    broker.send(*"abcde")
    broker.receive(5, invisible_time_ms=1000)
    broker.turns.run(1000)
    pieces = [broker.receive(2, invisible_time_ms=5000) for _ in range(3)]
    assert [piece.bodies for piece in pieces] == [["a", "b"], ["c", "d"], ["e"]]
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.pop_service.ledger.committed_offset("g", "t", 0) == 0
    for piece in reversed(pieces):
        broker.ack(*piece.messages)
    assert broker.pop_service.ledger.committed_offset("g", "t", 0) == 5


def test_a_filter_that_does_not_admit_what_came_back_lets_it_go() -> None:
    broker = master()
    broker.send("a", tag="x")
    broker.send("b", tag="y")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    assert broker.receive(expression="y").bodies == ["b"]
    broker.turns.run(20_000)
    assert broker.receive().bodies == ["b"]


def test_what_came_back_of_any_queue_comes_to_whoever_asks() -> None:
    """Also of one that is not read any more."""
    broker = master()
    broker.topic("t", 4)
    broker.send("a", queue_id=3)
    broker.receive(invisible_time_ms=1000)
    broker.metadata.commit_offset("g", "t", 3, 1, None)
    broker.turns.run(100)
    broker.topic("t", 1)
    waiting = broker.receive(queue_id=0, wait_ms=5000)
    broker.turns.run(900)
    assert waiting.bodies == ["a"]
    assert waiting.messages[0].queue_id == 3
    assert broker.ack(*waiting.messages) == [OK]


def test_what_an_ordered_group_took_comes_back_when_it_is_none_any_more() -> None:
    broker = master()
    broker.group("g", fifo=True)
    broker.send("a", "b", "c")
    broker.receive(1, fifo=True, invisible_time_ms=1000)
    broker.group("g")
    assert broker.receive().bodies == ["b", "c"]
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_copies_that_wait_from_before_are_read_also_by_an_ordered_group() -> None:
    broker = master()
    broker.metadata.ensure_topic(RETRY)
    broker.metadata.ensure_topic("%RETRY%g_t")
    broker.send("old", topic=RETRY)
    broker.send("older", topic="%RETRY%g_t")
    broker.send("a")
    receive = broker.receive()
    assert sorted(
        (message.retry_flag, body) for message, body in zip(receive.messages, receive.bodies, strict=True)
    ) == [
        (0, "a"),
        (1, "older"),
        (2, "old"),
    ]
    broker.group("h", fifo=True)
    broker.metadata.ensure_topic("%RETRY%h+t")
    broker.send("old", topic="%RETRY%h+t")
    ordered = broker.receive(group="h")
    assert ordered.bodies == ["old"], "what waits there was taken from the topic before"
    assert broker.ack(*ordered.messages, group="h") == [OK]
    assert broker.receive(group="h").bodies == ["a"]


def test_a_copy_that_comes_again_stays_in_the_retry_topic() -> None:
    broker = master()
    broker.metadata.ensure_topic(RETRY)
    broker.log.append_messages([draft(RETRY, b"a", 0)._replace(reconsume_times=3)])
    for attempt in (4, 5, 6):
        (message,) = broker.receive(invisible_time_ms=1000).messages
        assert (message.retry_flag, message.queue_offset, message.delivery_attempt) == (2, 0, attempt)
        broker.turns.run(1000)
    assert len(broker.stored(RETRY)) == 1


def test_what_the_log_is_about_to_lose_moves_and_keeps_its_count() -> None:
    broker = master()
    broker.send(*"abc")
    broker.receive(2, invisible_time_ms=1000)
    held = broker.receive(1, invisible_time_ms=60_000).messages[0]
    broker.turns.run(1000)
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.log.going_offset = broker.log.end_offset
    broker.turns.run(20_000)
    assert sorted((record.body, record.reconsume_times) for record in broker.stored(RETRY)) == [(b"a", 2), (b"b", 1)]
    broker.log.expire("t", 0, 3)
    again = broker.receive()
    assert sorted(
        (message.delivery_attempt, body) for message, body in zip(again.messages, again.bodies, strict=True)
    ) == [
        (2, "b"),
        (3, "a"),
    ]
    assert broker.ack(held, *again.messages) == [OK] * 3
    assert broker.pop_service.counters.lost == 0


# ---- postponing


def test_a_new_invisible_time_replaces_the_handle() -> None:
    broker = master()
    broker.send("a", "b")
    one, two = broker.receive(invisible_time_ms=1000).messages
    changed = broker.change(one, 5000)
    assert changed.status == OK
    assert changed.invisible_time_ms == 5000
    assert broker.ack(one) == [INVALID]
    assert broker.change(one, 1).status == INVALID
    broker.turns.run(4999)
    assert broker.receive().bodies == ["b"]
    assert broker.ack(changed.receipt_handle) == [OK]
    assert broker.ack(two) == [INVALID]


def test_an_invisible_time_of_zero_returns_the_message_at_once() -> None:
    broker = master()
    broker.send("a")
    waiting = broker.receive(wait_ms=5000, group="other")
    assert broker.change(waiting.messages[0], 0, group="other").status == OK
    again = broker.receive(group="other")
    assert again.bodies == ["a"]
    assert again.messages[0].delivery_attempt == 2


def test_changing_to_the_same_due_time_keeps_the_message() -> None:
    broker = master()
    broker.send("a")
    handle = broker.receive(invisible_time_ms=1000).messages[0].receipt_handle
    for _ in range(3):
        handle = broker.change(handle, 1000).receipt_handle
    broker.turns.run(1100)
    (again,) = broker.receive().messages
    assert again.delivery_attempt == 2


# ---- cost


@pytest.mark.parametrize("fifo", [False, True])
def test_a_pop_looks_at_what_it_takes_however_much_waits(fifo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = master()
    broker.send(*map(str, range(2000)))
    for _ in range(1000):
        broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.group("g", fifo=fifo)
    looked_at: list[int] = []
    offset_at = Batch.offset_at

    def counted(self: Batch, place: int) -> int:
        looked_at.append(place)
        return offset_at(self, place)

    monkeypatch.setattr(Batch, "offset_at", counted)
    for number in range(100):
        taken = broker.receive(4, invisible_time_ms=100_000)
        if fifo:
            assert taken.bodies == [str(4 * number + n) for n in range(4)]
        assert broker.ack(*taken.messages) == [OK] * 4
    assert len(looked_at) < 100 * 60
