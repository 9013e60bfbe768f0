"""What tools look into: figures by name and key, queue units, all offsets."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from remoting import codes
from tests.support.remoting_broker import RemotingBroker, remoting_master


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def pull(broker: RemotingBroker) -> None:
    ext = {"consumerGroup": "g", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
    assert broker.answer(codes.PULL_MESSAGE, {**ext, "subscription": "*", "commitOffset": 0}).code == 0


def figures(broker: RemotingBroker, name: str, key: str) -> Any:
    answer = broker.answer(codes.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
    return orjson.loads(answer.body) if answer.code == 0 else answer.code


def test_figures_of_what_was_given_and_stored(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    statistics = broker.counters.statistics
    statistics.stored_in("t", 3, 300)
    pull(broker)
    statistics.note_sent_back("t", "g")
    got = figures(broker, "GROUP_GET_NUMS", "t@g")
    assert got.keys() == {"statsMinute", "statsHour", "statsDay"}
    assert got["statsMinute"]["sum"] == 3
    assert got["statsMinute"]["avgpt"] == 3.0
    assert figures(broker, "GROUP_GET_SIZE", "t@g")["statsDay"]["sum"] > 100
    assert figures(broker, "TOPIC_PUT_NUMS", "t")["statsHour"]["sum"] == 3
    assert figures(broker, "TOPIC_PUT_SIZE", "t")["statsHour"]["sum"] == 300
    assert figures(broker, "SNDBCK_PUT_NUMS", "t@g")["statsDay"]["sum"] == 1
    assert figures(broker, "GROUP_GET_LATENCY", "0@t@g")["statsDay"]["sum"] >= 0
    assert figures(broker, "BROKER_GET_NUMS", "cluster")["statsDay"]["sum"] == 3
    assert figures(broker, "BROKER_PUT_NUMS", "cluster")["statsDay"]["sum"] == 3
    statistics.sample(broker.turns.time())
    progress = broker.answer(codes.GET_CONSUME_STATS, {"consumerGroup": "g", "topic": "t"}).body
    assert b'"consumeTps":0.0,' not in progress
    assert b'"topicPutTps":0.0}' not in broker.answer(codes.GET_TOPIC_STATS_INFO, {"topic": "t"}).body


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("GROUP_GET_NUMS", "t"),
        ("GROUP_GET_LATENCY", "x@t@g"),
        ("BROKER_PUT_NUMS", "another cluster"),
        ("NO_SUCH_NAME", "t"),
    ],
)
def test_what_was_never_counted_is_an_error(broker: RemotingBroker, name: str, key: str) -> None:
    assert figures(broker, name, key) == codes.SYSTEM_ERROR


def test_the_units_of_a_queue(broker: RemotingBroker) -> None:
    broker.send("a", "b", "c")
    ext = {"topic": "t", "queueId": 0, "index": 1, "count": 5, "consumerGroup": "g"}
    body = orjson.loads(broker.answer(codes.QUERY_CONSUME_QUEUE, ext).body)
    assert (body["minQueueIndex"], body["maxQueueIndex"], body["filterData"]) == (0, 3, "g@t is not online!")
    [second, third] = body["queueData"]
    assert third["physicOffset"] == second["physicOffset"] + second["physicSize"]
    assert second.keys() == {"eval", "physicOffset", "physicSize", "tagsCode"}
    beyond = orjson.loads(broker.answer(codes.QUERY_CONSUME_QUEUE, {**ext, "index": 3}).body)
    assert beyond["queueData"] == []
    assert broker.answer(codes.QUERY_CONSUME_QUEUE, {**ext, "queueId": 9}).code == codes.SYSTEM_ERROR


def test_all_offsets_as_a_slave_asks(broker: RemotingBroker) -> None:
    broker.metadata.commit_offset("g", "t", 0, 7, None)
    broker.turns.run(10)
    body = orjson.loads(broker.answer(codes.GET_ALL_CONSUMER_OFFSET).body)
    assert body["offsetTable"] == {"t@g": {"0": 7}}
    assert body["dataVersion"].keys() == {"counter", "stateVersion", "timestamp"}
