"""A broker's registration at the name servers: who waits for it is told when all of them know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson
import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.controllers.name_server_link import NameServerLink
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.roles.effects import Role
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import LogboomError, RequestTimeout
from remoting.frame import Command

NAMES = BrokerNames("DefaultCluster", "broker-a", "127.0.0.1:10911", "127.0.0.1:10912", "127.0.0.1:8081")
Answered = Callable[[Command | LogboomError], None]


class Link:
    """Keeps requests: (address, topics that it names, timeout, how to answer it)."""

    def __init__(self) -> None:
        self.name_servers: tuple[str, ...] = ("n0", "n1", "n2")
        self.requests: list[tuple[str, list[str], int, Answered]] = []

    def request(
        self, address: str, code: int, ext: Mapping[str, str], body: Bytes, timeout_ms: int, answered: Answered
    ) -> None:
        assert code == codes.REGISTER_BROKER
        table = orjson.loads(bytes(body))["topicConfigSerializeWrapper"]["topicConfigTable"]
        self.requests.append((address, sorted(table), timeout_ms, answered))

    def answer(self, result: Command | LogboomError | None = None) -> None:
        """Answer the oldest."""
        self.requests.pop(0)[3](result or Command(codes.SUCCESS))


class Place:
    def __init__(self) -> None:
        self.sender = Link()
        self.topics: dict[str, TopicConfig] = {}
        self.link = NameServerLink(self.sender, NAMES, lambda: self.topics, 30_000, lambda: 1)
        self.known: list[str] = []

    def wait(self, name: str) -> None:
        self.link.when_known(lambda: self.known.append(name))


@pytest.fixture
def place() -> Place:
    place = Place()
    place.link.role_changed(Role.MASTER, 1, 1, 0)
    place.sender.requests.clear()
    return place


def test_who_waits_is_told_when_every_name_server_has_answered(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.topics["new"] = TopicConfig("new", 4, 4)
    place.wait("first")
    assert [(address, topics) for address, topics, _, _ in place.sender.requests] == [
        (address, ["new"]) for address in ("n0", "n1", "n2")
    ]
    place.sender.answer()
    place.sender.answer(Command(codes.SYSTEM_ERROR, remark="no"))
    assert place.known == []
    place.sender.answer(RequestTimeout("silent"))
    assert place.known == ["first"]
    assert caplog.messages == ["name server n1 refuses the registration: no"]


def test_those_who_come_meanwhile_share_the_next_registration(place: Place) -> None:
    place.wait("first")
    for name in ("second", "third"):
        place.topics[name] = TopicConfig(name, 1, 1)
        place.wait(name)
    assert len(place.sender.requests) == 3
    for _ in range(3):
        place.sender.answer()
    assert place.known == ["first"]
    assert [topics for _, topics, _, _ in place.sender.requests] == [["second", "third"]] * 3
    for _ in range(3):
        place.sender.answer()
    assert place.known == ["first", "second", "third"]
    assert place.sender.requests == []


def test_a_silent_name_server_is_not_waited_for_as_long_as_by_the_clock(place: Place) -> None:
    place.wait("first")
    assert {timeout_ms for _, _, timeout_ms, _ in place.sender.requests} == {1000}


def test_without_a_role_nobody_waits() -> None:
    place = Place()
    place.wait("first")
    assert place.known == ["first"]
    assert place.sender.requests == []


def test_one_who_waits_again_from_within_is_not_forgotten(place: Place) -> None:
    place.link.when_known(lambda: place.wait("inner"))
    for _ in range(3):
        place.sender.answer()
    assert place.known == []
    for _ in range(3):
        place.sender.answer()
    assert place.known == ["inner"]
