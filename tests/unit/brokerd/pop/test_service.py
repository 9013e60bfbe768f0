"""The pop service: delivery, finishing, returning, waiting, leases, dead letters, and what survives a change of master."""

from __future__ import annotations

import pytest

from brokerd.pop.handles import decode_handle
from brokerd.pop.records import POP_TOPIC
from brokerd.services import AckStatus, InitMode, Popper, PopStatus, PutStatus
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.message import decode_record, java_hash
from tests.support.pop_broker import PopBroker, master

OK, INVALID, FAILED = AckStatus.OK, AckStatus.INVALID_HANDLE, AckStatus.FAILED
RETRY = "%RETRY%g+t"


def test_it_is_a_popper() -> None:
    popper: Popper = master().pop_service
    assert popper


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
    assert broker.pop_service.committed_offset("g", "t", 0) == 2
    assert broker.pop_service.in_flight("g", "t", 0) == 1


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
        assert broker.pop_service.committed_offset("g", "t", queue_id) == 25
        assert broker.pop_service.in_flight("g", "t", queue_id) == 0
    assert broker.pop_service.ledger.batch_count == 0


def test_handles_name_what_they_finish() -> None:
    broker = master()
    broker.send("a", "b")
    message = broker.receive().messages[1]
    handle = decode_handle(message.receipt_handle)
    assert handle is not None
    record = decode_record(message.record)
    assert handle.physical_offset == record.physical_offset
    assert (handle.start_offset, handle.queue_offset, handle.broker_name) == (0, 1, "broker-a")
    assert handle.revive_queue_id == 0
    assert message.topic == "t"


