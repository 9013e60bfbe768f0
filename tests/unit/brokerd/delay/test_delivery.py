"""Delayed messages on one broker and over changes of the master: when they come, in which order, and what they look like."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.delay.deliverer import DelaySettings
from brokerd.delay.levels import DEFAULT_DELAYS, SCHEDULE_GROUP
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.put_status import PutStatus
from brokerd.transactions.decide import EndTransaction, Outcome
from remoting import codes
from remoting.errors import RequestError
from remoting.facts.broker_state import LevelState
from remoting.java_hash import java_hash
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import Record, decode_record
from remoting.record.properties import encode_properties
from tests.support.open_guard import anybody_may
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.store.stores import draft


def send(broker: Broker, body: bytes, level: int, queue_id: int = 1, **properties: str) -> SendOutcome:
    outcomes: list[SendOutcome] = []
    encoded = encode_properties({"UNIQ_KEY": "U", "DELAY": str(level), "TAGS": "a", **properties})
    message = draft(body, topic="T", queue_id=queue_id)._replace(properties=encoded)
    broker.core.sender.send([message], outcomes.extend)
    broker.turns.run(1)
    return outcomes[0]


def stored(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[Record]:
    found = broker.core.store.read_messages(topic, queue_id, 0, 1000, 1 << 24).records
    return [decode_record(each) for each in found]


def bodies(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    return [record.body for record in stored(broker, topic, queue_id)]


def offset(broker: Broker, level: int) -> int | None:
    return broker.core.metadata.consumer_offset(SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1)


def test_a_delayed_message_waits_in_its_levels_queue_and_comes_in_time() -> None:
    broker = Broker()
    outcome = send(broker, b"later", 3, KEYS="k")
    assert (outcome.status, outcome.queue_id, outcome.queue_offset) == (PutStatus.PUT_OK, 1, 0)
    (waiting,) = stored(broker, SCHEDULE_TOPIC, 2)
    assert waiting.physical_offset == outcome.physical_offset
    assert waiting.property_map() == {
        "UNIQ_KEY": "U", "TAGS": "a", "KEYS": "k", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "1",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    [(_, _, due_ms)] = broker.core.store.read_units(SCHEDULE_TOPIC, 2, 0, 10)
    assert due_ms == waiting.store_timestamp_ms + 10_000
    broker.turns.run(9998)
    assert bodies(broker) == []
    broker.turns.run(3)
    (record,) = stored(broker)
    assert record.store_timestamp_ms >= due_ms
    assert record.property_map() == waiting.property_map(), "clients know it from the original"
    same = ("body", "flag", "born_timestamp_ms", "born_host", "sys_flag", "reconsume_times")
    assert [getattr(record, name) for name in same] == [getattr(waiting, name) for name in same]
    [(_, _, code)] = broker.core.store.read_units("T", 1, 0, 10)
    assert code == java_hash("a"), "the tags code is the tag's again"
    broker.turns.run(3_600_000)
    assert bodies(broker) == [b"later"], "it is not delayed again"
    assert offset(broker, 3) == 1


def test_levels_are_independent_and_keep_their_order() -> None:
    broker = Broker()
    for number in range(700):
        send(broker, b"%d" % number, 2)
    send(broker, b"soon", 1)
    broker.turns.run(1010)
    assert bodies(broker) == [b"soon"]
    broker.turns.run(5000)
    assert bodies(broker) == [b"soon", *(b"%d" % number for number in range(700))]


def test_a_level_above_the_table_is_the_last_one() -> None:
    broker = Broker()
    send(broker, b"x", 99)
    (waiting,) = stored(broker, SCHEDULE_TOPIC, 17)
    assert waiting.property_map()["DELAY"] == "18"
    broker.turns.run(DEFAULT_DELAYS[-1] - 2)
    assert not bodies(broker)
    broker.turns.run(3)
    assert bodies(broker) == [b"x"]


def test_one_timer_serves_all_waiting_messages() -> None:
    broker = Broker()
    before = broker.turns.waiting
    for number in range(50):
        send(broker, b"%d" % number, 1 + number % 18)
    assert broker.turns.waiting <= before + 1


def test_a_restart_goes_on_where_it_was() -> None:
    broker = Broker()
    for number in range(10):
        send(broker, b"%d" % number, 1 if number < 4 else 3)
    broker.turns.run(2000)
    assert len(bodies(broker)) == 4
    again = broker.restart()
    assert (offset(again, 1), offset(again, 3)) == (4, None)
    again.turns.run(10_000)
    assert bodies(again) == [b"%d" % number for number in range(10)]


def test_what_was_due_while_nobody_was_there_is_delivered_at_the_start() -> None:
    broker = Broker()
    send(broker, b"x", 1)
    broker.core.close()
    broker.core.store.close()
    again = Broker(broker.disk)
    again.turns.set_wall_clock(60_000)
    again.replica.become(Role.REPLICA, 2)
    again.replica.become(Role.MASTER, 3)
    again.turns.run(5)
    assert bodies(again) == [b"x"]


def test_a_replica_delivers_nothing() -> None:
    broker = Broker()
    send(broker, b"x", 1)
    broker.replica.become(Role.REPLICA, 2)
    broker.turns.run(5000)
    assert not bodies(broker)
    assert broker.core.schedule.offsets()[1] == 0
    broker.replica.become(Role.MASTER, 3)
    broker.turns.run(2)
    assert bodies(broker) == [b"x"]


def test_a_message_waits_for_too_few_replicas_and_comes_when_they_are_there() -> None:
    broker = Broker()
    send(broker, b"x", 1)
    broker.replica.is_taking = False
    broker.turns.run(5000)
    assert not bodies(broker)
    assert broker.core.schedule.counters.failures >= 3
    broker.replica.is_taking = True
    broker.turns.run(1001)
    assert bodies(broker) == [b"x"]
    assert offset(broker, 1) == 1


def test_batches_follow_one_another_until_too_much_waits_to_be_acknowledged() -> None:
    broker = Broker(delay=DelaySettings(batch_messages=2, in_flight_messages=4))
    for number in range(10):
        send(broker, b"%d" % number, 1)
    waits: list[Any] = []
    broker.core.appends.wait = lambda position, callback: waits.append(callback)
    broker.replica.is_taking = False
    broker.turns.run(2000)
    broker.replica.is_taking = True
    broker.turns.run(20_000)
    assert (len(bodies(broker)), len(waits)) == (4, 2)
    waits.pop(0)(PutStatus.PUT_OK)
    broker.turns.run(2)
    assert (len(bodies(broker)), len(waits)) == (6, 2)
    waits.pop(0)(PutStatus.FLUSH_SLAVE_TIMEOUT)
    broker.turns.run(900)
    assert len(bodies(broker)) == 6, "where nobody acknowledges it pauses"
    broker.turns.run(200)
    assert (len(bodies(broker)), len(waits)) == (8, 2)
    while waits:
        waits.pop()(PutStatus.PUT_OK)
        broker.turns.run(2)
    assert bodies(broker) == [b"%d" % number for number in range(10)]


def test_after_a_switch_only_the_last_batch_comes_again_however_many_are_in_flight() -> None:
    """Those before it have their records in the log, and these were cut or kept with them."""

    def in_flight() -> tuple[Broker, int]:
        broker = Broker(delay=DelaySettings(batch_messages=3))
        for number in range(9):
            send(broker, b"%d" % number, 1)
        before = broker.core.store.commitlog.end_offset
        broker.core.appends.wait = lambda position, callback: None
        broker.replica.is_taking = False
        broker.turns.run(1500)
        broker.replica.is_taking = True
        broker.turns.run(1500)
        assert len(bodies(broker)) == 9
        return broker, before

    broker, before = in_flight()
    log = broker.core.store.commitlog
    cuts = [each for each in range(before, log.end_offset + 1) if log.is_record_boundary(each)]
    assert len(cuts) >= 9 + 3 + 1
    most_repeated = 0
    for cut in cuts:
        broker, _ = in_flight()
        broker.replica.become(Role.FENCED)
        broker.core.store.truncate(cut)
        broker.replica.confirm_offset = cut
        broker.replica.become(Role.MASTER, 2)
        repeated = len(bodies(broker)) - (offset(broker, 1) or 0)
        broker.turns.run(2000)
        came = bodies(broker)
        assert list(dict.fromkeys(came)) == [b"%d" % number for number in range(9)], f"cut at {cut}"
        assert len(came) == 9 + repeated
        assert repeated <= 3
        most_repeated = max(most_repeated, repeated)
    assert most_repeated == 3, "the messages are in the log before their record"


def test_a_refused_record_takes_its_messages_with_it() -> None:
    broker = Broker()
    send(broker, b"x", 1)
    broker.turns.run(990)
    commit = broker.core.metadata.commit_behind
    calls = 0

    def refuse_once(*given: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RequestError(codes.SYSTEM_ERROR, "no room")
        return commit(*given)

    broker.core.metadata.commit_behind = refuse_once  # type: ignore[method-assign]
    broker.turns.run(100)
    assert (bodies(broker), offset(broker, 1), broker.core.schedule.state().failures) == ([], None, 1)
    broker.turns.run(2000)
    assert (bodies(broker), offset(broker, 1), calls) == ([b"x"], 1, 2)


def delivered() -> tuple[Broker, int]:
    """A master that has delivered x and y, and where its log ended before."""
    broker = Broker()
    send(broker, b"x", 1)
    send(broker, b"y", 1)
    before = broker.core.store.commitlog.end_offset
    broker.turns.run(2000)
    assert bodies(broker) == [b"x", b"y"]
    return broker, before


def test_a_cut_of_the_log_takes_back_what_was_delivered_with_its_record() -> None:
    broker, before = delivered()
    broker.replica.become(Role.FENCED)
    broker.core.store.truncate(before)
    broker.replica.confirm_offset = before
    assert bodies(broker) == []
    broker.replica.become(Role.MASTER, 2)
    broker.turns.run(2000)
    assert bodies(broker) == [b"x", b"y"]
    assert offset(broker, 1) == 2


def test_wherever_the_log_of_a_delivery_is_cut_the_next_master_delivers_what_is_missing() -> None:
    """The record that says how far a level is comes behind the messages: with a part of them it is gone, too."""
    broker, before = delivered()
    log = broker.core.store.commitlog
    cuts = [each for each in range(before, log.end_offset) if log.is_record_boundary(each)]
    assert len(cuts) >= 3
    for cut in cuts:
        broker, _ = delivered()
        broker.replica.become(Role.FENCED)
        broker.core.store.truncate(cut)
        broker.replica.confirm_offset = cut
        broker.replica.become(Role.MASTER, 2)
        broker.turns.run(2000)
        assert {*bodies(broker)} == {b"x", b"y"}, f"cut at {cut}"


def test_messages_of_a_deleted_topic_are_left_out_also_when_it_was_made_again() -> None:
    broker = Broker()
    send(broker, b"old", 2)
    broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", 2, 2), done))
    send(broker, b"new", 2)
    broker.turns.run(6000)
    assert bodies(broker) == [b"new"]
    assert broker.core.schedule.counters.lost == 1
    assert offset(broker, 2) == 2


def test_a_queue_that_the_topic_no_longer_has_is_replaced_by_one_that_is_read() -> None:
    broker = Broker()
    send(broker, b"x", 2, queue_id=1)
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", 1, 1), done))
    broker.turns.run(6000)
    assert bodies(broker, queue_id=0) == [b"x"]


def test_a_retry_topic_that_is_missing_is_made_while_its_group_is_there() -> None:
    broker = Broker()
    for group in ("g", "gone"):
        broker.change(lambda done, group=group: broker.core.metadata.put_group(GroupConfig(group), done))  # type: ignore[misc]
        message = draft(group.encode(), topic=SCHEDULE_TOPIC, queue_id=0)
        properties = encode_properties({"DELAY": "1", "REAL_TOPIC": f"%RETRY%{group}", "REAL_QID": "0"})
        results = broker.core.store.append_messages([message._replace(properties=properties)])
        broker.core.appends.appended(results[-1].end_offset)
    broker.change(lambda done: broker.core.metadata.delete_group("gone", done))
    broker.turns.run(3000)
    assert bodies(broker, "%RETRY%g", 0) == [b"g"]
    assert broker.core.metadata.topic("%RETRY%gone") is None


@pytest.mark.parametrize(
    "properties",
    [{"DELAY": "1"}, {"DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "-1"}, {"DELAY": "1", "REAL_TOPIC": "T"}],
)
def test_a_record_that_does_not_say_where_it_belongs_holds_nobody_up(properties: dict[str, str]) -> None:
    broker = Broker()
    message = draft(b"stray", topic=SCHEDULE_TOPIC, queue_id=0)._replace(properties=encode_properties(properties))
    broker.core.appends.appended(broker.core.store.append_messages([message])[-1].end_offset)
    send(broker, b"x", 1)
    broker.turns.run(3000)
    assert bodies(broker) == [b"x"]
    assert broker.core.schedule.counters.lost == 1


def test_messages_that_do_not_fit_into_one_file_together_go_one_by_one() -> None:
    broker = Broker()
    sent = [bytes([65 + number]) * 1200 for number in range(8)]
    for body in sent:
        send(broker, body, 1)
    broker.turns.run(5000)
    assert bodies(broker) == sent
    assert broker.core.schedule.counters.failures == 0


def test_a_message_as_large_as_a_record_can_be_is_delivered_without_what_was_added() -> None:
    broker = Broker()
    name = "T" * 127
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig(name, 1, 1), done))
    largest = broker.core.store.commitlog.segment_size_bytes - 8
    properties = {"UNIQ_KEY": "U", "DELAY": "1", "REAL_TOPIC": name, "REAL_QID": "0"}
    encoded = encode_properties(properties)
    body = b"x" * (largest - 91 - len(SCHEDULE_TOPIC) - len(encoded))
    message = draft(body, topic=SCHEDULE_TOPIC, queue_id=0)._replace(properties=encoded)
    broker.core.appends.appended(broker.core.store.append_messages([message])[-1].end_offset)
    broker.turns.run(3000)
    (record,) = stored(broker, name, 0)
    assert record.body == body
    assert record.property_map() == {"UNIQ_KEY": "U"}
    assert offset(broker, 1) == 1, "its record had no room beside it, and followed"
    assert broker.core.schedule.state().failures == 0


def test_the_log_is_kept_from_the_first_message_that_waits() -> None:
    broker = Broker()
    assert broker.core.schedule.held_offset() is None
    first = send(broker, b"x", 2)
    second = send(broker, b"y", 3)
    assert broker.core.schedule.held_offset() == first.physical_offset
    broker.turns.run(6000)
    assert broker.core.schedule.held_offset() == second.physical_offset
    broker.replica.become(Role.REPLICA, 2)
    assert broker.core.schedule.held_offset() == second.physical_offset, "a replica keeps it too"
    broker.replica.become(Role.MASTER, 3)
    broker.turns.run(10_000)
    assert broker.core.schedule.held_offset() is None


def test_what_people_see_of_the_levels() -> None:
    broker = Broker()
    send(broker, b"x", 2)
    send(broker, b"y", 2)
    assert broker.core.schedule.state().levels[1] == LevelState(level=2, delay_ms=5000, waiting=2, late_ms=-1)
    state = broker.core.schedule.state()
    assert (state.last_late_ms, state.last_ago_ms, state.overdue_ms) == (-1, -1, 0)
    broker.turns.run(5001)
    level = broker.core.schedule.state().levels[1]
    assert level.waiting == 0
    assert 0 <= level.late_ms <= 2
    assert broker.core.schedule.counters.delivered == 2
    assert broker.core.schedule.offsets()[2] == 2


def test_people_see_how_late_the_last_delivery_was_and_for_how_long_one_is_overdue() -> None:
    broker = Broker()
    send(broker, b"x", 2)
    broker.replica.is_taking = False
    broker.turns.run(5000 + 40_000)
    state = broker.core.schedule.state()
    assert 39_990 <= state.overdue_ms <= 40_010
    assert state.last_late_ms == -1
    broker.replica.is_taking = True
    broker.turns.run(1001)
    state = broker.core.schedule.state()
    assert state.overdue_ms == 0
    assert 39_990 <= state.last_late_ms <= 41_010
    send(broker, b"y", 1)
    broker.turns.run(1001)
    assert 0 <= broker.core.schedule.state().last_late_ms <= 2, "of whichever level was the last"
    send(broker, b"z", 1)
    broker.replica.become(Role.REPLICA, 2)
    broker.turns.run(60_000)
    state = broker.core.schedule.state()
    assert state.overdue_ms == 0, "a replica delivers nothing"
    assert state.last_ago_ms >= 60_000


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_makes_nothing_early_or_late(by_ms: int) -> None:
    broker = Broker()
    send(broker, b"before", 3)
    broker.turns.run(5000)
    broker.turns.set_wall_clock(by_ms)
    send(broker, b"behind", 3)
    broker.turns.run(4990)
    assert bodies(broker) == []
    broker.turns.run(20)
    assert bodies(broker) == [b"before"]
    broker.turns.run(4970)
    assert bodies(broker) == [b"before"]
    broker.turns.run(50)
    assert bodies(broker) == [b"before", b"behind"]


def test_a_transactional_message_waits_from_its_commit_on() -> None:
    broker = Broker()
    half = send(broker, b"x", 2, TRAN_MSG="true", PGROUP="p")
    assert (half.status, half.queue_id) == (PutStatus.PUT_OK, 1)
    assert [record.body for record in stored(broker, "RMQ_SYS_TRANS_HALF_TOPIC", 0)] == [b"x"], (
        "the half itself is not delayed"
    )
    broker.turns.run(5500)
    assert not bodies(broker)
    answers: list[Any] = []
    request = EndTransaction("p", half.queue_offset, half.physical_offset, Outcome.COMMIT)
    broker.core.transactions.end(request, answers.append, anybody_may)
    broker.turns.run(4900)
    assert answers == [None]
    assert not bodies(broker)
    broker.turns.run(200)
    assert bodies(broker) == [b"x"]
    assert len(broker.core.transactions.table) == 0, "it is over, though it was delivered later"
