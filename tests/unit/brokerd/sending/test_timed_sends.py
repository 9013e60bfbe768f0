"""Messages for a moment of their own, over remoting: what waits, what does not, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.timers.handles import Recallable, decode_handle
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.support.client_bytes import encode_batch_body
from tests.unit.brokerd.sending.test_send import Broker, Connection, request


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.store.close()


def test_the_answer_to_a_delayed_send_names_the_queue_that_it_was_sent_to(broker: Broker) -> None:
    connection = Connection()
    properties = {"UNIQ_KEY": "U", "DELAY": "4", "TIMER_DELAY_SEC": "9"}
    broker.handle(connection, [request(1, properties=properties, e="3")])
    broker.acknowledger.complete()
    [record] = [decode_record(each) for each in broker.records()]
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 3)
    assert "TIMER_DELAY_SEC" not in record.property_map(), "a level beats it"
    [answer] = connection.answers
    assert (answer.ext["queueId"], answer.ext["msgId"][-16:]) == ("3", f"{record.physical_offset:016X}")


def stored_properties(broker: Broker) -> dict[str, dict[str, str]]:
    """By topic, of its only record."""
    found = [decode_record(each) for each in broker.records()]
    return {record.topic: record.property_map() for record in found}


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_message_for_a_moment_waits_in_the_timer_topic_and_can_be_recalled(broker: Broker, name: str) -> None:
    due_ms = broker.now + 4000
    asked = {"TIMER_DELAY_SEC": "4", "TIMER_DELAY_MS": "4000", "TIMER_DELIVER_MS": str(due_ms)}[name]
    connection = Connection()
    broker.handle(connection, [request(1, properties={"UNIQ_KEY": "U", name: asked}, e="3")])
    broker.acknowledger.complete()
    stored = stored_properties(broker)[TIMER_TOPIC]
    assert (stored["REAL_TOPIC"], stored["REAL_QID"], stored["TIMER_DUE_MS"]) == ("T", "3", str(due_ms))
    [answer] = connection.answers
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    assert broker.timers.key is not None
    wanted = Recallable("T", "broker-a", due_ms, "U", 0)
    assert decode_handle(answer.ext["recallHandle"], broker.timers.key) == wanted


@pytest.mark.parametrize(
    "properties",
    [
        {"UNIQ_KEY": "U"},
        {"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "0"},
        {"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "1700000000000"},
        {"UNIQ_KEY": "U", "DELAY": "1", "TIMER_DELAY_SEC": "9"},
    ],
)
def test_what_is_no_timer_is_answered_without_a_handle(broker: Broker, properties: dict[str, str]) -> None:
    connection = Connection()
    broker.handle(connection, [request(1, properties=properties)])
    broker.acknowledger.complete()
    assert "recallHandle" not in connection.answers[0].ext
    assert TIMER_TOPIC not in stored_properties(broker)


def test_each_message_of_a_batch_waits_for_its_own_moment(broker: Broker) -> None:
    items = [
        (0, b"now", encode_properties({"UNIQ_KEY": "1"})),
        (0, b"later", encode_properties({"UNIQ_KEY": "2", "TIMER_DELAY_SEC": "3"})),
    ]
    connection = Connection()
    broker.handle(connection, [request(1, encode_batch_body(items), m="true")])
    broker.acknowledger.complete()
    stored = stored_properties(broker)
    assert (stored["T"]["UNIQ_KEY"], stored[TIMER_TOPIC]["UNIQ_KEY"]) == ("1", "2")
    assert "recallHandle" not in connection.answers[0].ext


def test_what_brokers_write_about_timers_is_not_taken_from_clients(broker: Broker) -> None:
    forged = {"TIMER_PLACE": "7", "TIMER_LEG_MS": "1", "TIMER_DUE_MS": "1", "TIMER_ROLL_TIMES": "1"}
    broker.handle(Connection(), [request(1, properties={"UNIQ_KEY": "U", **forged})])
    assert not any(name.startswith("TIMER_") for name in stored_properties(broker)["T"])


def test_a_half_message_does_not_wait_before_its_commit(broker: Broker) -> None:
    half = {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "pg", "TIMER_DELAY_SEC": "9"}
    broker.handle(Connection(), [request(1, properties=half)])
    assert stored_properties(broker)["RMQ_SYS_TRANS_HALF_TOPIC"]["TIMER_DELAY_SEC"] == "9"
