"""One-way messages: the newest of a kind is what an address hears, and one that cannot be reached hurts nobody."""

from __future__ import annotations

import asyncio

import pytest

from controllerd.metrics import Counters
from controllerd.pushes import Pushes
from remoting.errors import ConnectionLost
from remoting.transport.tasks import TaskOwner


class Connection:
    def __init__(self, log: list[tuple[str, int, dict[str, str]]], address: str) -> None:
        self._log = log
        self._address = address

    def notify(self, code: int, ext: dict[str, str], body: bytes) -> bool:
        self._log.append((self._address, code, ext))
        return True


class Client:
    """Connections stand when the test lets them."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, dict[str, str]]] = []
        self.gate = asyncio.Event()
        self.unreachable: set[str] = set()

    async def connection(self, address: str) -> Connection:
        await self.gate.wait()
        if address in self.unreachable:
            raise ConnectionLost(f"cannot connect to {address}")
        return Connection(self.sent, address)


async def settled(owner: TaskOwner) -> None:
    async with asyncio.timeout(60):
        while owner._tasks:
            await asyncio.sleep(0)


async def test_a_newer_message_takes_the_place_of_one_that_waits() -> None:
    client, counters, owner = Client(), Counters(), TaskOwner("test")
    pushes = Pushes(client, counters, owner)  # type: ignore[arg-type]
    for epoch in ("1", "2", "3"):
        pushes.push("a:1", 1008, {"masterEpoch": epoch})
    pushes.push("b:1", 1008, {"masterEpoch": "1"})
    pushes.push("a:1", 905, {"minBrokerId": "1"})
    await asyncio.sleep(0)
    client.gate.set()
    await settled(owner)
    assert client.sent == [
        ("a:1", 1008, {"masterEpoch": "3"}),
        ("b:1", 1008, {"masterEpoch": "1"}),
        ("a:1", 905, {"minBrokerId": "1"}),
    ]
    assert (counters.notifications, counters.pushes_replaced) == (3, 2)
    pushes.push("a:1", 1008, {"masterEpoch": "4"})
    await settled(owner)
    assert client.sent[-1] == ("a:1", 1008, {"masterEpoch": "4"})
    await owner.close()


async def test_who_cannot_be_reached_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    client, counters, owner = Client(), Counters(), TaskOwner("test")
    client.gate.set()
    client.unreachable.add("a:1")
    pushes = Pushes(client, counters, owner)  # type: ignore[arg-type]
    pushes.push("a:1", 1008, {})
    await settled(owner)
    assert "it will ask" in caplog.text
    client.unreachable.clear()
    pushes.push("a:1", 1008, {"masterEpoch": "5"})
    await settled(owner)
    assert client.sent == [("a:1", 1008, {"masterEpoch": "5"})]
    await owner.close()
