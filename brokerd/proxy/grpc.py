"""gRPC over our HTTP/2 connection: paths to methods, message framing, deadlines, statuses and trailers (pure).

`receive` hands out the calls of one read, grouped by method. All answers are made of constant header blocks, the message and
constant trailers; only an error's text makes a block of its own.
"""

from __future__ import annotations

import re
import string
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from brokerd.proxy.calls import GrpcStatus, Kind, Method, Peer
from brokerd.proxy.http2 import connection as http2
from brokerd.proxy.http2.frames import literal_field
from brokerd.proxy.http2.headers import Fields, Head
from brokerd.proxy.http2.limits import Budget, Http2Limits
from brokerd.proxy.http2.streams import CLOSED, Stream

SERVICE_PATH: Final = "/apache.rocketmq.v2.MessagingService/"
PREFIX: Final = struct.Struct(">BI")

_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10"  # a literal that is not indexed, its name is entry 31 of the static table
_RESPONSE_HEAD: Final = _STATUS_200 + _CONTENT_TYPE + bytes((16,)) + b"application/grpc"
_OK_TRAILERS: Final = literal_field(b"grpc-status", b"0")
_ACCEPT_ENCODING: Final = literal_field(b"grpc-accept-encoding", b"identity,gzip")
_PLAIN_TEXT: Final = _CONTENT_TYPE + bytes((10,)) + b"text/plain"
NOT_GRPC: Final = b"This port speaks gRPC: use a RocketMQ 5 client.\n"

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNIT_NS: Final = {
    "H": 3600_000_000_000,
    "M": 60_000_000_000,
    "S": 1_000_000_000,
    "m": 1_000_000,
    "u": 1000,
    "n": 1,
}
_MAX_REFUSED_BODY_BYTES: Final = 64 * 1024
# a few bytes of gzip can stand for very many: what our clients never do gets less room than what they do
_MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
_MAX_STATUS_TEXT_BYTES: Final = 1024
_PLAIN: Final = string.punctuation.replace("%", "") + " "
_CONGESTED_BYTES: Final = 16 * 1024 * 1024


class GrpcHead(Head):
    """The headers of a call: which method, with what metadata; or why it is refused (`refusal`)."""

    __slots__ = ("encoding", "http_status", "metadata", "method", "refusal", "timeout_ms")

    def __init__(self, method: Method | None, metadata: Mapping[str, str], max_message_bytes: int) -> None:
        streaming = method is not None and method.kind == Kind.BIDIRECTIONAL
        super().__init__(
            collects=not streaming,
            max_body_bytes=max_message_bytes + PREFIX.size if method is not None else _MAX_REFUSED_BODY_BYTES,
        )
        self.method = method
        self.metadata = metadata
        self.timeout_ms: int | None = None
        self.encoding = metadata.get("grpc-encoding", "identity")
        self.http_status = 200
        self.refusal: tuple[GrpcStatus, str] | None = None

    def refuse(self, status: GrpcStatus, text: str) -> GrpcHead:
        self.refusal = status, text
        self.collects = True
        return self


