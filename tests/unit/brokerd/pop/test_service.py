"""The pop service: taking, finishing, refusals, waiting, filters, and where a group starts."""

from __future__ import annotations

import pytest

from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.handles import decode_handle
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import AckStatus, PopStatus
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.java_hash import java_hash
from tests.support.pop_broker import PopBroker, master

OK, INVALID, FAILED = AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.FAILED
RETRY = "%RETRY%g+t"


# ---- taking and finishing


def test_messages_are_taken_once_and_finished() -> None:
    broker = master()
    broker.send("a", "b", "c")
    first = broker.receive(2)
    assert first.bodies == ["a", "b"]
    assert [message.delivery_attempt for message in first.messages] == [1, 1]
    assert broker.receive().bodies == ["c"]
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.ack(*first.messages) == [OK, OK]
    assert broker.pop_service.ledger.committed_offset("g", "t", 0) == 2
    assert broker.progress.in_flight("g", "t", 0) == 1


def test_all_finished_and_quiet_means_no_lag() -> None:
    broker = master()
    broker.topic("t", 4)
    for number in range(100):
        broker.send(str(number), queue_id=number % 4)
    seen: list[str] = []
    while (receive := broker.receive(7)).outcome.status == PopStatus.FOUND:
        seen += receive.bodies
        broker.ack(*receive.messages)
    assert sorted(seen, key=int) == [str(number) for number in range(100)]
    for queue_id in range(4):
        assert broker.pop_service.ledger.committed_offset("g", "t", queue_id) == 25
        assert broker.progress.in_flight("g", "t", queue_id) == 0
    assert not any(queue.batches for queue in broker.pop_service.ledger.queues())


def test_handles_name_what_they_finish() -> None:
    broker = master()
    broker.send("a", "b")
    message = broker.receive().messages[1]
    handle = decode_handle(message.receipt_handle)
    assert handle is not None
    assert len(handle.proof) == 16
    assert (handle.start_offset, handle.queue_offset, handle.broker_name) == (0, 1, "broker-a")
    assert handle.revive_queue_id == 0
    assert message.topic == "t"


def test_finishing_twice_changes_nothing() -> None:
    broker = master()
    broker.send("a", "b")
    one, two = broker.receive().messages
    assert broker.ack(one, one) == [OK, OK]
    before = broker.log.end_offset
    assert broker.ack(one) == [OK]
    assert broker.log.end_offset == before
    assert broker.progress.in_flight("g", "t", 0) == 1
    assert broker.ack(two) == [OK]


@pytest.mark.parametrize("handle", ["", "x", "0 1 2 3 0 broker-a 0 0", "0 1 10000 0 0 broker-b 0 0 0"])
def test_garbage_handles_are_refused(handle: str) -> None:
    broker = master()
    broker.send("a")
    broker.receive()
    assert broker.ack(handle) == [INVALID]
    assert broker.change(handle, 0).status == INVALID
    assert broker.change(handle, 0).receipt_handle == handle
    assert broker.forward(handle) == INVALID


def test_handles_of_other_groups_topics_and_queues_are_refused() -> None:
    broker = master()
    broker.topic("u", 2)
    broker.group("h")
    broker.send("a")
    broker.send("a", topic="u")
    message = broker.receive().messages[0]
    broker.turns.run(1)
    other = broker.receive(group="h", topic="u", queue_id=0).messages[0]
    assert broker.ack(message, group="h") == [INVALID]
    assert broker.ack(message, topic="u") == [INVALID]
    assert broker.ack(other) == [INVALID]
    assert broker.ack(message) == [OK]
    assert broker.ack(other, group="h", topic="u") == [OK]


def test_the_finishing_calls_of_one_turn_share_a_record() -> None:
    broker = master()
    broker.send(*"abcdef")
    messages = broker.receive().messages
    answers: list[object] = []
    for message in messages[:4]:
        broker.pop_service.ack("g", "t", [message.receipt_handle], answers.append)
    broker.pop_service.change_invisible_time("g", "t", messages[4].receipt_handle, 500, answers.append)
    broker.pop_service.ack("g", "t", [messages[4].receipt_handle], answers.append)
    broker.pop_service.change_invisible_time("g", "t", messages[5].receipt_handle, 700, answers.append)
    broker.turns.run()
    assert broker.log.kinds(POP_TOPIC) == ["taken", "acked", "changed"]
    assert answers[:4] == [[OK]] * 4
    assert answers[5] == [INVALID]
    assert broker.progress.in_flight("g", "t", 0) == 2


def test_answers_wait_for_the_acknowledgement() -> None:
    broker = master()
    broker.send("a")
    broker.log.acknowledges = False
    receive = broker.receive()
    assert receive.waits
    assert broker.receive().outcome.status == PopStatus.NOTHING, "taken already"
    broker.log.acknowledge()
    answers: list[object] = []
    broker.pop_service.ack("g", "t", [receive.messages[0].receipt_handle], answers.append)
    broker.turns.run()
    assert answers == []
    broker.log.acknowledge()
    assert answers == [[OK]]


