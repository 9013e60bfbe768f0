"""Queues that the broker assigns, and how members ask for messages: what is decided survives in the log."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from brokerd.cluster.routes import BrokerRoute
from brokerd.metadata.consumer_rules import RequestMode
from remoting import codes
from remoting.frame import Command
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    made = remoting_master()
    made.topic("t", 4)
    return made


def join(broker: RemotingBroker, *client_ids: str) -> None:
    for number, client_id in enumerate(client_ids):
        document = {"clientID": client_id, "consumerDataSet": [{"groupName": "g"}]}
        broker.answer(codes.HEART_BEAT, body=orjson.dumps(document), peer=Peer(number))


def query(broker: RemotingBroker, client_id: str = "c1", **changes: Any) -> Any:
    document = {
        "topic": "t",
        "consumerGroup": "g",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **changes,
    }
    answer = broker.answer(codes.QUERY_ASSIGNMENT, body=orjson.dumps(document))
    assert answer.code == 0, answer.remark
    return orjson.loads(answer.body).get("messageQueueAssignments")


def queues(found: Any) -> list[tuple[str, int]]:
    assert {each["messageQueue"]["topic"] for each in found} <= {"t"}
    return [(each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"]) for each in found]


def set_mode(broker: RemotingBroker, **changes: Any) -> Command:
    document = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0, **changes}
    return broker.answer(codes.SET_MESSAGE_REQUEST_MODE, body=orjson.dumps(document))


def test_members_get_their_parts_of_all_brokers(broker: RemotingBroker) -> None:
    broker.other_routes = [
        BrokerRoute("broker-b", {}, [], 2, 2, 6, "NORMAL"),
        BrokerRoute("broker-c", {}, [], 2, 2, 2, "NORMAL"),
    ]
    join(broker, "c2", "c1")
    assert queues(query(broker, "c1")) == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]
    assert queues(query(broker, "c2")) == [("broker-a", 3), ("broker-b", 0), ("broker-b", 1)]
    by_circle = query(broker, "c2", strategyName="AVG_BY_CIRCLE")
    assert queues(by_circle) == [("broker-a", 1), ("broker-a", 3), ("broker-b", 1)]
    assert {(each["mode"], *each["attachments"]) for each in by_circle} == {("PULL",)}


def test_who_is_not_there_gets_nothing_and_who_cannot_be_answered_no_list(broker: RemotingBroker) -> None:
    assert query(broker) is None, "nobody is a member"
    join(broker, "c1")
    assert query(broker, "stranger") == []
    assert query(broker, strategyName="NEAREST") is None
    assert query(broker, topic="nowhere") is None
    assert len(query(broker, "stranger", messageModel="BROADCASTING")) == 4


def test_modes_are_decided_told_and_forgotten(broker: RemotingBroker) -> None:
    join(broker, "c1", "c2", "c3")
    assert set_mode(broker).code == 0
    assert [(each["mode"], *queues([each])) for each in query(broker)] == [("POP", ("broker-a", -1))]
    assert set_mode(broker, popShareQueueNum=1).code == 0
    assert set_mode(broker, popShareQueueNum=1).remark == "unchanged"
    assert queues(query(broker)) == [("broker-a", 0), ("broker-a", 1), ("broker-a", 2)]
    entry = {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 1, "topic": "t"}
    told = orjson.loads(broker.answer(codes.GET_ALL_MESSAGE_REQUEST_MODE).body)
    assert told == {"messageRequestModeMap": {"t": {"g": entry}}}
    broker.become_replica()
    assert broker.metadata.request_mode("g", "t") == RequestMode("POP", 1), "it is in the log"
    broker.become_master()
    broker.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert broker.metadata.request_mode("g", "t") is None


def test_the_answer_waits_until_the_mode_is_acknowledged(broker: RemotingBroker) -> None:
    broker.log.acknowledges = False
    body = orjson.dumps({"topic": "t", "consumerGroup": "g", "mode": "POP"})
    assert broker.ask(codes.SET_MESSAGE_REQUEST_MODE, body=body) is None
    broker.log.acknowledge()
    assert [answer.code for answer in broker.peer.answers.values()] == [0]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "%RETRY%g"}, codes.NO_PERMISSION),
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"consumerGroup": "nobody"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"mode": "PUSH"}, codes.INVALID_PARAMETER),
        ({"topic": ""}, codes.INVALID_PARAMETER),
        ({"popShareQueueNum": "many"}, codes.INVALID_PARAMETER),
        ({"popShareQueueNum": 1 << 40}, codes.INVALID_PARAMETER),
    ],
)
def test_modes_that_are_refused(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    answer = set_mode(broker, **changes)
    assert (answer.code, bool(answer.remark)) == (code, True)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"topic":1}', b'{"topic":"t","consumerGroup":"g","clientId":""}']
)
def test_bad_questions_are_refused(broker: RemotingBroker, body: bytes) -> None:
    assert broker.answer(codes.QUERY_ASSIGNMENT, body=body).code == codes.INVALID_PARAMETER
