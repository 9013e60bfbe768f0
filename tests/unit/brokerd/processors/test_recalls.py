"""Requests of clients that take messages back (code 370) and of replicas that ask how far timers are (codes 60 and 61)."""

from __future__ import annotations

import struct

import orjson
import pytest

from brokerd.timers.handles import Recallable, encode_handle
from brokerd.timers.interface import Recalled
from remoting import codes
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from tests.support.memory_log import draft
from tests.support.remoting_broker import RemotingBroker, remoting_master

TIMER = Recallable("t", "broker-a", 1_763_600_000_123, "K1", 5)


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def recall(broker: RemotingBroker, timer: Recallable = TIMER, topic: str = "t", key: bytes | None = None) -> Command:
    handle = encode_handle(timer, key or broker.timers.key or b"")
    return broker.answer(codes.RECALL_MESSAGE, {"producerGroup": "p", "topic": topic, "recallHandle": handle})


def test_a_recall_is_answered_with_the_key_of_the_message_and_only_once(broker: RemotingBroker) -> None:
    answer = recall(broker)
    assert (answer.code, answer.ext) == (codes.SUCCESS, {"msgId": "K1"})
    assert broker.timers.recalled == [Recalled("t", "K1", 5, TIMER.due_ms)]
    again = recall(broker)
    assert (again.code, again.ext) == (codes.ILLEGAL_OPERATION, {})


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"timer": TIMER._replace(topic="other")}, codes.ILLEGAL_OPERATION, "sent to other"),
        ({"timer": TIMER._replace(broker_name="broker-b")}, codes.ILLEGAL_OPERATION, "no recall handle"),
        ({"key": bytes(32)}, codes.ILLEGAL_OPERATION, "no recall handle"),
        ({"topic": "missing"}, codes.TOPIC_NOT_EXIST, "missing"),
    ],
)
def test_what_names_nothing_here_is_refused(broker: RemotingBroker, changes, code: int, text: str) -> None:
    answer = recall(broker, **changes)
    assert (answer.code, text in (answer.remark or "")) == (code, True)
    assert not broker.timers.recalled


@pytest.mark.parametrize("missing", ["topic", "recallHandle"])
def test_both_fields_are_needed(broker: RemotingBroker, missing: str) -> None:
    fields = {"topic": "t", "recallHandle": "djE="}
    del fields[missing]
    answer = broker.answer(codes.RECALL_MESSAGE, fields)
    assert (answer.code, missing in (answer.remark or "")) == (codes.INVALID_PARAMETER, True)


def test_only_the_master_recalls_and_only_while_it_has_the_key(broker: RemotingBroker) -> None:
    handle = encode_handle(TIMER, broker.timers.key or b"")
    broker.timers.key = None
    fields = {"topic": "t", "recallHandle": handle}
    assert broker.answer(codes.RECALL_MESSAGE, fields).code == codes.SERVICE_NOT_AVAILABLE
    broker.is_master = False
    assert broker.answer(codes.RECALL_MESSAGE, fields).code == codes.SERVICE_NOT_AVAILABLE


def test_replicas_are_told_how_far_timers_are_delivered(broker: RemotingBroker) -> None:
    body = broker.answer(codes.GET_TIMER_CHECK_POINT).body
    delivered_ms, log_position, here, masters, epoch, _, _ = struct.unpack(">7q", body)
    assert (delivered_ms, log_position, here, masters, epoch) == (broker.turns.wall_ms(), 9, 7, 7, 1)


def test_metrics_count_what_waits_for_each_topic(broker: RemotingBroker) -> None:
    for topic, ahead_ms in (("t", 60_000), ("t", 70_000), ("u", 80_000), ("", 80_000)):
        broker.timer_service.counting.counts.add(topic, broker.turns.wall_ms() + ahead_ms, is_on_the_way=False)
    table = orjson.loads(broker.answer(codes.GET_TIMER_METRICS).body)
    counts = {topic: each["count"] for topic, each in table["timingCount"].items()}
    assert counts == {"t": 2, "u": 1, "rmq_sys_wheel_timer": 1}
    assert {each["timeStamp"] for each in table["timingCount"].values()} == {broker.turns.wall_ms()}
    assert table["dataVersion"]["stateVersion"] == 1


def test_metrics_say_that_some_are_not_counted_yet(broker: RemotingBroker) -> None:
    assert broker.answer(codes.GET_TIMER_METRICS).remark is None
    broker.log.append_placed([draft(TIMER_TOPIC, b"b", 0)] * 3)
    broker.log.dispatch()
    assert (broker.answer(codes.GET_TIMER_METRICS).remark or "").startswith("3 entries")
    broker.timer_service.counting.take(broker.log.end_offset, 1 << 20)
    assert broker.answer(codes.GET_TIMER_METRICS).remark is None
