"""The console's server without sockets: whatever its clients do, and however requests end, its budget is empty at the end."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from remoting.transport.tls import FIRST_BYTE
from remoting.transport.unfinished import Unfinished
from tests.support.certificates import Authority
from webapp import first_byte, serving
from webapp.intake import HEAD_S, MAX_BODY_BYTES
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

    def setTcpNoDelay(self, _: bool) -> None:
        pass


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


class Port:
    """A port that speaks HTTP and HTTPS; `connect` gives a connection of which nothing came yet."""

    def __init__(self, authority: Authority) -> None:
        self.world = World()
        self.authority = authority
        signed = authority.sign("console")
        certificate = first_byte.Certificate(str(signed.certificate), str(signed.key))
        self._factory = first_byte.FirstByteFactory(self.world.factory, certificate, self.world.clock)
        self.world.factory.reactor = self.world.clock

    def connect(self) -> Transport:
        transport = Transport(peerAddress=IPv4Address("TCP", "10.0.0.1", 1))
        transport.protocol = self._factory.buildProtocol(transport.getPeer())
        transport.protocol.makeConnection(transport)
        return transport

    def client(self) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        return context.wrap_bio(incoming, outgoing, server_hostname="localhost"), incoming, outgoing

    def shake_hands(self, transport: Transport) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        tls, incoming, outgoing = self.client()
        for _ in range(5):
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                say(transport, outgoing.read())
                incoming.write(transport.value())
                transport.clear()
        say(transport, outgoing.read())
        return tls, incoming, outgoing


def say(transport: Transport, data: bytes) -> None:
    if data:
        transport.protocol.dataReceived(data)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def port(authority: Authority) -> Iterator[Port]:
    made = Port(authority)
    yield made
    made.world.close()


async def test_who_says_nothing_goes(port: Port) -> None:
    silent, speaking = port.connect(), port.connect()
    say(speaking, b"G")
    port.world.clock.advance(HEAD_S - 0.1)
    assert not silent.disconnecting
    port.world.clock.advance(0.2)
    assert silent.disconnecting
    assert b" 408 " in speaking.value(), "who began a request is told"


async def test_who_does_not_finish_a_handshake_goes_however_often_something_comes(port: Port) -> None:
    dripping = port.connect()
    tls, _, outgoing = port.client()
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    for at in range(int(HEAD_S) + 1):
        say(dripping, hello[at : at + 1])
        assert not dripping.disconnecting
        port.world.clock.advance(1 - 0.001)
    port.world.clock.advance(1)
    assert dripping.disconnecting


async def test_after_the_handshake_there_is_time_for_a_request(port: Port) -> None:
    transport = port.connect()
    port.world.clock.advance(HEAD_S - 1)
    tls, _, outgoing = port.shake_hands(transport)
    port.world.clock.advance(HEAD_S + 1)
    assert not transport.disconnecting
    tls.write(asked(b"body"))
    for byte in outgoing.read():
        say(transport, bytes((byte,)))
    assert port.world.server.bodies == [b"body"]
    assert port.world.server.asked[0].client_scheme == "https"
    transport.protocol.connectionLost(Failure(ConnectionDone()))


async def test_bytes_may_come_one_by_one_in_plaintext(port: Port) -> None:
    transport = port.connect()
    for byte in asked(b"body"):
        say(transport, bytes((byte,)))
    assert port.world.server.bodies == [b"body"]
    assert port.world.server.asked[0].client_scheme == "http"


async def test_tls_within_tls_is_a_bad_request(port: Port) -> None:
    """The port for other machines comes with TLS already: what is in it is HTTP."""
    transport = port.connect()
    tls, incoming, outgoing = port.shake_hands(transport)
    tls.write(bytes((FIRST_BYTE, 3, 1, 0, 1)) + b"\r\n\r\n")
    say(transport, outgoing.read())
    port.world.clock.advance(0)
    incoming.write(transport.value())
    assert tls.read(100).startswith(b"HTTP/1.1 400 ")
    assert port.world.server.asked == []


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "begin",
    [
        "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n",
        f"GET / HTTP/1.1\r\nHost: x\r\nX: {'x' * 17_000}",
        "GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {MAX_BODY_BYTES + 1}\r\n\r\n",
    ],
    ids=["no colon", "a line without an end", "two hosts", "a long body"],
)
async def test_a_refused_request_goes_no_further_when_the_rest_of_it_comes(port: Port, begin: str, scheme: str) -> None:
    """TLS ends when both ends say so, and until then what comes is read."""
    transport = port.connect()
    tls, _, outgoing = port.client()
    if scheme == "https":
        tls, _, outgoing = port.shake_hands(transport)
    for part in (begin.encode(), b"\r\n", b"\r\n", b"\r\n", asked(b"behind it")):
        if scheme == "https":
            tls.write(part)
        say(transport, outgoing.read() if scheme == "https" else part)
    assert port.world.server.asked == []
    assert not transport.disconnecting
    port.world.clock.advance(HEAD_S)
    assert transport.disconnecting


class Few:
    """A port at which two connections may wait."""

    def __init__(self, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(serving, "most_waiting", lambda: 2)
        self.port = Port(authority)

    def are_gone(self, *transports: Transport) -> list[bool]:
        return [each.disconnecting for each in transports]


@pytest.fixture
def few(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Few]:
    made = Few(authority, monkeypatch)
    yield made
    made.port.world.close()


async def test_the_oldest_that_waits_goes_for_the_next(few: Few) -> None:
    port = few.port
    half, silent, head = port.connect(), port.connect(), port.connect()
    assert few.are_gone(half, silent, head) == [True, False, False]
    tls, _, outgoing = port.client()
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    say(silent, outgoing.read())
    say(head, b"GET / HTTP/1.1\r\n")
    fresh = port.connect()
    assert few.are_gone(silent, head, fresh) == [True, False, False], "a handshake is no end of waiting"
    port.shake_hands(fresh)
    last = port.connect()
    assert few.are_gone(head, fresh, last) == [True, False, False], "half a head is none either"


async def test_who_is_served_stays(few: Few) -> None:
    port = few.port
    served = port.connect()
    say(served, asked(b"body"))
    others = [port.connect() for _ in range(5)]
    assert few.are_gone(served, *others) == [False, True, True, True, False, False]
    port.world.server.answer(port.world.server.asked[0])
    port.connect()
    assert few.are_gone(served, *others[-2:]) == [False, True, True], "it begins to wait when it is answered"
    port.connect()
    assert served.disconnecting


async def test_connections_that_end_make_room(few: Few) -> None:
    port = few.port
    kept = port.connect()
    for data in (b"", b"GET / HTTP/1.1\r\n", asked(b"body"), asked(b"", "Upgrade: websocket", "Connection: Upgrade")):
        passing = port.connect()
        say(passing, data)
        if not isinstance(passing.protocol, Socket):
            passing.protocol.connectionLost(Failure(ConnectionDone()))
    assert not kept.disconnecting
    assert len(port.world.factory.waiting) == 1
