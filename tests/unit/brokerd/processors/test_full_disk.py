"""What clients are told while the disk is full: reads go on, whatever needs a record is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from remoting import codes
from remoting.errors import RequestError
from tests.support.remoting_broker import RemotingBroker, remoting_master
from tests.unit.brokerd.processors.test_pop import ext, handles_of, named, pop

FULL = RequestError(codes.SERVICE_NOT_AVAILABLE, "this broker's disk is 95 % full, and retention.refuse_percent is 90")


@pytest.fixture
def broker() -> RemotingBroker:
    """Five messages, of which two are popped; then the disk is full."""
    broker = remoting_master()
    for number in range(5):
        broker.send(str(number))
    return broker


def read(broker: RemotingBroker) -> tuple[int, dict[str, str]]:
    fields = {"consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 9, "sysFlag": 5}
    fields |= {"commitOffset": 3, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
    answer = broker.answer(codes.PULL_MESSAGE, fields)
    return answer.code, dict(answer.ext)


def test_reads_go_on(broker: RemotingBroker) -> None:
    before = read(broker)
    broker.log.refusal = FULL
    assert read(broker) == before
    assert before[0] == codes.SUCCESS
    for code in (codes.GET_MAX_OFFSET, codes.GET_MIN_OFFSET):
        assert broker.answer(code, {"topic": "t", "queueId": 0}).code == codes.SUCCESS
    assert broker.answer(codes.GET_ALL_TOPIC_CONFIG).code == codes.SUCCESS


TOPIC = {"topic": "n", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "order": "false", "defaultTopic": "TBW102"}
COMMIT = {"consumerGroup": "g", "topic": "t", "queueId": 0, "commitOffset": 3}


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (codes.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topicFilterType": "SINGLE_TAG"}, b""),
        (codes.DELETE_TOPIC_IN_BROKER, {"topic": "t"}, b""),
        (codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"new"}'),
        (codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, b""),
        (codes.UPDATE_CONSUMER_OFFSET, COMMIT, b""),
    ],
)
def test_changes_are_refused_with_the_reason_and_made_when_there_is_room(
    broker: RemotingBroker, code: int, fields: dict[str, Any], body: bytes
) -> None:
    broker.log.refusal = FULL
    opaque = broker.send_request(code, fields, body)
    broker.turns.run(100)
    answer = broker.peer.answers[opaque]
    assert (answer.code, answer.remark) == (codes.SERVICE_NOT_AVAILABLE, str(FULL))
    broker.log.refusal = None
    opaque = broker.send_request(code, fields, body)
    broker.turns.run(100)
    assert broker.peer.answers[opaque].code == codes.SUCCESS


def test_nothing_is_popped_that_could_not_be_recorded(broker: RemotingBroker) -> None:
    broker.log.refusal = FULL
    answer = pop(broker)
    assert (answer.code, answer.remark, answer.body) == (codes.SERVICE_NOT_AVAILABLE, str(FULL), b"")
    broker.log.refusal = None
    assert len(handles_of(pop(broker, initMode=0))) == 5, "nobody has them"


def test_an_ack_that_could_not_be_recorded_is_no_success(broker: RemotingBroker) -> None:
    [first, *_] = handles_of(pop(broker, initMode=0))
    broker.log.refusal = FULL
    for code in (codes.ACK_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME):
        answer = broker.answer(code, named(*first, invisibleTime=20_000))
        assert answer.code not in (codes.SUCCESS, codes.MESSAGE_ILLEGAL), answer.remark
    broker.log.refusal = None
    assert broker.answer(codes.ACK_MESSAGE, named(*first)).code == codes.SUCCESS


def test_a_pop_that_waits_is_answered_in_the_end(broker: RemotingBroker) -> None:
    handles_of(pop(broker, initMode=0))
    opaque = broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=5000))
    broker.log.refusal = FULL
    broker.turns.run(6000)
    assert broker.peer.answers[opaque].code in (codes.POLLING_TIMEOUT, codes.SERVICE_NOT_AVAILABLE)
