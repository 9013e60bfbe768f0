"""Sends to topics that are not there: refused, or in development the topic is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd.metadata.configs import TopicConfig
from remoting import codes
from remoting.errors import LogboomError, NotMaster
from tests.unit.brokerd.sending.test_send import TOPICS, Broker, Connection, request

pytestmark = pytest.mark.usefixtures("both_kernels")


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.store.close()


class Maker:
    """Makes every topic, or refuses to."""

    def __init__(self, topics: dict[str, TopicConfig]) -> None:
        self.topics = topics
        self.wanted: list[tuple[str, str, int, bool]] = []
        self.error: LogboomError | None = None

    def __call__(self, name: str, template: str, queues: int, *, is_unit: bool = False) -> Any:
        self.wanted.append((name, template, queues, is_unit))
        if self.error is None and template == "TBW102":
            self.topics[name] = TopicConfig(name, queues, queues)
        return self.error


def test_who_makes_a_topic_by_sending_is_answered_when_it_is_in_the_routes() -> None:
    topics = dict(TOPICS)
    routed: list[Callable[[], None]] = []
    development = Broker(make_topic=Maker(topics), topics=topics, when_known=routed.append)
    connection = Connection()
    development.handle(connection, [request(1, b="New", c="TBW102", d="4"), request(2, b="T")])
    development.acknowledger.complete()
    assert [answer.opaque for answer in connection.answers] == [2]
    routed.pop()()
    assert [(answer.opaque, answer.code) for answer in connection.answers] == [(2, 0), (1, 0)]
    development.handle(connection, [request(3, b="New", c="TBW102", d="4")])
    development.acknowledger.complete()
    assert connection.answers[-1].opaque == 3
    assert not routed


def test_a_missing_topic_is_made_only_where_that_is_switched_on(broker: Broker) -> None:
    topics = dict(TOPICS)
    maker = Maker(topics)
    development = Broker(make_topic=maker, topics=topics)
    connection = Connection()
    wish = {"c": "TBW102", "d": "4"}
    development.handle(
        connection, [request(1, b="New", **wish), request(2, b="New", **wish), request(3, b="Other", c="U", d="4")]
    )
    development.handle(
        connection, [request(4, b="T"), request(5, b="%DLQ%other", **wish), request(6, b="Third", d="many")]
    )
    development.acknowledger.complete()
    assert maker.wanted == [("New", "TBW102", 4, False), ("Other", "U", 4, False)]
    assert {answer.opaque: answer.code for answer in connection.answers} == {
        **{1: 0, 2: 0, 3: codes.TOPIC_NOT_EXIST},
        **{4: 0, 5: codes.TOPIC_NOT_EXIST, 6: codes.INVALID_PARAMETER},
    }
    maker.error = NotMaster()
    development.handle(connection, [request(7, b="Fourth", **wish)])
    assert connection.answers[-1].code == codes.SERVICE_NOT_AVAILABLE
    connection = Connection()
    broker.handle(connection, [request(1, b="New", **wish)])
    assert connection.answers[0].code == codes.TOPIC_NOT_EXIST
