"""What requests need: the rows of the registry read what requests of clients carry."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.access.decision import Demand
from remoting.access.demands import topic_demand
from remoting.access.model import CLUSTER, CREATE, GET, GROUP, LIST, PUB, SUB, TOPIC, UPDATE
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.registry import demands_of


def demands(code: int, ext: dict[str, str] | None = None, body: Any = None) -> list[Demand]:
    content = b"" if body is None else orjson.dumps(body)
    return demands_of(Command(code, ext=ext, body=content), "DefaultCluster")


def test_sends() -> None:
    assert demands(codes.SEND_MESSAGE, {"topic": "T", "producerGroup": "p"}) == [Demand(TOPIC, "T", (PUB,))]
    for code in (codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE):
        assert demands(code, {"b": "T", "a": "p"}) == [Demand(TOPIC, "T", (PUB,))]
        assert demands(code, {"b": "%RETRY%g", "a": ""}) == [Demand(GROUP, "g", (SUB,))]
    assert demands(codes.SEND_MESSAGE, {}) == [Demand(TOPIC, "", (PUB,))]


def test_pulls_and_pops() -> None:
    both = [Demand(TOPIC, "T", (SUB,)), Demand(GROUP, "g", (SUB,))]
    for code in (codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE, codes.BULK_READ, codes.POP_MESSAGE, codes.ACK_MESSAGE):
        assert demands(code, {"topic": "T", "consumerGroup": "g"}) == both
    assert demands(codes.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}) == [Demand(GROUP, "g", (SUB,))]
    pop_retry = {"topic": "%RETRY%g+T", "consumerGroup": "g"}
    assert demands(codes.BULK_READ, pop_retry) == [Demand(GROUP, "g", (SUB,))]
    # without a group, a pull is not free of charge
    assert Demand(GROUP, "", (SUB,)) in demands(codes.PULL_MESSAGE, {"topic": "T"})


@pytest.mark.parametrize("code", [codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE, codes.BULK_READ])
def test_who_may_read_as_one_group_reads_no_others_retry_topic(code: int) -> None:
    for topic in ("%RETRY%others", "%RETRY%others+T"):
        found = demands(code, {"topic": topic, "consumerGroup": "mine"})
        assert found == [Demand(GROUP, "others", (SUB,)), Demand(GROUP, "mine", (SUB,))]


@pytest.mark.parametrize("group", ["mine", "CLIENT_INNER_PRODUCER", ""])
def test_who_sends_to_a_retry_topic_needs_its_group_whatever_it_calls_itself(group: str) -> None:
    assert demands(codes.SEND_MESSAGE_V2, {"b": "%RETRY%others", "a": group}) == [Demand(GROUP, "others", (SUB,))]


def test_heartbeats_need_what_they_subscribe_to() -> None:
    body = {
        "clientID": "c",
        "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [
            {"groupName": "g", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%g"}, {"topic": "U"}]}
        ],
    }
    assert demands(codes.HEART_BEAT, {}, body) == [
        Demand(GROUP, "g", (SUB,)),
        Demand(TOPIC, "T", (SUB,)),
        Demand(TOPIC, "U", (SUB,)),
    ]
    assert demands(codes.HEART_BEAT, {}, {"clientID": "c", "producerDataSet": [{"groupName": "p"}]}) == []


def test_bodies_that_name_topics_and_groups() -> None:
    acks = {"brokerName": "b", "acks": [{"c": "g", "t": "T"}, {"c": "g", "t": "T"}]}
    both = [Demand(GROUP, "g", (SUB,)), Demand(TOPIC, "T", (SUB,))]
    assert demands(codes.BATCH_ACK_MESSAGE, {}, acks) == both
    locks = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "T", "queueId": 1}, {"topic": "%RETRY%g"}]}
    assert demands(codes.LOCK_BATCH_MQ, {}, locks) == both
    assert demands(codes.QUERY_ASSIGNMENT, {}, {"topic": "T", "consumerGroup": "g"}) == both[::-1]
    config = {"groupName": "g", "consumeEnable": True}
    assert demands(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, config) == [Demand(GROUP, "g", (CREATE, UPDATE))]
    listed = {"topicConfigList": [{"topicName": "T"}, {"topicName": "U"}]}
    assert [each.name for each in demands(codes.UPDATE_AND_CREATE_TOPIC_LIST, {}, listed)] == ["T", "U"]


@pytest.mark.parametrize("code", [codes.HEART_BEAT, codes.LOCK_BATCH_MQ, codes.BATCH_ACK_MESSAGE])
@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"consumerDataSet":7,"mqSet":7,"acks":7}'])
def test_what_a_body_is_about_must_be_clear(code: int, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        demands_of(Command(code, body=body), "c")
    assert caught.value.code == codes.NO_PERMISSION


def test_a_body_names_a_bounded_number() -> None:
    for code, body in (
        (codes.BATCH_ACK_MESSAGE, {"acks": [{"c": f"g{number}", "t": "T"} for number in range(10_001)]}),
        (codes.BATCH_ACK_MESSAGE, {"acks": [{"c": f"g{number}", "t": "T"} for number in range(2049)]}),
        (codes.HEART_BEAT, {"consumerDataSet": [{"groupName": f"g{number}"} for number in range(4097)]}),
        (codes.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": [{"topicName": f"t{n}"} for n in range(4097)]}),
    ):
        with pytest.raises(RequestError, match=r"4096|10000"):
            demands(code, {}, body)
    assert len(demands(codes.BATCH_ACK_MESSAGE, {}, {"acks": [{"c": f"g{n}", "t": "T"} for n in range(2048)]})) == 4096


def test_the_cluster_itself() -> None:
    read, change = Demand(CLUSTER, "DefaultCluster", (GET, LIST)), Demand(CLUSTER, "DefaultCluster", (UPDATE,))
    assert demands(codes.CLUSTER_VIEW) == [read]
    assert demands(codes.UPDATE_BROKER_CONFIG) == [change]
    assert demands(codes.AUTH_CREATE_USER, {"username": "u"}) == [change]
    assert demands(77_777) == [change]
    assert demands(codes.VIEW_MESSAGE_BY_ID, {"offset": "1"}) == [Demand(CLUSTER, "DefaultCluster", (SUB, GET))]


def test_who_answers_a_check_says_where_half_messages_wait() -> None:
    """Java's client gives the topic of the question back; the broker asks again for that of the message."""
    assert demands(codes.END_TRANSACTION, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}) == []
    assert demands(codes.END_TRANSACTION, {"topic": "orders"}) == [Demand(TOPIC, "orders", (PUB,))]


def test_a_retry_topic_of_a_pop_group_is_its_groups() -> None:
    assert topic_demand("%RETRY%g+orders", SUB) == Demand(GROUP, "g", (SUB,))
    assert topic_demand("%DLQ%g", SUB) == Demand(GROUP, "g", (SUB,))
