"""SendMessage with a delivery time, and RecallMessage: what is answered, over a broker in memory."""

from __future__ import annotations

import base64

import pytest

from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code
from brokerd.timers.handles import broker_of_handle
from tests.unit.brokerd.proxy.test_methods import resource, sending


def delayed(bench, ahead_ms=5000):
    bench.broker.timers.wall_ms = lambda: bench.wall_ms
    request = sending(b"x", topic="Delay")
    request.messages[0].system_properties.delivery_timestamp.FromMilliseconds(bench.wall_ms + ahead_ms)
    return bench.call("SendMessage", request, service.SendMessageResponse)


def recalled(bench, handle, topic="Delay"):
    request = service.RecallMessageRequest(topic=resource(topic), recall_handle=handle)
    return bench.call("RecallMessage", request, service.RecallMessageResponse)


def test_a_delayed_send_is_answered_with_what_recalls_it(bench) -> None:
    response = delayed(bench)
    assert (response.status.code, response.entries[0].status.code) == (Code.OK, Code.OK)
    assert broker_of_handle(response.entries[0].recall_handle) == "broker-a"
    ordinary = bench.call("SendMessage", sending(b"x"), service.SendMessageResponse)
    assert not ordinary.entries[0].recall_handle


def test_a_delivery_time_beyond_the_setting_is_refused(bench) -> None:
    response = delayed(bench, bench.broker.timed.max_ahead_ms + 1)
    assert response.status.code == response.entries[0].status.code == Code.ILLEGAL_DELIVERY_TIME
    assert bench.broker.log == []


def test_a_recall_answers_the_id_of_the_message_and_only_once(bench) -> None:
    entry = delayed(bench).entries[0]
    response = recalled(bench, entry.recall_handle)
    assert (response.status.code, response.message_id) == (Code.OK, entry.message_id)
    [timer] = bench.broker.timers.recalled
    assert (timer.topic, timer.unique_key, timer.due_ms) == ("Delay", entry.message_id, bench.wall_ms + 5000)
    again = recalled(bench, entry.recall_handle)
    assert (again.status.code, again.message_id) == (Code.BAD_REQUEST, "")
    assert "already" in again.status.message


@pytest.mark.parametrize(
    ("handle", "topic", "code", "text"),
    [
        (None, "Normal", Code.BAD_REQUEST, "sent to Delay"),
        (None, "Missing", Code.TOPIC_NOT_FOUND, "Missing"),
        ("", "Delay", Code.BAD_REQUEST, "missing"),
        ("nonsense", "Delay", Code.BAD_REQUEST, "no recall handle"),
        (b"v1 Delay broker-a 1763600123457 0A0000", "Delay", Code.BAD_REQUEST, "no recall handle of this"),
        (b"v1 Delay broker-z 1763600123457 0A0000", "Delay", Code.BAD_REQUEST, "broker-z"),
    ],
)
def test_a_recall_that_names_nothing_of_the_topic_is_refused(bench, handle, topic, code, text) -> None:
    given = delayed(bench).entries[0].recall_handle if handle is None else handle
    if isinstance(given, bytes):
        given = base64.urlsafe_b64encode(given).decode()
    response = recalled(bench, given, topic)
    assert response.status.code == code
    assert text in response.status.message
    assert not bench.broker.timers.recalled


def test_a_recall_that_cannot_be_checked_yet_may_be_tried_again(bench) -> None:
    handle = delayed(bench).entries[0].recall_handle
    bench.broker.timers.key = None
    assert recalled(bench, handle).status.code == Code.HA_NOT_AVAILABLE
