"""TLS on a remoting port: the choice by the first byte, client certificates, new certificates without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remoting import codes
from remoting.errors import ConnectionLost, ProtocolError, SettingsError
from remoting.frame import Command
from remoting.transport.client import RemotingClient, connect
from remoting.transport.connection import RemotingConnection
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.server import Place, RemotingServer, check_reach, each
from remoting.transport.tls import TlsAcceptor, TlsSettings, client_context, dialling_context, tls_server
from tests.support.certificates import Authority, Certificate


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def shown(authority: Authority) -> Certificate:
    return authority.sign("server")


def settings(shown: Certificate, mode: str, **more: str) -> TlsSettings:
    return TlsSettings(mode=mode, certificate_path=str(shown.certificate), key_path=str(shown.key), **more)  # type: ignore[arg-type]


def echo(connection: RemotingConnection, request: Command) -> None:
    connection.respond(request, body=request.body)


@asynccontextmanager
async def serving(tls: TlsSettings) -> AsyncIterator[str]:
    server = RemotingServer(Place("127.0.0.1", 0, tls=tls_server(tls)), {7: each(echo)})
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


def secured(authority: Authority, **more: bool) -> Identity:
    return Identity(tls=client_context(str(authority.ca), **more))  # type: ignore[arg-type]


async def echoed(address: str, identity: Identity, body: bytes = b"hello") -> bytes:
    connection = await connect(address, identity=identity)
    try:
        return bytes((await connection.call(7, None, body)).body)
    finally:
        connection.close()


async def test_one_port_speaks_both_when_permissive(authority: Authority, shown: Certificate) -> None:
    async with serving(settings(shown, "permissive")) as address:
        assert await echoed(address, NOBODY) == b"hello"
        assert await echoed(address, secured(authority)) == b"hello"
        assert await echoed(address, secured(authority, check_host=True)) == b"hello"


async def test_enforcing_refuses_plaintext(authority: Authority, shown: Certificate) -> None:
    async with serving(settings(shown, "enforcing")) as address:
        assert await echoed(address, secured(authority)) == b"hello"
        with pytest.raises(ConnectionLost):
            await echoed(address, NOBODY)


async def test_disabled_refuses_tls(authority: Authority) -> None:
    async with serving(TlsSettings()) as address:
        with pytest.raises(ConnectionLost):
            await echoed(address, secured(authority))


async def test_large_answers_and_many_requests(authority: Authority, shown: Certificate) -> None:
    async with serving(settings(shown, "enforcing")) as address:
        client = RemotingClient(identity=secured(authority))
        bodies = [bytes([number]) * (number * 50_000) for number in range(40)]
        answers = await asyncio.gather(*(client.call(address, 7, None, body, timeout_ms=60_000) for body in bodies))
        assert [bytes(answer.body) for answer in answers] == bodies
        client.close()


async def test_a_server_of_another_authority_is_not_spoken_to(shown: Certificate, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    async with serving(settings(shown, "permissive")) as address:
        with pytest.raises(ConnectionLost):
            await echoed(address, secured(stranger))


async def test_clients_need_a_certificate_when_it_is_required(authority: Authority, shown: Certificate) -> None:
    mine = authority.sign("client")
    required = settings(shown, "enforcing", client_auth="required", ca_path=str(authority.ca))
    async with serving(required) as address:
        context = client_context(str(authority.ca), str(mine.certificate), str(mine.key))
        assert await echoed(address, Identity(tls=context)) == b"hello"
        with pytest.raises(ConnectionLost):
            await echoed(address, secured(authority))


async def test_a_new_certificate_is_shown_without_a_restart(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = authority.sign("renewed")
    context = client_context(str(authority.ca))

    async def serial(address: str) -> str:
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found: ssl.SSLObject = writer.get_extra_info("ssl_object")
        certificate = found.getpeercert()
        writer.close()
        await writer.wait_closed()
        assert certificate is not None
        return str(certificate["serialNumber"])

    async with serving(settings(first, "enforcing")) as address:
        before = await serial(address)
        assert await serial(address) == before
        long_open = await connect(address, identity=secured(authority))
        authority.sign("renewed")
        after = await serial(address)
        assert after != before
        assert bytes((await long_open.call(7, None, b"still here")).body) == b"still here"
        long_open.close()
        first.certificate.write_text("damaged")  # the one that was read before stays in use
        assert await serial(address) == after
        assert "keeping the certificate" in caplog.text


async def test_a_broken_handshake_closes_the_connection(shown: Certificate) -> None:
    async with serving(settings(shown, "permissive")) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16nonsense that is no ClientHello at all" * 10)
        await asyncio.wait_for(reader.read(), 5)
        assert reader.at_eof()
        writer.close()


@pytest.mark.parametrize("silence", [b"", b"\x16", b"\x16\x03\x01\x02\x00", b"\x00"])
async def test_who_does_not_come_to_the_point_is_not_waited_for(
    shown: Certificate, monkeypatch: pytest.MonkeyPatch, silence: bytes
) -> None:
    """Who says nothing counts as idle in plaintext, where the sweep finds it; who began a handshake must go on with it."""
    monkeypatch.setattr("remoting.transport.tls._HANDSHAKE_S", 0.05)
    tls = tls_server(settings(shown, "permissive"))
    assert tls is not None
    server = RemotingServer(Place("127.0.0.1", 0, tls=tls), {7: each(echo)})
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(silence)
        if silence[:1] == b"\x16":
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            assert not server.connections
        else:
            async with asyncio.timeout(5):
                while not server.connections:
                    await asyncio.sleep(0)
        assert tls.undecided == 0
        writer.close()
    finally:
        await server.close()


async def test_a_crowd_that_says_nothing_keeps_nobody_out(shown: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remoting.transport.tls._MAX_UNDECIDED", 5)
    tls = tls_server(settings(shown, "permissive"))
    assert tls is not None
    server = RemotingServer(Place("127.0.0.1", 0, tls=tls), {7: each(echo)})
    await server.start()
    try:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        async with asyncio.timeout(5):
            for reader, _ in silent[:3]:
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
        with contextlib.closing(await connect(f"127.0.0.1:{server.port}")) as client:
            assert (await client.call(7, {"a": "b"})).code == codes.SUCCESS
        assert tls.undecided <= 5
        for _, writer in silent:
            writer.close()
    finally:
        await server.close()


class Lingering(asyncio.Transport):
    """Closes only when its peer has read what was written, which it does not."""

    def write(self, data: object) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return True


async def test_who_lingers_while_it_is_closed_is_not_counted_for_ever(
    shown: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of them as may be undecided at once would shut the port for everybody."""
    monkeypatch.setattr("remoting.transport.tls._HANDSHAKE_S", 0)
    tls = tls_server(settings(shown, "permissive"))
    assert tls is not None
    acceptor = TlsAcceptor(tls, asyncio.Protocol)
    acceptor.connection_made(Lingering())
    assert tls.undecided == 1
    async with asyncio.timeout(5):
        while tls.undecided:
            await asyncio.sleep(0)
    acceptor.connection_lost(None)
    assert tls.undecided == 0


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_comes_first_the_port_serves_the_next(
    authority: Authority, shown: Certificate, seed: int
) -> None:
    chance = random.Random(seed)
    async with serving(settings(shown, "permissive")) as address:
        host, port = address.split(":")
        for first in (*range(256), *[0x16] * 64):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(bytes([first]) + chance.randbytes(chance.randrange(200)))
            if chance.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()
        assert await echoed(address, NOBODY) == b"hello"
        assert await echoed(address, secured(authority)) == b"hello"