def test_finishing_twice_is_refused_and_changes_nothing() -> None:
    broker = master()
    broker.send("a", "b")
    one, two = broker.receive().messages
    assert broker.ack(one, one) == [OK, INVALID]
    before = broker.log.end_offset
    assert broker.ack(one) == [INVALID]
    assert broker.log.end_offset == before
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
    assert broker.pop_service.in_flight("g", "t", 0) == 2


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
    assert message.retry_flag == 2
    assert message.topic == "t"
    assert broker.ack(three) == [INVALID], "its handle expired"
    assert broker.ack(message) == [OK]
    broker.turns.run(60_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.pop_service.committed_offset("g", "t", 0) == 3


def test_a_copy_keeps_everything_but_its_count() -> None:
    broker = master()
    broker.send("a", tag="x", KEYS="k1 k2", UNIQ_KEY="U", POP_CK="stale", INNER_MULTI_DISPATCH="l")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
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
    assert broker.receive(expression="x").bodies == ["a"]


def test_returned_messages_and_new_ones_both_get_their_share() -> None:
    broker = master()
    broker.send(*map(str, range(64)))
    broker.receive(32, invisible_time_ms=1000)
    broker.receive(32, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.send(*(f"new {number}" for number in range(200)))
    flags = [broker.receive(1, invisible_time_ms=100_000).messages[0].retry_flag for _ in range(200)]
    assert 20 <= flags.count(2) <= 60


def test_a_full_batch_takes_new_and_returned_messages_together() -> None:
    broker = master()
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.send("b")
    receive = broker.receive()
    assert sorted(receive.bodies) == ["a", "b"]
    assert receive.outcome.start_offsets == {(0, 0): 1, (2, 0): 0}
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
    assert broker.pop_service.ledger.batch_count == 0
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
    assert broker.forward(one) == INVALID
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


def test_returning_waits_while_the_log_refuses() -> None:
    broker = master()
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run(5500)
    assert broker.pop_service.counters.revive_failures == 5
    broker.log.refusal = None
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_many_due_at_once_come_back_in_slices() -> None:
    broker = master()
    for _ in range(40):
        broker.send(*map(str, range(32)))
        broker.receive(32, invisible_time_ms=1000)
    broker.turns.run(1000)
    assert len(broker.stored(RETRY)) == 40 * 32
    assert broker.pop_service.counters.revived == 40 * 32
    assert broker.pop_service.ledger.batch_count == 0


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
    assert broker.receive().bodies == ["a"]
    assert len(broker.stored(RETRY)) == 1


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
    broker = master(max_waiting_per_queue=2)
    broker.receive(wait_ms=5000)
    broker.receive(wait_ms=5000)
    assert broker.receive(wait_ms=5000).outcome.status == PopStatus.POLLING_FULL


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
    assert receive.waits
    broker.turns.run()
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
    refusals: list[object] = []
    broker.pop_service.reset_offset("g", "t", 0, 2, refusals.append)
    assert refusals == [None]
    assert broker.ack(old[0]) == [INVALID]
    assert broker.receive(3).bodies == ["2", "3", "4"]
    assert broker.receive(2).bodies == ["5", "6"]
    broker.turns.run(10)
    assert broker.metadata.consumer_offset("g", "t", 0) == 2


# ---- leases


def test_a_lease_lasts_while_its_client_lives() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    broker.turns.run(1_000_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.pop_service.counters.renewed >= 15
    assert broker.ack(message) == [OK], "the handle that the client has stays valid"


def test_a_dead_clients_lease_ends_soon() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a", "b")
    broker.receive(1, client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.receive(1, client_id="c2", auto_renew=True, invisible_time_ms=60_000)
    broker.alive.discard("c1")
    broker.pop_service.client_gone("c1")
    broker.turns.run(999)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    broker.turns.run(1)
    assert broker.receive().bodies == ["a"]


def test_a_client_that_is_back_in_time_keeps_its_lease() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    broker.alive.discard("c1")
    broker.pop_service.client_gone("c1")
    broker.turns.run(500)
    broker.alive.add("c1")
    broker.turns.run(200_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    assert broker.ack(message) == [OK]


def test_a_lease_has_a_limit() -> None:
    broker = master(lease_limit_ms=100_000)
    broker.alive.add("c1")
    broker.send("a")
    broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000)
    broker.turns.run(119_000)
    assert broker.receive().outcome.status == PopStatus.NOTHING
    broker.turns.run(1000)
    assert broker.receive().bodies == ["a"]


def test_a_postponed_lease_is_none_any_more() -> None:
    broker = master()
    broker.alive.add("c1")
    broker.send("a")
    message = broker.receive(client_id="c1", auto_renew=True, invisible_time_ms=60_000).messages[0]
    assert broker.change(message, 2000).status == OK
    broker.turns.run(2000)
    assert broker.receive().bodies == ["a"]


# ---- master changes


def test_a_new_master_goes_on() -> None:
    broker = master()
    broker.send(*"abcdef")
    taken = broker.receive(4, invisible_time_ms=5000).messages
    assert broker.ack(taken[0], taken[2]) == [OK, OK]
    changed = broker.change(taken[3], 20_000).receipt_handle
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert other.ack(taken[0]) == [INVALID]
    assert other.ack(changed) == [OK]
    other.turns.run(5000)
    assert sorted(other.receive().bodies) == ["b", "e", "f"]


def test_a_replica_that_followed_goes_on_too() -> None:
    broker = master()
    replica = PopBroker(broker.log, broker.turns)
    replica.metadata.rebuild()
    replica.pop_service.rebuild()
    broker.send(*"abcd")
    messages = broker.receive(3).messages
    broker.ack(messages[1])
    queue = replica.pop_service.ledger.queue("g", "t", 0)
    assert queue is not None
    assert queue.in_flight == 2
    assert list(replica.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())
    assert replica.metadata.topics() == broker.metadata.topics()


def test_leases_survive_a_change_of_master_for_a_while() -> None:
    broker = master()
    broker.send("a", "b")
    one = broker.receive(1, client_id="c1", auto_renew=True, invisible_time_ms=10_000).messages[0]
    broker.receive(1, client_id="c2", auto_renew=True, invisible_time_ms=10_000)
    turns = broker.turns
    turns.run(9000)
    other = PopBroker(broker.log.copy(), turns).become_master()
    other.alive.add("c1")
    turns.run(29_000)
    assert other.receive().outcome.status == PopStatus.NOTHING
    turns.run(1000)
    assert other.receive().bodies == ["b"]
    assert other.ack(one) == [OK]


def test_the_copy_is_there_whenever_the_record_of_the_revival_is() -> None:
    broker = master()
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.turns.run(1000)
    assert broker.log.kinds(POP_TOPIC) == ["taken", "revived"]
    for cut in broker.log.positions[-4:]:
        other = PopBroker(broker.log.copy(cut), broker.turns).become_master()
        other.turns.run(1000)
        assert "a" in other.receive().bodies


def test_state_of_deleted_topics_and_groups_does_not_come_back() -> None:
    broker = master()
    broker.topic("u")
    broker.group("h")
    broker.send("a")
    broker.send("u", topic="u")
    broker.receive(group="h")
    broker.receive(topic="u")
    cut = broker.log.end_offset
    broker.metadata.delete_topic("u", lambda _: None)
    broker.metadata.delete_group("h", lambda _: None)
    assert [queue.group for queue in broker.pop_service.ledger.queues()] == []
    # a new master whose log ends between the deletion and the record that drops the pop state
    for end_offset in [position for position in broker.log.positions if position > cut]:
        other = PopBroker(broker.log.copy(end_offset), broker.turns).become_master()
        for queue in other.pop_service.ledger.queues():
            assert other.metadata.topic(queue.topic) is not None
            assert other.metadata.group(queue.group) is not None


def test_snapshots_bound_what_a_new_master_reads() -> None:
    broker = master()
    for number in range(50):
        broker.send(str(number))
        messages = broker.receive(1, invisible_time_ms=1000_000).messages
        if number % 3:
            broker.ack(*messages)
    broker.pop_service.file_rolled()
    broker.metadata.file_rolled()
    broker.turns.run()
    other = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert list(other.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())
    kinds = broker.log.kinds(POP_TOPIC)
    broker.log.expire(POP_TOPIC, 0, kinds.index("snapshot"))
    third = PopBroker(broker.log.copy(), broker.turns).become_master()
    assert list(third.pop_service.ledger.snapshot_rows()) == list(broker.pop_service.ledger.snapshot_rows())


def test_what_a_new_master_cannot_read_yet_is_not_lost() -> None:
    broker = master()
    broker.group("ordered", fifo=True)
    before = broker.log.end_offset
    broker.send("a")
    broker.receive(invisible_time_ms=1000)
    broker.receive(group="ordered", fifo=True, invisible_time_ms=1000)
    message = broker.receive(group="h", invisible_time_ms=60_000).messages[0]
    broker.turns.run(900)
    log = broker.log.copy(dispatched=before)
    log.dispatches = False
    other = PopBroker(log, broker.turns).become_master()
    other.turns.run(1000)
    assert other.receive(group="ordered", fifo=True).outcome.status == PopStatus.NOTHING
    assert other.forward(message, group="h") == FAILED
    other.log.dispatch()
    assert other.forward(message, group="h") == OK
    assert other.receive(group="ordered", fifo=True).bodies == ["a"]
    log.dispatches = True
    other.turns.run(100)
    assert other.receive().bodies == ["a"]
    assert other.pop_service.counters.lost == 0
