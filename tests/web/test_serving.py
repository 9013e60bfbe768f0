"""The console's server without sockets: whatever its clients do, and however requests end, its budget is empty at the end."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from remoting.transport.unfinished import Unfinished
from webapp.intake import MAX_BODY_BYTES
from webapp.serving import BoundedChannel, BoundedFactory

KIB = 1024


class Socket:
    """Takes over a connection, as a websocket does."""

    def makeConnection(self, transport: Any) -> None:
        pass

    def dataReceived(self, data: bytes) -> None:
        pass


class Sockets:
    def buildProtocol(self, peer: Any) -> Socket:
        return Socket()


class Server:
    """What a request asks of daphne's."""

    request_buffer_size = 64 * KIB
    root_path = ""
    proxy_forwarded_address_header = None
    http_timeout = None
    server_name = ""
    ws_factory = Sockets()

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.bodies: list[bytes] = []

    def protocol_connected(self, request: Any) -> None:
        pass

    protocol_disconnected = protocol_connected

    def log_action(self, *words: Any) -> None:
        pass

    def create_application(self, request: Any, scope: Any) -> asyncio.Queue[Any]:
        self.asked.append(request)
        self.bodies.append(request.content.getvalue())
        return asyncio.Queue()

    def answer(self, request: Any) -> None:
        request.handle_reply({"type": "http.response.start", "status": 200, "headers": []})
        request.handle_reply({"type": "http.response.body", "body": b"yes"})


class World:
    """Connections of some addresses to one server."""

    def __init__(self) -> None:
        self.server = Server()
        self.factory = BoundedFactory(self.server)
        self.clock = Clock()
        self.budget: Unfinished = self.factory._watch.proven

    def connect(self, host: str = "10.0.0.1") -> BoundedChannel:
        channel: BoundedChannel = self.factory.buildProtocol(IPv4Address("TCP", host, 1))
        channel.callLater = self.clock.callLater
        channel.makeConnection(Transport(peerAddress=IPv4Address("TCP", host, 1)))
        return channel

    def lose(self, channel: BoundedChannel) -> None:
        if isinstance(channel.transport.protocol, Socket):
            return
        channel.connectionLost(Failure(ConnectionDone()))

    def close(self) -> None:
        self.factory._watch.close()


class Transport(StringTransport):
    protocol: Any = None


def asked(body: bytes, *fields: str, chunked: bool = False, said: int | None = None) -> bytes:
    """A request with this body, or the first part of it."""
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body) if said is None else said}"
    head = "\r\n".join(("POST /login HTTP/1.1", "Host: x", length, *fields, "", "")).encode()
    if not chunked:
        return head + body
    parts = [body[start : start + 100 * KIB] for start in range(0, len(body), 100 * KIB)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nx: trailer\r\n\r\n"


async def test_a_long_body_counts_until_its_request_is_answered() -> None:
    world = World()
    channel = world.connect()
    body = bytes(500 * KIB)
    channel.dataReceived(asked(body) + asked(body))
    assert world.server.bodies == [body]
    assert world.budget.held_bytes == len(body)
    world.server.answer(world.server.asked[0])
    assert world.server.bodies == [body, body]
    assert world.budget.held_bytes == len(body)
    world.server.answer(world.server.asked[1])
    assert world.budget.held_bytes == 0
    world.lose(channel)
    world.close()


async def test_those_who_wait_for_django_wait_where_they_come_from() -> None:
    world = World()
    channels = [world.connect() for _ in range(12)]
    for channel in channels:
        channel.dataReceived(asked(bytes(KIB), said=MAX_BODY_BYTES))
    waiting = [each for each in channels if each.transport.producerState == "paused"]
    assert 0 < len(waiting) < len(channels)
    for channel in channels:
        if channel not in waiting:
            channel.dataReceived(bytes(MAX_BODY_BYTES - KIB))
    assert all(each.transport.producerState == "paused" for each in waiting), "all is there, and nothing is answered"
    world.server.answer(world.server.asked[0])
    assert [each.transport.producerState for each in waiting].count("producing") == 1
    for channel in channels:
        world.lose(channel)
    assert (world.budget.held_bytes, len(world.budget)) == (0, 0)
    world.close()


async def test_a_websocket_leaves_nothing_of_a_body_behind() -> None:
    world = World()
    channel = world.connect()
    channel.dataReceived(asked(bytes(100 * KIB), "Upgrade: websocket", "Connection: Upgrade"))
    assert isinstance(channel.transport.protocol, Socket)
    assert world.budget.held_bytes == 0
    world.close()


@pytest.mark.parametrize("seed", range(6))
async def test_the_budget_is_empty_after_anything(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    coming: dict[BoundedChannel, bytes] = {}

    def begin() -> None:
        body = bytes(chance.choice([0, 10, 60 * KIB, 70 * KIB, 2000 * KIB, 5000 * KIB]))
        fields = chance.choice([(), (), ("Expect: 100-continue",), ("Connection: close",), ("Upgrade: websocket",)])
        data = asked(body, *fields, chunked=chance.random() < 0.3)
        if chance.random() < 0.1:
            data = asked(body[:1000], said=MAX_BODY_BYTES + chance.choice([0, 1]))
        if chance.random() < 0.1:
            data = data.replace(b"Host: x", b"no field")
        if chance.random() < 0.3:
            data += asked(b"behind it")
        coming[world.connect(f"10.0.0.{chance.randrange(4)}")] = data

    def come() -> None:
        if coming:
            channel = chance.choice(list(coming))
            transport = channel.transport
            if transport.disconnecting or isinstance(transport.protocol, Socket):
                world.lose(channel)
                del coming[channel]
            elif transport.producerState == "producing" or chance.random() < 0.1:
                size = chance.choice([1, 100, 64 * KIB, 3000 * KIB])
                data, coming[channel] = coming[channel][:size], coming[channel][size:]
                if data:
                    channel.dataReceived(data)

    def lose() -> None:
        if coming and chance.random() < 0.2:
            channel = chance.choice(list(coming))
            del coming[channel]
            world.lose(channel)

    def answer() -> None:
        if world.server.asked:
            world.server.answer(world.server.asked.pop(chance.randrange(len(world.server.asked))))

    def grow_late() -> None:
        if chance.random() < 0.05:
            world.clock.advance(chance.choice([1, 5]))
            world.budget.look(int(asyncio.get_running_loop().time() * 1000) + chance.choice([0, 40_000]))

    for _ in range(1500):
        chance.choice([begin, come, come, come, come, lose, answer, grow_late])()
        assert world.budget.held_bytes <= 64 * KIB * KIB
    for channel in coming:
        world.lose(channel)
    assert (world.budget.held_bytes, len(world.budget), world.budget.waiting) == (0, 0, 0)
    assert not world.budget._shares
    world.close()
