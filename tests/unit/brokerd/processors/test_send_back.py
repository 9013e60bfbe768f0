"""Requests of consumers that give messages back (code 36) and of replicas that ask how far the delayed ones are (code 45)."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.frame import Command
from remoting.names import SCHEDULE_TOPIC
from tests.support.remoting_broker import RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    broker = remoting_master()
    broker.send("hello")
    return broker


def back(broker: RemotingBroker, **changes: Any) -> Command:
    (place,) = [record.physical_offset for record in broker.stored("t")]
    fields = {"offset": place, "group": "g", "delayLevel": 0, "originMsgId": "M", "originTopic": "t", **changes}
    return broker.answer(
        codes.CONSUMER_SEND_MSG_BACK, {key: value for key, value in fields.items() if value is not None}
    )


def test_a_message_that_is_sent_back_comes_again(broker: RemotingBroker) -> None:
    answer = back(broker)
    assert (answer.code, answer.ext) == (codes.SUCCESS, {})
    broker.turns.run(10_001)
    assert [(record.body, record.reconsume_times) for record in broker.stored("%RETRY%g")] == [(b"hello", 1)]


def test_the_answer_waits_for_the_replicas(broker: RemotingBroker) -> None:
    (place,) = [record.physical_offset for record in broker.stored("t")]
    broker.log.acknowledges = False
    fields = {"offset": place, "group": "g", "delayLevel": 0}
    opaque = broker.send_request(codes.CONSUMER_SEND_MSG_BACK, fields)
    assert opaque not in broker.peer.answers
    broker.log.acknowledge()
    assert broker.peer.answers[opaque].code == codes.SUCCESS


def test_a_negative_level_or_the_consumers_limit_make_a_dead_letter(broker: RemotingBroker) -> None:
    assert back(broker, delayLevel=-1).code == codes.SUCCESS
    assert back(broker, maxReconsumeTimes=0).code == codes.SUCCESS
    assert [record.body for record in broker.stored("%DLQ%g")] == [b"hello", b"hello"]
    assert back(broker, maxReconsumeTimes=1, unitMode="true").code == codes.SUCCESS
    assert len(broker.stored("%DLQ%g")) == 2


@pytest.mark.parametrize(
    ("changes", "code", "rule"),
    [
        ({"offset": None}, codes.INVALID_PARAMETER, "offset"),
        ({"offset": -1}, codes.INVALID_PARAMETER, "offset"),
        ({"offset": 1 << 63}, codes.INVALID_PARAMETER, "offset"),
        ({"offset": 1}, codes.SYSTEM_ERROR, "no message"),
        ({"group": None}, codes.INVALID_PARAMETER, "group"),
        ({"group": "no such name!"}, codes.INVALID_PARAMETER, "group"),
        ({"delayLevel": None}, codes.INVALID_PARAMETER, "delayLevel"),
        ({"delayLevel": "soon"}, codes.INVALID_PARAMETER, "delayLevel"),
        ({"maxReconsumeTimes": "x"}, codes.INVALID_PARAMETER, "maxReconsumeTimes"),
    ],
)
def test_what_cannot_be_sent_back_says_why(
    broker: RemotingBroker, changes: dict[str, Any], code: int, rule: str
) -> None:
    before = broker.log.end_offset
    answer = back(broker, **changes)
    assert answer.code == code
    assert rule in (answer.remark or "")
    assert broker.log.end_offset - before < 1000, "at most the retry topic was made"
    assert not broker.stored("%DLQ%g")


def test_a_replica_sends_consumers_to_the_master(broker: RemotingBroker) -> None:
    broker.is_master = False
    assert back(broker).code == codes.SERVICE_NOT_AVAILABLE


def test_how_far_each_level_is_delivered(broker: RemotingBroker) -> None:
    back(broker, delayLevel=2)
    back(broker, delayLevel=2)
    back(broker, delayLevel=4)
    broker.turns.run(6000)
    answer = broker.answer(codes.GET_ALL_DELAY_OFFSET)
    document = orjson.loads(answer.body)
    assert set(document) == {"dataVersion", "offsetTable"}
    assert {level: offset for level, offset in document["offsetTable"].items() if offset} == {"2": 2}
    assert len(document["offsetTable"]) == 18
    assert len(broker.stored(SCHEDULE_TOPIC, 3)) == 1


def test_the_state_shows_the_levels(broker: RemotingBroker) -> None:
    back(broker, delayLevel=2)
    document = orjson.loads(broker.answer(codes.BROKER_STATE).body)["schedule"]
    assert document["levels"][1] == {"level": 2, "delayMs": 5000, "waiting": 1, "lateMs": -1}
    assert document["delivered"] == 0