def test_what_is_answered_after_tls_broke_is_dropped(authority: Authority, shown: Certificate) -> None:
    """A request of before may be answered in the turn in which the connection is dropped, together with those of others."""
    tls = tls_server(settings(shown, "permissive"))
    assert tls is not None
    layer = tls.layer()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context(str(authority.ca)).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    for _ in range(3):
        with contextlib.suppress(ssl.SSLWantReadError):
            client.do_handshake()
        layer.receive(outgoing.read())
        incoming.write(layer.take_output())
    assert layer.connected
    client.write(b"request")
    record = bytearray(outgoing.read())
    record[-1] ^= 1
    with pytest.raises(ProtocolError):
        layer.receive(bytes(record))
    layer.take_output()
    assert layer.send(b"answer") == b""
    assert layer.close() == b""


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: tls_server(TlsSettings(mode="enforcing")), "certificate_path"),
        (lambda: tls_server(TlsSettings(mode="enforcing", certificate_path="/none", key_path="/none")), "PEM"),
        (lambda: dialling_context(TlsSettings(dial=True)), "ca_path"),
        (lambda: dialling_context(TlsSettings(dial=True, ca_path="/none")), "PEM"),
    ],
)
def test_settings_that_cannot_work(make: Callable[[], object], what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        make()


def test_client_certificates_need_an_authority(shown: Certificate) -> None:
    with pytest.raises(SettingsError, match="ca_path"):
        tls_server(settings(shown, "enforcing", client_auth="required"))


def test_where_a_daemon_may_listen(shown: Certificate) -> None:
    plain, permissive, enforcing = TlsSettings(), settings(shown, "permissive"), settings(shown, "enforcing")
    check_reach("127.0.0.1", "--listen", authentication=False, tls=plain)
    check_reach("0.0.0.0", "--listen", authentication=True, tls=enforcing)
    for authentication, tls in ((False, plain), (True, plain), (False, enforcing), (True, permissive)):
        with pytest.raises(SettingsError, match=r"access\.authentication=true, tls\.mode=enforcing"):
            check_reach("0.0.0.0", "--listen", authentication=authentication, tls=tls)