def test_an_unacknowledged_take_gives_the_messages_back() -> None:
    broker = master()
    broker.send("a")
    broker.log.acknowledges = False
    receive = broker.receive(invisible_time_ms=3_600_000)
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert receive.outcome.status == PopStatus.REFUSED
    assert receive.outcome.error is not None
    assert receive.outcome.error.retriable
    broker.log.acknowledges = True
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_a_refused_record_leaves_the_messages() -> None:
    broker = master()
    broker.receive()
    broker.send("a", "b")
    broker.log.refusal = InvalidParameter("the disk is full")
    assert broker.receive().outcome.status == PopStatus.REFUSED
    broker.log.refusal = None
    receive = broker.receive()
    assert receive.bodies == ["a", "b"]
    broker.log.refusal = InvalidParameter("the disk is full")
    assert broker.ack(*receive.messages) == [FAILED, FAILED]
    assert broker.change(receive.messages[0], 5).status == FAILED
    broker.log.refusal = None
    assert broker.ack(*receive.messages) == [OK, OK]


def test_an_unacknowledged_ack_fails() -> None:
    broker = master()
    broker.send("a")
    messages = broker.receive().messages
    broker.log.status = PutStatus.FLUSH_DISK_TIMEOUT
    assert broker.ack(*messages) == [FAILED]


