"""Who is turned away does not fill the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from remoting.transport import refusals
from remoting.transport.refusals import SAID_EVERY_S, Refusals
from remoting.transport.server import Place, RemotingServer, ServerLimits


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(refusals, "monotonic", lambda: now[0])
    return now


def test_the_first_is_said_and_then_how_many_were_not(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    noted = Refusals(logging.getLogger(__name__), "gRPC connections")
    for number in range(500):
        noted.note(f"10.0.0.1:{number}", 7)
    clock[0] += SAID_EVERY_S
    noted.note("10.0.0.2:1", 7)
    clock[0] += SAID_EVERY_S
    noted.note("10.0.0.3:1", 8)
    assert [record.getMessage() for record in caplog.records] == [
        "refusing 10.0.0.1:0: 7 gRPC connections are open already",
        "refusing 10.0.0.2:1: 7 gRPC connections are open already, and refused 499 others meanwhile",
        "refusing 10.0.0.3:1: 8 gRPC connections are open already",
    ]


async def test_a_server_that_has_enough_says_so_once_for_many(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    server = RemotingServer(Place("127.0.0.1", 0), {}, limits=ServerLimits(max_connections=1))
    await server.start()
    _, first = await asyncio.open_connection("127.0.0.1", server.port)
    async with asyncio.timeout(60):
        for _ in range(20):
            reader, refused = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            refused.close()
    assert caplog.text.count("refusing 127.0.0.1") == 1
    first.close()
    await server.close()
