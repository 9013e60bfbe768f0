"""The client's side of HTTP/2 for tests of the pure connection: makes frames, takes the server's bytes apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import hpack

from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.blocks import Fields, PlainBlockReader
from brokerd.proxy.http2.connection import ServerConnection
from brokerd.proxy.http2.headers import Head, HeaderReader, Heads
from brokerd.proxy.http2.limits import Http2Limits
from tests.support.unfinished import Budget, Streams

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/service/Method"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def split(data: bytes) -> list[Frame]:
    """The frames of a server's output; fails when a frame is incomplete."""
    found = []
    position = 0
    while position < len(data):
        high, low, kind, flags, stream_id = frames.FRAME_HEADER.unpack_from(data, position)
        start = position + frames.FRAME_HEADER_BYTES
        position = start + (high << 8 | low)
        assert position <= len(data)
        found.append(Frame(kind, flags, stream_id, data[start:position]))
    return found


class Client:
    """Talks to a `ServerConnection` (or anything with `receive` and `take_output`)."""

    def __init__(
        self,
        limits: Http2Limits | None = None,
        budget: Budget | None = None,
        *,
        collects: bool = True,
        max_body_bytes: int = 1 << 20,
        handshake: bool = True,
    ) -> None:
        def read_head(fields: Fields) -> Head:
            return Head(collects=collects, max_body_bytes=max_body_bytes)

        self.now_ms = 1_000_000
        limits = limits or Http2Limits()
        headers = HeaderReader(Heads(read_head), PlainBlockReader(limits.max_header_list_bytes))
        self.unfinished = Streams(budget or Budget())
        self.server = ServerConnection(limits, self.unfinished, headers, self.now_ms)
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        if handshake:
            self.send(frames.PREFACE + frames.encode_settings([]))
            self.output()

    def send(self, data: bytes) -> list[tuple[int, int, bytes | None]]:
        """Events as (event, stream id, chunk)."""
        return [(event, stream.stream_id, chunk) for event, stream, chunk in self.server.receive(data, self.now_ms)]

    def output(self) -> list[Frame]:
        return split(self.server.outgoing.take())

    def block(self, fields: Sequence[tuple[str, str]] = REQUEST) -> bytes:
        return self.encoder.encode(list(fields))

    def headers(self, stream_id: int, *, end: bool = False, fields: Sequence[tuple[str, str]] = REQUEST) -> bytes:
        flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
        return frames.encode_frame(frames.HEADERS, flags, stream_id, self.block(fields))

    def data(self, stream_id: int, payload: bytes, *, end: bool = True) -> bytes:
        return frames.encode_frame(frames.DATA, frames.END_STREAM if end else 0, stream_id, payload)

    def request(self, stream_id: int, body: bytes = b"body") -> bytes:
        return self.headers(stream_id) + self.data(stream_id, body)

    def answer(self, stream_id: int, body: bytes = b"answer") -> None:
        """Let the server answer a live stream."""
        self.server.outgoing.respond(self.server.streams[stream_id], b"\x88", body, frames.literal_field(b"x", b"0"))

    def fault(self) -> frames.ErrorCode | None:
        return None if self.server.fault is None else self.server.fault.error_code
