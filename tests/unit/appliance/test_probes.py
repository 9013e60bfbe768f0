"""Each probe against a small server that answers as it should, and as it should not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remoting import codes
from remoting.facts.broker_state import BrokerState
from remoting.facts.codec import encode
from remoting.facts.words import BrokerRole
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer, each
from webapp.appliance import probes
from webapp.appliance.plan import BrokerProbe, ControllerProbe, HeartbeatProbe, HttpProbe, RedisProbe

Answer = tuple[int, dict[str, str], bytes]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def remoting_server(code: int, answer: Answer) -> AsyncIterator[str]:
    def handle(connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, *answer)

    server = RemotingServer(Place("127.0.0.1", 0), {code: each(handle)})
    await server.start()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


@asynccontextmanager
async def stream_server(talk: Talk, path: Path | None = None) -> AsyncIterator[str]:
    """On a port, or on a socket at the path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    if path is not None:
        async with await asyncio.start_unix_server(serve, path):
            yield str(path)
        return
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def saying(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return talk


async def test_a_controller_is_ready_when_it_knows_the_leader() -> None:
    code = codes.CONTROLLER_GET_METADATA_INFO
    async with remoting_server(code, (codes.SUCCESS, {"controllerLeaderId": "n1"}, b"")) as address:
        assert await probes.ask(ControllerProbe(address)) is None
    async with remoting_server(code, (codes.SUCCESS, {}, b"")) as address:
        assert await probes.ask(ControllerProbe(address)) == "no controller leads yet"
    async with remoting_server(code, (codes.SYSTEM_ERROR, {}, b"")) as address:
        assert await probes.ask(ControllerProbe(address)) == "it answers code 1"
    async with remoting_server(1, (codes.SUCCESS, {}, b"")) as address:
        assert "not supported" in str(await probes.ask(ControllerProbe(address)))


def in_role(role: BrokerRole) -> bytes:
    return encode(BrokerState(cluster_name="c", broker_name="broker-a", broker_id=1, role=role))


@pytest.mark.parametrize(
    ("state", "lacks"),
    [
        (in_role(BrokerRole.MASTER), None),
        (in_role(BrokerRole.REPLICA), None),
        (in_role(BrokerRole.FENCED), "its role is not confirmed yet (fenced)"),
        (b"{}", "BrokerState.clusterName is not a text"),
        (b"[]", "BrokerState is not an object"),
    ],
)
async def test_a_broker_is_ready_when_its_role_is_confirmed(state: bytes, lacks: str | None) -> None:
    async with remoting_server(codes.BROKER_STATE, (codes.SUCCESS, {}, state)) as address:
        assert await probes.ask(BrokerProbe(address)) == lacks
        assert await probes.is_master(BrokerProbe(address)) == (state == in_role(BrokerRole.MASTER))


async def test_nobody_there() -> None:
    async with stream_server(saying(b"")) as gone:
        pass
    for probe in (ControllerProbe(gone), BrokerProbe(gone), HttpProbe(gone)):
        assert await probes.ask(probe) == "it does not listen yet"
    assert not await probes.is_master(BrokerProbe(gone))


async def test_somebody_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probes, "DEADLINE_MS", 50)
    (tmp_path / "password").write_text("x")
    released = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await released.wait()

    async with stream_server(silent) as address:
        for probe in (ControllerProbe(address), HttpProbe(address)):
            assert await probes.ask(probe) is not None
        released.set()
    released.clear()
    async with stream_server(silent, tmp_path / "socket"):
        assert await probes.ask(RedisProbe(tmp_path / "socket", "us", tmp_path / "password")) is not None
        released.set()


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        (b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"status": "healthy"}', None),
        (b'HTTP/1.1 503 Unavailable\r\n\r\n{"status": "down"}', None),
        (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"sta\r\nd\r\ntus": "down"}\r\n0\r\n\r\n', None),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "its answer names no status"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "GET /api/v1/health does not answer with a JSON object"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "GET /api/v1/health is answered with 'HTTP/1.1 404 Not Found'"),
        (b"HTTP/1.1 200 OK\r\n", "GET /api/v1/health is not answered with HTTP"),
        (b"x" * 100_000, "GET /api/v1/health is not answered with HTTP"),
        (b"\r\n\r\n", "GET /api/v1/health is answered with ''"),
    ],
)
async def test_the_console_is_ready_when_it_names_a_status(answer: bytes, lacks: str | None) -> None:
    async with stream_server(saying(answer)) as address:
        assert await probes.ask(HttpProbe(address)) == lacks


async def test_a_chunk_that_is_too_long_is_refused() -> None:
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n"
    async with stream_server(saying(answer)) as address:
        assert await probes.ask(HttpProbe(address)) == "the answer is too long"


async def test_redis_is_ready_when_it_accepts_the_password(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    password_file.write_text("right\n")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        right = await reader.readline() == b"AUTH us right\r\n"
        writer.write(b"+OK\r\n" if right else b"-WRONGPASS no\r\n")
        await reader.readline()
        writer.write(b"+PONG\r\n")

    probe = RedisProbe(tmp_path / "socket", "us", password_file)
    assert await probes.ask(probe) == "[Errno 2] No such file or directory"
    async with stream_server(talk, probe.socket):
        assert await probes.ask(probe) is None
        password_file.write_text("wrong\n")
        assert await probes.ask(probe) == "Redis answers '-WRONGPASS no'"


async def test_a_heartbeat_is_a_file(tmp_path: Path) -> None:
    probe = HeartbeatProbe(tmp_path / "beat")
    assert await probes.ask(probe) == "it has not reported ready yet"
    probe.file.touch()
    assert await probes.ask(probe) is None
