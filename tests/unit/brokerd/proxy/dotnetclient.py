"""A gRPC client that speaks as .NET does: gRPC for .NET 2.80 on .NET 8, as the C# client of version 5 uses it with its defaults.

It differs from the clients of other languages in what it sends: header fields that no table remembers and no Huffman code
shortens, an empty DATA frame to end each request, a small window for each stream inside a large one for the connection, and PINGs
of its own that measure the round trip when something arrives.
`tests/golden/rocketmq-client-csharp-5.2.1` has the bytes of the real one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from brokerd.proxy.http2 import frames
from remoting.transport.client import split_address
from tests.unit.brokerd.proxy.h2client import Frame
from tests.unit.brokerd.proxy.rawclient import RawClient

STREAM_WINDOW_BYTES = 65535
CONNECTION_WINDOW_BYTES = 64 << 20
LARGEST_FRAME_BYTES = 16384
METADATA = {
    ":scheme": "https",
    "user-agent": "grpc-dotnet/2.80.0 (.NET 8.0.4; CLR 8.0.4; linux; x64)",
    "grpc-accept-encoding": "identity,gzip,deflate",
    "x-mq-language": "DOTNET",
    "x-mq-client-version": "5.2.1",
    "x-mq-client-id": "host@4958@1@MWSTVC10",
    "x-mq-namespace": "",
    "grpc-timeout": "3S",
}


class DotnetClient(RawClient):
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.encoder = _Literally()
        self._owed: Counter[int] = Counter()  # bytes read and not given back, by stream
        self._measured = 0
        self._measuring: deque[bytes] = deque()

    @classmethod
    async def begin(cls, address: str) -> DotnetClient:
        """Connect over TLS, whatever the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, port = split_address(address)
        client = cls(*await asyncio.open_connection(host, port, ssl=context))
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        settings = [
            (frames.Setting.ENABLE_PUSH, 0),
            (frames.Setting.INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES),
        ]
        wider = frames.encode_window_update(0, CONNECTION_WINDOW_BYTES - 65535)
        client.writer.write(frames.PREFACE + frames.encode_settings(settings) + wider)
        return client

    def start(self, method: str, request: Any | None, *, end: bool = True, **headers: str) -> int:
        return super().start(method, request, end=end, **{**METADATA, **headers})

    def send(self, stream_id: int, request: Any, *, end: bool = True) -> None:
        super().send(stream_id, request, end=False)
        if end:
            self.writer.write(frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id, b""))

    async def frame(self) -> Frame:
        """The next frame, having done what .NET does about it; fails where .NET would end the connection."""
        frame = await super().frame()
        assert len(frame.payload) <= LARGEST_FRAME_BYTES
        if frame.kind == frames.PING:
            assert frame.flags & frames.ACK
            assert frame.payload == self._measuring.popleft(), "an answer to a PING that was never sent"
        elif frame.kind == frames.DATA:
            self._give_back(frame.stream_id, len(frame.payload), STREAM_WINDOW_BYTES)
            self._give_back(0, len(frame.payload), CONNECTION_WINDOW_BYTES)
        if frame.kind in (frames.DATA, frames.HEADERS) and not self._measuring:
            self._measured -= 1  # what it measures with counts down, so that a keep-alive's PING is told from it
            self._measuring.append(self._measured.to_bytes(8, signed=True))
            self.writer.write(frames.encode_frame(frames.PING, 0, 0, self._measuring[-1]))
        return frame

    def _give_back(self, stream_id: int, count: int, window_bytes: int) -> None:
        self._owed[stream_id] += count
        assert self._owed[stream_id] <= window_bytes, "more than the window allows"
        if self._owed[stream_id] >= window_bytes // 8:
            self.writer.write(frames.encode_window_update(stream_id, self._owed.pop(stream_id)))


class _Literally:
    """Encodes header fields one by one, as literals that are never indexed."""

    def encode(self, fields: Sequence[tuple[str, str]]) -> bytes:
        return b"".join(frames.literal_field(name.encode(), value.encode()) for name, value in fields)