class GrpcCall:
    """A call over HTTP/2; see `calls.Call`."""

    __slots__ = ("_connection", "_head_sent", "_stream", "deadline_ms", "message", "on_cancel")

    def __init__(
        self, connection: GrpcConnection, stream: Stream[GrpcHead], message: bytes, deadline_ms: int | None
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._head_sent = False
        self.message = message
        self.deadline_ms = deadline_ms
        self.on_cancel: Callable[[], None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._stream.head.metadata

    @property
    def peer(self) -> Peer:
        return self._connection.peer

    @property
    def live(self) -> bool:
        return self._stream.state != CLOSED

    def when_writable(self, start: Callable[[], None]) -> None:
        connection = self._connection
        if connection.congested:
            connection.deferred.append((self, start))
        else:
            start()

    def answer(self, message: bytes) -> None:
        connection = self._connection
        connection.http2.outgoing.respond(
            self._stream, _RESPONSE_HEAD, b"\x00" + len(message).to_bytes(4) + message, _OK_TRAILERS
        )
        if not connection.flush_wanted:
            connection.want_flush()

    def send(self, messages: Sequence[bytes]) -> None:
        connection = self._connection
        if not self._head_sent:
            self.open()
        parts = []
        for message in messages:
            parts.append(PREFIX.pack(0, len(message)))
            parts.append(message)
        data = b"".join(parts)
        connection.unflushed_bytes += len(data)
        connection.http2.outgoing.send_data(self._stream, data)
        if not connection.flush_wanted:
            connection.want_flush()

    def open(self) -> None:
        """Send the response headers, if they were not sent yet."""
        if not self._head_sent:
            self._head_sent = True
            self._connection.http2.outgoing.send_headers(self._stream, _RESPONSE_HEAD)

    def continued(self, message: bytes) -> GrpcCall:
        """The call of a further message on the same bidirectional stream."""
        call = GrpcCall(self._connection, self._stream, message, self.deadline_ms)
        call._head_sent = True
        return call

    def finish(self) -> None:
        self.fail(GrpcStatus.OK, "")

    def fail(self, status: GrpcStatus, text: str) -> None:
        connection = self._connection
        trailers = _trailers(status, text)
        if self._head_sent:
            connection.http2.outgoing.end(self._stream, trailers)
        else:
            # trailers only: headers and trailers in one block
            self._head_sent = True
            connection.http2.outgoing.send_headers(self._stream, _RESPONSE_HEAD + trailers, end_stream=True)
        if not connection.flush_wanted:
            connection.want_flush()

    def cancelled(self) -> None:
        """The client went away."""
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()


@dataclass(slots=True, eq=False)
class _MessageReader:
    """Assembles the messages of a bidirectional stream from its chunks."""

    call: GrpcCall
    max_message_bytes: int
    buffer: bytearray = field(default_factory=bytearray)

    @property
    def kept_bytes(self) -> int:
        return len(self.buffer)

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """The (compressed flag, message) pairs that are complete now. Raises ValueError on a message that is too long."""
        buffer = self.buffer
        buffer += chunk
        messages = []
        position = 0
        while len(buffer) - position >= PREFIX.size:
            flag, length = PREFIX.unpack_from(buffer, position)
            if length > self.max_message_bytes:
                raise ValueError(f"a message of {length} bytes; at most {self.max_message_bytes} are taken here")
            end = position + PREFIX.size + length
            if end > len(buffer):
                break
            messages.append((flag, bytes(buffer[position + PREFIX.size : end])))
            position = end
        del buffer[:position]
        return messages


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one connection may send: request messages, those of a telemetry stream, and what HTTP/2 takes."""

    max_message_bytes: int
    max_streamed_message_bytes: int
    http2: Http2Limits = field(default_factory=Http2Limits)


class GrpcConnection:
    """One client connection. `wants_flush` is told when output waits; `write_paused` is the shell's word on a slow reader."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        limits: GrpcLimits,
        budget: Budget,
        *,
        peer: Peer,
        wants_flush: Callable[[GrpcConnection], None],
        now_ms: int,
    ) -> None:
        self._methods = methods
        self._max_message_bytes = limits.max_message_bytes
        self._max_streamed_message_bytes = limits.max_streamed_message_bytes
        self.peer = peer
        self._wants_flush = wants_flush
        self.flush_wanted = False
        self.write_paused = False
        self.unflushed_bytes = 0
        self.deferred: deque[tuple[GrpcCall, Callable[[], None]]] = deque()
        self.http2: http2.ServerConnection[GrpcHead] = http2.ServerConnection(
            limits.http2, budget, self._read_head, now_ms
        )

    def receive(self, data: bytes, now_ms: int, execute: Callable[[Method, list[GrpcCall]], None]) -> None:
        """Hand the calls that the bytes of one read complete to `execute`, by method; then end what the client ended."""
        ended: list[GrpcCall] = []
        for method, calls in self._read_calls(data, now_ms, ended):
            execute(method, calls)
        for call in ended:
            call.finish()
        if self.deferred:
            self.resume()

    def _read_calls(self, data: bytes, now_ms: int, ended: list[GrpcCall]) -> Iterable[tuple[Method, list[GrpcCall]]]:
        """The calls by method; bidirectional streams that the client ended are put to `ended`."""
        groups: dict[str, tuple[Method, list[GrpcCall]]] = {}
        for event, stream, chunk in self.http2.receive(data, now_ms):
            head = stream.head
            if event == http2.REQUEST:
                method = head.method
                if method is None or head.refusal is not None:
                    self._refuse(stream)
                    continue
                body = stream.body
                if len(body) >= 5 and not body[0] and int.from_bytes(body[1:5]) == len(body) - 5:
                    message = body[5:]
                else:
                    unpacked = self._unpack_only_message(stream, body)
                    if unpacked is None:
                        continue
                    message = unpacked
                stream.body = b""
                timeout_ms = head.timeout_ms
                call = GrpcCall(self, stream, message, None if timeout_ms is None else now_ms + timeout_ms)
                stream.context = call
                group = groups.get(method.name)
                if group is None:
                    groups[method.name] = method, [call]
                else:
                    group[1].append(call)
            elif event == http2.OPENED:
                self._open(stream, now_ms)
            elif event == http2.CHUNK:
                assert chunk is not None
                for call in self._read_chunk(stream, chunk):
                    assert head.method is not None
                    groups.setdefault(head.method.name, (head.method, []))[1].append(call)
            elif event == http2.ENDED:
                if isinstance(stream.context, _MessageReader):
                    ended.append(stream.context.call)
            elif event == http2.TOO_LARGE:
                self._refuse_large(stream)
            else:
                _cancel(stream)
        return groups.values()

    @property
    def congested(self) -> bool:
        """The client reads slower than it asks: no work that ends in a large answer is begun."""
        waiting = max(self.unflushed_bytes, self.http2.outgoing.blocked_bytes)
        return self.write_paused or waiting > _CONGESTED_BYTES

    def resume(self) -> None:
        """Begin what was put off, as far as the client has caught up."""
        while self.deferred and not self.congested:
            call, start = self.deferred.popleft()
            if call.live:
                start()

    def want_flush(self) -> None:
        """Tell the shell, once per turn, that output waits."""
        if not self.flush_wanted:
            self.flush_wanted = True
            self._wants_flush(self)

    def flushed(self) -> None:
        """The shell took the output."""
        self.flush_wanted = False
        self.unflushed_bytes = 0
        if self.deferred:
            self.resume()

    def close(self) -> None:
        """The transport is gone: every call that was not answered is cancelled."""
        for stream in self.http2.close():
            _cancel(stream)

    def go_away(self) -> None:
        """Take no further calls and end the streams that would never end by themselves."""
        self.http2.go_away("this broker is stopping")
        for stream in list(self.http2.streams.values()):
            if isinstance(stream.context, _MessageReader):
                stream.context.call.fail(GrpcStatus.UNAVAILABLE, "this broker is stopping")

    # ---- heads

    def _read_head(self, fields: Fields) -> GrpcHead:
        metadata: dict[str, str] = {}
        for name, value in fields:
            key = name.decode("ascii")
            text = value.decode("utf-8", "replace")
            metadata[key] = f"{metadata[key]},{text}" if key in metadata else text
        content_type = metadata.get("content-type", "")
        if metadata[":method"] != "POST" or not re.fullmatch(r"application/grpc([+;].*)?", content_type, re.DOTALL):
            head = GrpcHead(None, {}, 0)
            head.http_status = 415 if metadata[":method"] == "POST" else 405
            return head
        path = metadata[":path"]
        method = self._methods.get(path)
        head = GrpcHead(method, metadata, self._max_message_bytes)
        if method is None:
            return head.refuse(GrpcStatus.UNIMPLEMENTED, f"unknown method {path[:200]}")
        if head.encoding not in ("identity", "gzip"):
            return head.refuse(GrpcStatus.UNIMPLEMENTED, f"unknown message encoding {head.encoding[:40]}")
        timeout = metadata.get("grpc-timeout")
        if timeout is not None:
            match = _TIMEOUT.fullmatch(timeout)
            if match is None:
                return head.refuse(GrpcStatus.INTERNAL, f"undecodable grpc-timeout {timeout[:40]!r}")
            head.timeout_ms = int(match[1]) * _TIMEOUT_UNIT_NS[match[2]] // 1_000_000
        return head

    # ---- bodies

    def _unpack_only_message(self, stream: Stream[GrpcHead], body: bytes) -> bytes | None:
        """The message of a unary call that is not the plain case; None after the call was refused."""
        if len(body) < PREFIX.size:
            self._fail(stream, GrpcStatus.INTERNAL, "the request has no message")
            return None
        flag, length = PREFIX.unpack_from(body)
        if length != len(body) - PREFIX.size:
            self._fail(stream, GrpcStatus.INTERNAL, "the request is not exactly one message")
            return None
        return self._decompress(stream, flag, body[PREFIX.size :], self._max_message_bytes)

    def _decompress(self, stream: Stream[GrpcHead], flag: int, message: bytes, max_bytes: int) -> bytes | None:
        if not flag:
            return message
        if flag != 1 or stream.head.encoding != "gzip":
            self._fail(stream, GrpcStatus.INTERNAL, "a compressed message without a grpc-encoding")
            return None
        decompressor = zlib.decompressobj(wbits=31)
        try:
            plain = decompressor.decompress(message, min(max_bytes, _MAX_INFLATED_BYTES))
        except zlib.error as error:
            self._fail(stream, GrpcStatus.INTERNAL, f"undecodable gzip message: {error}")
            return None
        if decompressor.unconsumed_tail:
            self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, "the message is too large when decompressed")
            return None
        if not decompressor.eof:
            self._fail(stream, GrpcStatus.INTERNAL, "a gzip message that is cut off")
            return None
        return plain

    def _open(self, stream: Stream[GrpcHead], now_ms: int) -> None:
        """A bidirectional stream begins: its response headers go out at once, some clients wait for them."""
        timeout_ms = stream.head.timeout_ms
        call = GrpcCall(self, stream, b"", None if timeout_ms is None else now_ms + timeout_ms)
        stream.context = _MessageReader(call, self._max_streamed_message_bytes)
        call.open()

    def _read_chunk(self, stream: Stream[GrpcHead], chunk: bytes) -> list[GrpcCall]:
        reader = stream.context
        if not isinstance(reader, _MessageReader) or stream.state == CLOSED:
            return []
        try:
            complete = reader.feed(chunk)
        except ValueError as error:
            self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, str(error))
            return []
        self.http2.release(stream)
        if reader.kept_bytes and not self.http2.hold(stream, reader.kept_bytes):
            self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, "too many unfinished messages at once")
            return []
        calls = []
        for flag, message in complete:
            plain = self._decompress(stream, flag, message, self._max_streamed_message_bytes)
            if plain is None:
                break
            calls.append(reader.call.continued(plain))
        return calls

    # ---- refusals

    def _refuse(self, stream: Stream[GrpcHead]) -> None:
        head = stream.head
        if head.refusal is not None:
            self._fail(stream, *head.refusal)
            return
        status = str(head.http_status).encode()
        # status: a literal whose name is entry 8 of the static table
        self.http2.outgoing.send_headers(stream, b"\x08" + bytes((len(status),)) + status + _PLAIN_TEXT)
        self.http2.outgoing.send_data(stream, NOT_GRPC)
        self.http2.outgoing.end(stream, b"")
        self.want_flush()

    def _refuse_large(self, stream: Stream[GrpcHead]) -> None:
        if stream.head.method is None or stream.head.refusal is not None:
            self._refuse(stream)
            return
        text = f"the message is larger than {self._max_message_bytes} bytes, or too many are unfinished at once"
        self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, text)

    def _fail(self, stream: Stream[GrpcHead], status: GrpcStatus, text: str) -> None:
        if isinstance(stream.context, _MessageReader):
            stream.context.call.fail(status, text)
        else:
            GrpcCall(self, stream, b"", None).fail(status, text)


def _cancel(stream: Stream[GrpcHead]) -> None:
    context = stream.context
    stream.context = None
    if isinstance(context, GrpcCall):
        context.cancelled()


def _trailers(status: GrpcStatus, text: str) -> bytes:
    if not status:
        return _OK_TRAILERS
    trailers = literal_field(b"grpc-status", str(int(status)).encode())
    if text:
        trailers += literal_field(b"grpc-message", encode_status_text(text))
    if status == GrpcStatus.UNIMPLEMENTED:
        trailers += _ACCEPT_ENCODING
    return trailers


def encode_status_text(text: str) -> bytes:
    """grpc-message: percent-encoded UTF-8, printable ASCII as it is."""
    return quote(text.encode("utf-8", "replace")[:_MAX_STATUS_TEXT_BYTES], safe=_PLAIN).encode()
