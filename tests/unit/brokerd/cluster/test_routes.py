"""Routes: own tables first, the others from the name servers, asked once and kept for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from brokerd.cluster.routes import BrokerRoute, OwnGroup, Routes, decode_route
from brokerd.metadata.configs import TopicConfig
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError, RequestError

DOCUMENT = {
    "brokerDatas": [
        {
            "brokerName": "broker-b",
            "cluster": "c",
            "brokerAddrs": {"0": "127.0.0.1:2", "2": "127.0.0.1:4"},
            "grpcAddrs": {"2": "127.0.0.1:82", "0": "127.0.0.1:81"},
        },
        {"brokerName": "broker-a", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:9"}},
        {"brokerName": "broker-c", "cluster": "c", "brokerAddrs": {"1": "127.0.0.1:3"}},
    ],
    "queueDatas": [
        {"brokerName": "broker-a", "perm": 2, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0},
        {
            "brokerName": "broker-b",
            "perm": 6,
            "readQueueNums": 4,
            "writeQueueNums": 2,
            "topicSysFlag": 0,
            "messageType": "FIFO",
        },
        {"brokerName": "broker-c", "perm": 4, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0},
        {"brokerName": "nobody", "perm": 6, "readQueueNums": 1, "writeQueueNums": 1, "topicSysFlag": 0},
    ],
}


class Setting:
    def __init__(self) -> None:
        self.now_ms = 0
        self.own_topics = {"t": TopicConfig("t", 8, 8, attributes={"message.type": "DELAY"})}
        self.asked: list[tuple[str, Callable[[Bytes | LogboomError], None]]] = []
        own = OwnGroup("broker-a", {0: "127.0.0.1:1"}, ["127.0.0.1:80"])
        self.routes = Routes(
            self,  # type: ignore[arg-type]
            lambda: own,
            lambda topic, done: self.asked.append((topic, done)),
            lambda: self.now_ms,
        )
        self.answers: list[Any] = []

    def topic(self, name: str) -> TopicConfig | None:
        return self.own_topics.get(name)

    def ask(self, topic: str = "t") -> None:
        self.routes.route(topic, self.answers.append)

    def names(self) -> list[str]:
        answer: Sequence[BrokerRoute] = self.answers[-1]
        return [route.broker_name for route in answer]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_own_tables_and_the_name_servers_together(setting: Setting) -> None:
    setting.ask()
    assert setting.answers == []
    setting.asked[0][1](orjson.dumps(DOCUMENT))
    assert setting.names() == ["broker-a", "broker-b", "broker-c"]
    own, other, _ = setting.answers[0]
    assert (own.perm, own.read_queue_nums, own.message_type) == (6, 8, "DELAY")
    assert own.grpc_addresses == ["127.0.0.1:80"]
    assert other == BrokerRoute(
        "broker-b",
        {0: "127.0.0.1:2", 2: "127.0.0.1:4"},
        ["127.0.0.1:81", "127.0.0.1:82"],
        4,
        2,
        6,
        "FIFO",
    )


def test_one_question_for_all_who_wait_and_for_a_while(setting: Setting) -> None:
    for _ in range(3):
        setting.ask()
    assert len(setting.asked) == 1
    setting.asked[0][1](orjson.dumps(DOCUMENT))
    assert len(setting.answers) == 3
    setting.now_ms = 2999
    setting.own_topics.pop("t")
    setting.ask()
    assert setting.names() == ["broker-b", "broker-c"], "own tables are always the present ones"
    setting.now_ms = 3000
    setting.ask()
    assert len(setting.asked) == 2
    setting.routes.forget("t")


def test_nobody_has_it(setting: Setting) -> None:
    setting.ask("u")
    setting.asked[0][1](RequestError(codes.TOPIC_NOT_EXIST, "no"))
    (answer,) = setting.answers
    assert isinstance(answer, RequestError)
    assert answer.code == codes.TOPIC_NOT_EXIST


def test_name_servers_that_do_not_answer_leave_what_is_known(setting: Setting) -> None:
    setting.ask()
    setting.asked[0][1](ConnectionLost("gone"))
    assert setting.names() == ["broker-a"]
    setting.now_ms = 5000
    setting.ask()
    setting.asked[1][1](orjson.dumps(DOCUMENT))
    setting.now_ms = 10_000
    setting.ask()
    setting.asked[2][1](ConnectionLost("gone"))
    assert setting.names() == ["broker-a", "broker-b", "broker-c"]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"brokerDatas":[1],"queueDatas":[]}'])
def test_unreadable_routes_do_not_hurt(setting: Setting, body: bytes) -> None:
    setting.ask()
    setting.asked[0][1](body)
    assert setting.names() == ["broker-a"]


def test_the_document_may_be_a_view() -> None:
    assert len(decode_route(memoryview(orjson.dumps(DOCUMENT)))) == 3
