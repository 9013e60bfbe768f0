"""Members of groups: joining, leaving, silence, closed connections, and who hears of it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.members import registry as module
from brokerd.members.consumer_groups import ClientInfo, ConsumerData, Subscription
from brokerd.members.registry import ClientRegistry
from remoting.errors import RequestError
from tests.support.open_guard import yes


class Wire(str):
    """A connection: equal to any other of its name."""

    closed = False

    def close(self) -> None:
        self.closed = True


class Registry:
    """A registry whose clock and listeners the test holds."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.changed: list[str] = []
        self.gone: list[str] = []
        self.wires: dict[str, Wire] = {}
        self.clients = ClientRegistry(lambda: self.now_ms, lambda: 1_700_000_000_000 + self.now_ms, yes)
        self.clients.group_listeners.append(self.changed.append)
        self.clients.gone_listeners.append(self.gone.append)

    def beat(self, connection: str, client_id: str = "c1", group: str = "g", **topics: int) -> None:
        wanted = {topic: Subscription(topic, "*", "TAG", version) for topic, version in (topics or {"t": 1}).items()}
        data = ConsumerData(group, subscriptions=wanted)
        wire: Any = self.wires.setdefault(connection, Wire(connection))
        self.clients.remoting_heartbeat(wire, ClientInfo(client_id, "1.2.3.4:5", "JAVA", "479"), ["pg"], [data])

    def grpc(self, connection: str, client_id: str = "c1", group: str = "g", topics: tuple[str, ...] = ()) -> None:
        info = ClientInfo(client_id, "1.2.3.4:5", "PYTHON", "5", frozenset(topics), group, {"t": "*"} if group else {})
        self.clients.heartbeat(info, connection)

    def ids(self, group: str = "g") -> list[str]:
        return [info.client_id for info in self.clients.members(group)]


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_members_are_there_when_the_heartbeat_returns(registry: Registry) -> None:
    registry.beat("x")
    registry.grpc("y", "c2")
    assert registry.ids() == ["c1", "c2"]
    assert [member.info.client_id for member in registry.clients.remoting_members("g")] == ["c1"]
    assert [info.client_id for info in registry.clients.producers("pg")] == ["c1"]
    assert registry.clients.is_alive("c1")
    assert not registry.clients.is_alive("c3")
    assert registry.clients.groups() == ["g"]


def test_only_changes_are_told(registry: Registry) -> None:
    registry.beat("x")
    registry.beat("x")
    registry.grpc("y", "c2")
    registry.grpc("y", "c2")
    assert registry.changed == ["g", "g"]
    registry.beat("x", t=1, u=2)
    registry.beat("x", t=1, u=3)
    registry.beat("x", t=1)
    assert registry.changed == ["g"] * 5


def test_the_connection_is_the_identity(registry: Registry) -> None:
    registry.beat("x", "same")
    registry.beat("y", "same")
    assert registry.ids() == ["same", "same"]
    registry.clients.connection_closed("x")
    assert registry.ids() == ["same"]
    assert registry.gone == []
    registry.beat("y", "other")
    assert registry.ids() == ["other"]
    assert registry.gone == ["same"] * 1
    registry.clients.connection_closed("y")
    assert registry.gone == ["same", "other"]
    assert registry.clients.consumer_group("g") is None
    assert registry.clients.groups() == []


def test_several_grpc_clients_share_a_connection(registry: Registry) -> None:
    registry.grpc("x", "c1")
    registry.grpc("x", "c2")
    registry.clients.unregister("x", "c1", "g")
    assert registry.ids() == ["c2"]
    assert registry.gone == ["c1"]
    registry.clients.connection_closed("x")
    assert registry.gone == ["c1", "c2"]


def test_producers_of_grpc_are_alive_too(registry: Registry) -> None:
    registry.grpc("x", "p1", group="", topics=("t", "u"))
    registry.grpc("x", "p2", group="")
    assert registry.clients.is_alive("p1")
    assert registry.clients.is_alive("p2")
    registry.clients.unregister("x", "p1", "")
    assert registry.gone == ["p1"]
    assert registry.clients.producers("t") == []