# ---- refusals


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"topic": POP_TOPIC}, codes.TOPIC_NOT_EXIST),
        ({"topic": "closed"}, codes.NO_PERMISSION),
        ({"group": "off"}, codes.NO_PERMISSION),
        ({"group": "bad name"}, codes.INVALID_PARAMETER),
        ({"queue_id": 1}, codes.INVALID_PARAMETER),
        ({"queue_id": -2}, codes.INVALID_PARAMETER),
        ({"invisible_time_ms": -1}, codes.INVALID_PARAMETER),
        ({"invisible_time_ms": 1 << 50}, codes.INVALID_PARAMETER),
        ({"expression_type": "SQL92", "expression": "a ="}, codes.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_refusals_name_the_rule(fields: dict[str, object], code: int) -> None:
    broker = master()
    broker.topic("closed", perm=2)
    broker.group("off", consume_enable=False)
    outcome = broker.receive(**fields).outcome
    assert outcome.status == PopStatus.REFUSED
    assert outcome.error is not None
    assert outcome.error.code == code
    assert len(outcome.error.message) > 10


@pytest.mark.parametrize("count", [0, 33])
def test_counts_are_bounded(count: int) -> None:
    outcome = master().receive(count).outcome
    assert outcome.error is not None
    assert outcome.error.code == codes.INVALID_PARAMETER


def test_groups_are_made_on_first_use_unless_that_is_off() -> None:
    broker = master()
    broker.send("a")
    assert broker.receive(group="new").bodies == ["a"]
    assert broker.metadata.group("new") is not None
    strict = master(auto_create_groups=False)
    outcome = strict.receive(group="new").outcome
    assert outcome.error is not None
    assert outcome.error.code == codes.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_replica_refuses_everything() -> None:
    broker = master()
    broker.send("a")
    message = broker.receive().messages[0]
    broker.become_replica()
    outcome = broker.receive().outcome
    assert outcome.error is not None
    assert outcome.error.code == codes.SERVICE_NOT_AVAILABLE
    assert broker.ack(message) == [FAILED]
    assert broker.change(message, 5).status == FAILED
    assert broker.forward(message) == FAILED


# ---- waiting


def test_a_waiting_receive_is_woken_by_an_arrival() -> None:
    broker = master()
    receive = broker.receive(wait_ms=5000)
    assert receive.waits
    broker.send("a")
    broker.turns.run()
    assert receive.bodies == ["a"]
    assert broker.pop_service.waiting_count == 0


def test_a_waiting_receive_ends_at_its_deadline() -> None:
    broker = master()
    receive = broker.receive(wait_ms=5000)
    broker.turns.run(4990)
    assert receive.waits
    broker.turns.run(10)
    assert receive.outcome.status == PopStatus.NOTHING


def test_a_returned_message_wakes_those_who_wait_for_the_topic() -> None:
    broker = master()
    broker.send("a")
    broker.receive(invisible_time_ms=10_000)
    receives = [broker.receive(wait_ms=18_000), broker.receive(wait_ms=18_000, queue_id=0)]
    other = broker.receive(wait_ms=18_000, group="other")
    assert other.bodies == ["a"]
    broker.turns.run(10_000)
    assert sorted(receive.waits for receive in receives) == [False, True]


def test_each_waiting_receive_gets_a_message() -> None:
    broker = master()
    broker.topic("t", 4)
    receives = [broker.receive(1, wait_ms=5000) for _ in range(20)]
    for number in range(20):
        broker.send(str(number), queue_id=number % 4)
        if number % 3 == 0:
            broker.turns.run()
    broker.turns.run()
    assert sorted(int(receive.bodies[0]) for receive in receives) == list(range(20))


def test_a_cancelled_receive_takes_nothing() -> None:
    broker = master()
    receive = broker.receive(wait_ms=5000)
    assert receive.parked is not None
    receive.parked.cancel()
    broker.send("a")
    broker.turns.run(6000)
    assert receive.waits
    assert broker.receive().bodies == ["a"]


def test_too_many_receives_are_told() -> None:
    broker = master(max_waiting=3, max_waiting_per_client=2)
    broker.topic("u")
    broker.receive(wait_ms=5000, client_id="x")
    broker.receive(wait_ms=5000, client_id="x", topic="u")
    assert broker.receive(wait_ms=5000, client_id="x").outcome.status == PopStatus.POLLING_FULL
    assert broker.receive(wait_ms=5000, client_id="y").waits, "it keeps the others of its group out of nothing"
    assert broker.receive(wait_ms=5000, client_id="z").waits, "in the place of one of x"
    assert broker.receive(wait_ms=5000, client_id="w").outcome.status == PopStatus.POLLING_FULL


def test_a_client_that_waits_very_often_keeps_the_others_out_of_nothing() -> None:
    broker = master()
    greedy = [broker.receive(1, wait_ms=60_000, client_id="greedy") for _ in range(500)]
    honest = broker.receive(1, wait_ms=60_000, client_id="honest")
    broker.send("a", "b")
    broker.turns.run()
    assert honest.bodies == ["b"]
    assert sum(not each.waits for each in greedy) == 1
    again = broker.receive(1, wait_ms=60_000, client_id="honest")
    broker.send("c")
    late = broker.receive(1, wait_ms=60_000, client_id="greedy")
    assert late.waits, "it comes newly, and others wait"
    broker.send("d")
    broker.turns.run()
    assert not again.waits


def test_a_group_holds_so_many_messages_and_no_more() -> None:
    broker = master(max_in_flight_per_group=5)
    broker.topic("u")
    broker.group("h")
    broker.send(*map(str, range(8)))
    broker.send("u", topic="u")
    first = broker.receive(3)
    assert len(first.messages) == 3
    assert len(broker.receive(32, invisible_time_ms=1000).messages) == 2, "as many as there is room for"
    for topic in ("t", "u"):
        outcome = broker.receive(topic=topic).outcome
        assert outcome.error is not None
        assert (outcome.status, outcome.error.code) == (PopStatus.REFUSED, codes.SYSTEM_BUSY)
        assert "max_in_flight_per_group" in outcome.error.message
    assert len(broker.receive(group="h").messages) == 5
    broker.ack(first.messages[0])
    assert broker.receive().bodies == ["5"]
    broker.turns.run(1000)
    assert broker.pop_service.ledger.in_flight("g") == 5, "what came back is not finished"
    assert sorted(broker.receive().bodies) == ["3", "4"], "it is given, and nothing new"


def test_a_group_that_holds_all_it_may_waits_while_nothing_is_there() -> None:
    broker = master(max_in_flight_per_group=1)
    broker.send("a")
    message = broker.receive().messages[0]
    waiting = broker.receive(wait_ms=5000)
    assert waiting.waits
    broker.send("b")
    broker.turns.run()
    assert waiting.outcome.error is not None
    assert waiting.outcome.error.code == codes.SYSTEM_BUSY
    broker.ack(message)
    assert broker.receive().bodies == ["b"]


def test_an_ordered_group_that_holds_all_it_may_gets_again_what_it_holds() -> None:
    broker = master(max_in_flight_per_group=2)
    broker.topic("t", 2)
    broker.send("a", "b")
    broker.send("c", queue_id=1)
    assert broker.receive(queue_id=0, fifo=True, invisible_time_ms=1000).bodies == ["a", "b"]
    broker.turns.run(1000)
    assert broker.receive(fifo=True).bodies == ["a", "b"]
    assert broker.receive(fifo=True).outcome.status == PopStatus.REFUSED


def test_how_many_messages_a_group_holds_is_counted_over_a_switch() -> None:
    broker = master()
    broker.topic("u")
    broker.group("h")
    broker.send(*"abcd")
    broker.send("e", topic="u")
    messages = broker.receive().messages
    broker.receive(topic="u")
    broker.receive(group="h")
    broker.ack(messages[0])
    broker.change(messages[1], 60_000)
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    for each in (broker, other):
        assert [each.pop_service.ledger.in_flight(group) for group in ("g", "h", "none")] == [4, 4, 0]
        each.pop_service.reset_offset("g", "t", 0, 0)
        assert each.pop_service.ledger.in_flight("g") == 1
        each.metadata.delete_group("h", lambda _: None)
        assert each.pop_service.ledger.in_flight("h") == 0


def test_those_who_wait_are_told_when_the_role_changes_or_the_topic_goes() -> None:
    broker = master()
    broker.topic("u")
    gone, cut = broker.receive(topic="u", wait_ms=5000), broker.receive(wait_ms=5000)
    broker.metadata.delete_topic("u", lambda _: None)
    assert gone.outcome.error is not None
    assert gone.outcome.error.code == codes.TOPIC_NOT_EXIST
    broker.turns.run()
    broker.become_replica()
    assert cut.outcome.error is not None
    assert cut.outcome.error.code == codes.SERVICE_NOT_AVAILABLE
    assert broker.turns.waiting == 0


# ---- filters


def test_only_matching_messages_are_delivered_and_the_offset_moves_on() -> None:
    broker = master()
    broker.send("a", tag="x")
    broker.send("b", tag="y")
    broker.send("c", tag="z")
    assert broker.receive(expression="x || z").bodies == ["a", "c"]
    broker.send(*["no"] * 50, tag="y")
    assert broker.receive(expression="x").outcome.status == PopStatus.NOTHING
    assert broker.pop_service.ledger.queues_of("g", "t")[0].next_offset == 53


def test_tags_with_equal_hashes_are_told_apart() -> None:
    assert java_hash("Aa") == java_hash("BB")
    broker = master()
    broker.send("a", tag="Aa")
    broker.send("b", tag="BB")
    assert broker.receive(expression="BB").bodies == ["b"]


def test_sql_expressions_are_evaluated() -> None:
    broker = master()
    for number in range(10):
        broker.send(str(number), number=str(number))
    receive = broker.receive(expression_type="SQL92", expression="number > 3 AND number <> 5 AND missing IS NULL")
    assert receive.bodies == ["4", "6", "7", "8", "9"]


def test_a_long_stretch_without_a_match_is_scanned_in_the_end() -> None:
    broker = master()
    broker.send(*["no"] * 10_000, tag="y")
    broker.send("yes", tag="x")
    receive = broker.receive(expression="x", wait_ms=5000)
    assert receive.bodies == ["yes"]


def test_one_filter_does_not_starve_another() -> None:
    broker = master()
    x, y = broker.receive(expression="x", wait_ms=5000), broker.receive(expression="y", wait_ms=5000)
    broker.send("for y", tag="y")
    broker.turns.run()
    assert x.waits
    assert y.bodies == ["for y"]


# ---- where a group starts


def test_a_new_group_gets_a_young_topic_whole() -> None:
    broker = master()
    broker.send("a", "b")
    assert broker.receive(init_mode=InitMode.MAX).bodies == ["a", "b"]


def test_a_new_group_starts_an_old_topic_at_its_last_message() -> None:
    broker = master()
    broker.send(*map(str, range(10)))
    broker.log.expire("t", 0, 3)
    assert broker.receive(init_mode=InitMode.MAX).bodies == ["9"]
    assert broker.receive(group="h", init_mode=InitMode.MIN).bodies == ["3", "4", "5", "6", "7", "8", "9"]
    far = master(recent_log_bytes=100)
    far.send(*map(str, range(10)))
    assert far.receive(init_mode=InitMode.MAX).bodies == ["9"]


def test_a_group_that_found_nothing_misses_nothing_later() -> None:
    broker = master()
    broker.send(*map(str, range(3)))
    broker.log.expire("t", 0, 3)
    receive = broker.receive(init_mode=InitMode.MAX, wait_ms=5000)
    broker.send("a", "b", "c")
    broker.turns.run()
    assert receive.bodies == ["a", "b", "c"]


def test_committed_offsets_of_pulls_count() -> None:
    broker = master()
    broker.send(*map(str, range(10)))
    broker.metadata.commit_offset("g", "t", 0, 6, None)
    broker.turns.run(10)
    assert broker.receive(2).bodies == ["6", "7"]
    broker.metadata.commit_offset("g", "t", 0, 2, None)
    broker.turns.run(10)
    assert broker.receive(2).bodies == ["8", "9"], "a pop never goes back behind what it took"


def test_a_reset_starts_at_the_offset_once() -> None:
    broker = master()
    broker.send(*map(str, range(10)))
    old = broker.receive(5).messages
    broker.pop_service.reset_offset("g", "t", 0, 2)
    assert broker.ack(old[0]) == [INVALID]
    assert broker.receive(3).bodies == ["2", "3", "4"]
    assert broker.receive(2).bodies == ["5", "6"]
