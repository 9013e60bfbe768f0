"""A gRPC client on a real socket that does exactly what a test wants: also nothing, too much, or never read."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import hpack

from brokerd.proxy.grpc import PREFIX, SERVICE_PATH
from brokerd.proxy.http2 import frames
from tests.unit.brokerd.proxy.h2client import Frame

METADATA = {"x-mq-client-id": "raw-client", "x-mq-language": "PYTHON"}


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self.next_stream_id = 1

    @classmethod
    async def connect(cls, port: int, *, tls: ssl.SSLContext | None = None, window: int | None = None) -> RawClient:
        """Connect and shake hands; `window` is the initial window that the server gets."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        client = cls(reader, writer)
        settings = [] if window is None else [(frames.Setting.INITIAL_WINDOW_SIZE, window)]
        client.writer.write(frames.PREFACE + frames.encode_settings(settings))
        return client

    def start(self, method: str, request: Any | None, *, end: bool = True, **headers: str) -> int:
        """Open a stream and send a request message (None: headers only); answers the stream id."""
        stream_id = self.next_stream_id
        self.next_stream_id += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": SERVICE_PATH + method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **METADATA,
            **headers,
        }
        block = self.encoder.encode(list(fields.items()))
        self.writer.write(frames.encode_frame(frames.HEADERS, frames.END_HEADERS, stream_id, block))
        if request is not None:
            self.send(stream_id, request, end=end)
        return stream_id

    def send(self, stream_id: int, request: Any, *, end: bool = True) -> None:
        body = request if isinstance(request, bytes) else request.SerializeToString()
        body = PREFIX.pack(0, len(body)) + body
        for start in range(0, len(body), 16384):
            piece = body[start : start + 16384]
            flags = frames.END_STREAM if end and start + 16384 >= len(body) else 0
            self.writer.write(frames.encode_frame(frames.DATA, flags, stream_id, piece))

    async def frame(self) -> Frame:
        head = await self.reader.readexactly(frames.FRAME_HEADER_BYTES)
        high, low, kind, flags, stream_id = frames.FRAME_HEADER.unpack(head)
        return Frame(kind, flags, stream_id, await self.reader.readexactly(high << 8 | low))

    async def answer(self, stream_id: int, response_class: Any) -> tuple[list[Any], dict[str, str]]:
        """Read until the stream ended: its messages and all its header fields."""
        body, fields = bytearray(), {}
        async with asyncio.timeout(60):
            while True:
                frame = await self.frame()
                if frame.kind == frames.HEADERS:
                    decoded = dict(self.decoder.decode(frame.payload))
                    if frame.stream_id == stream_id:
                        fields.update(decoded)
                        if frame.flags & frames.END_STREAM:
                            return parse(bytes(body), response_class), fields
                elif frame.kind == frames.DATA and frame.stream_id == stream_id:
                    body += frame.payload
                elif frame.kind == frames.RST_STREAM and frame.stream_id == stream_id:
                    raise AssertionError(f"stream {stream_id} was reset with {int.from_bytes(frame.payload)}")

    async def call(self, method: str, request: Any, response_class: Any, **headers: str) -> Any:
        """A unary call's only response."""
        ((response,), fields) = await self.answer(self.start(method, request, **headers), response_class)
        assert fields["grpc-status"] == "0"
        return response

    async def closed(self) -> list[Frame]:
        """Wait until the server closed the connection; the frames that came before."""
        seen = []
        async with asyncio.timeout(60):
            try:
                while True:
                    seen.append(await self.frame())
            except (asyncio.IncompleteReadError, ConnectionError):
                return seen

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            return


def parse(body: bytes, response_class: Any) -> list[Any]:
    messages = []
    position = 0
    while position < len(body):
        _, length = PREFIX.unpack_from(body, position)
        start = position + PREFIX.size
        position = start + length
        messages.append(response_class.FromString(body[start:position]))
    return messages