def test_silence_ends_a_membership(registry: Registry) -> None:
    registry.beat("x", "c1")
    registry.now_ms = 100_000
    registry.beat("y", "c2")
    registry.now_ms = 120_000
    registry.clients.expire()
    assert registry.ids() == ["c1", "c2"]
    registry.now_ms = 120_001
    registry.clients.expire()
    assert (registry.wires["x"].closed, registry.wires["y"].closed) == (True, False)
    assert registry.ids() == ["c2"]
    assert registry.gone == ["c1"]


def test_a_fingerprint_stands_for_subscriptions(registry: Registry) -> None:
    info = ClientInfo("c1", "1.2.3.4:5", "JAVA", "479")
    data, bare = ConsumerData("g", subscriptions={"t": Subscription("t")}), ConsumerData("g")
    wire: Any = Wire("x")

    def beat(fingerprint: int) -> bool:
        return registry.clients.remoting_heartbeat(wire, info, ["pg"], [bare], fingerprint, without_subscriptions=True)

    assert not beat(77), "a broker that was not told yet asks for the subscriptions"
    assert registry.ids() == ["c1"], "but counts it as a member at once"
    assert registry.clients.remoting_heartbeat(wire, info, ["pg"], [data], 77)
    registry.now_ms = 119_000
    assert beat(77)
    assert not beat(78)
    assert not beat(0)
    registry.now_ms = 200_000
    registry.clients.expire()
    assert registry.ids() == ["c1"]
    group = registry.clients.consumer_group("g")
    assert group is not None
    assert set(group.subscriptions) == {"t"}


def test_newer_subscriptions_replace_older_ones(registry: Registry) -> None:
    registry.beat("x", t=5, u=5)
    registry.beat("y", "c2", t=4, u=6)
    group = registry.clients.consumer_group("g")
    assert group is not None
    assert {topic: wanted.version for topic, wanted in group.subscriptions.items()} == {"t": 5, "u": 6}
    registry.beat("x", t=7)
    assert set(group.subscriptions) == {"t"}


def test_leaving_names_groups(registry: Registry) -> None:
    registry.beat("x")
    registry.clients.leave("x", "", "g")
    assert registry.ids() == []
    assert registry.clients.is_alive("c1"), "still a producer"
    registry.clients.leave("x", "", "g")
    registry.clients.leave("z", "pg", "g")
    registry.clients.leave("x", "pg", "")
    assert registry.gone == ["c1"]


def test_there_is_a_limit(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MEMBERS", 2)
    registry.grpc("x", "c1")
    registry.grpc("y", "c2")
    with pytest.raises(RequestError, match="too many clients"):
        registry.grpc("z", "c3", group="h")
    registry.grpc("x", "c1")
    assert registry.clients.consumer_group("h") is None
    registry.clients.connection_closed("z")


def test_the_subscriptions_of_a_group_are_limited(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever topics its clients say next, and its members are members all the same."""
    monkeypatch.setattr(module, "MAX_SUBSCRIPTIONS", 3)
    for number in range(5):
        wanted = {f"t{number}": "*", "t0": "a" * (number + 1)}
        registry.clients.heartbeat(
            ClientInfo(f"c{number}", "1.2.3.4:5", "GO", "5", group="g", subscriptions=wanted), "x"
        )
    group = registry.clients.consumer_group("g")
    assert group is not None
    assert list(group.subscriptions) == ["t0", "t1", "t2"]
    assert group.subscriptions["t0"].expression == "aaaaa", "what is known is kept true"
    assert len(registry.ids()) == 5


class Unlooked(dict[Any, Any]):
    """Nobody goes through it."""

    def values(self) -> Any:
        raise AssertionError("looked through")


def test_those_of_grpc_are_not_looked_through_for_those_of_remoting(registry: Registry) -> None:
    """Whenever one of ten thousand comes or goes, those of remoting are told."""
    registry.grpc("x", "c1")
    registry.beat("y", "c2")
    group = registry.clients.consumer_group("g")
    assert group is not None
    group.members = Unlooked(group.members)
    registry.grpc("z", "c3")
    assert [member.info.client_id for member in registry.clients.remoting_members("g")] == ["c2"]
    registry.clients.connection_closed("y")
    assert registry.clients.remoting_members("g") == []
    assert registry.changed == ["g"] * 4
