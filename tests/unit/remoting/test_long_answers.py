"""Answers whose bodies are views of memory that is used again when nobody looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
import uvloop

from brokerd.tiers.objects.page_memory import PageMemory
from remoting import codes, frame
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.server import Place, RemotingServer, ServerLimits

BODY_BYTES = 1 << 20
PIECE_BYTES = 2 << 20
SLOW_BYTES = 4 << 20  # that a peer leaves unread, from which on it is given nothing large
CODE = 1


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("stays", [True, False])
def test_a_long_body_that_stays_is_sent_from_where_it_is_and_kept_until_then(
    run: Callable[..., None], stays: bool
) -> None:
    run(have_long_bodies_sent(stays))


async def have_long_bodies_sent(stays: bool) -> None:
    memory = PageMemory()
    free: list[int] = []

    def serve(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for request in requests:
            view = memory.take(BODY_BYTES)
            view[:] = bytes([65 + request.opaque]) * BODY_BYTES
            connection.respond(request, body=view.toreadonly(), body_stays=stays)
            del view
            free.append(memory.free_bytes)

    server = RemotingServer(Place("127.0.0.1", 0), {CODE: serve})
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(frame.encode_request(CODE, opaque, {}) for opaque in range(4)))
    found: list[Command] = []
    async with asyncio.timeout(60):
        received = b""
        while len(found) < 4:
            received += await reader.read(BODY_BYTES)
            received = received[frame.decode_frames(received, found) :]
    assert [(each.code, bytes(each.body)) for each in found] == [
        (codes.SUCCESS, bytes([65 + opaque]) * BODY_BYTES) for opaque in range(4)
    ]
    assert free == [0 if stays else BODY_BYTES] * 4
    writer.close()
    await server.close()


@pytest.mark.parametrize("part", [8, 1])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_does_not_read_keeps_little_more_than_what_he_asked_for(run: Callable[..., None], part: int) -> None:
    """Each answer is a part of a piece of memory, all of which stays as long as the answer does."""
    run(have_somebody_not_read(part))


async def have_somebody_not_read(part: int) -> None:
    memory = PageMemory()
    used_bytes: list[int] = []
    peers: list[RemotingConnection] = []

    def serve(connection: RemotingConnection, requests: Sequence[Command]) -> None:
        peers[:] = [connection]
        for request in requests:
            before = memory.free_bytes
            view = memory.take(PIECE_BYTES)
            used_bytes.append(0 if memory.free_bytes < before else PIECE_BYTES)  # what is new
            connection.respond(request, body=view[: PIECE_BYTES // part].toreadonly(), body_stays=True)
            del view

    limits = ServerLimits(ConnectionLimits(long_requests=frozenset({CODE})))
    server = RemotingServer(Place("127.0.0.1", 0), {CODE: serve}, limits=limits)
    await server.start()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
    writer.write(b"".join(frame.encode_request(CODE, opaque, {}) for opaque in range(500)))
    async with asyncio.timeout(60):
        while not (peers and peers[0].is_slow):
            await asyncio.sleep(0)
    kept_bytes = sum(used_bytes) - memory.free_bytes
    writer.close()
    await server.close()
    assert kept_bytes < 3 * SLOW_BYTES
    assert sum(used_bytes) == memory.free_bytes, "all of it comes back when he is gone"
