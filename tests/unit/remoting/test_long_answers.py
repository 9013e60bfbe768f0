"""Answers whose bodies are views of memory that is used again when nobody looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from brokerd.tiers.objects.page_memory import PageMemory
from remoting import codes, frame
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import Place, RemotingServer

BODY_BYTES = 1 << 20
CODE = 1


@pytest.mark.parametrize("stays", [True, False])
async def test_a_long_body_that_stays_is_sent_from_where_it_is_and_kept_until_then(stays: bool) -> None:
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
