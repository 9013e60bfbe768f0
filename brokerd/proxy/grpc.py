"""gRPC over our HTTP/2 connection: paths to methods, message framing, deadlines, statuses and trailers (pure).

`receive` hands out the calls of one read, grouped by method. All answers are made of constant header blocks, the message and
constant trailers; only an error's text makes a block of its own.
"""

from __future__ import annotations

import string
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote

from brokerd.proxy.calls import CANCELLED, GrpcStatus, Kind, Method, Peer
from brokerd.proxy.heads import PREFIX_BYTES, CallHeads, GrpcHead
from brokerd.proxy.http2 import connection as http2
from brokerd.proxy.http2.frames import literal_field
from brokerd.proxy.http2.limits import Http2Limits
from brokerd.proxy.http2.streams import CLOSED, OPEN, Stream
from remoting.errors import RequestError
from remoting.transport.client import split_address
from remoting.transport.unfinished import SMALL_BYTES, Holder, Piece, peer_of

SERVICE_PATH: Final = "/apache.rocketmq.v2.MessagingService/"
PREFIX: Final = struct.Struct(">BI")

_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10"  # a literal that is not indexed, its name is entry 31 of the static table
_RESPONSE_HEAD: Final = _STATUS_200 + _CONTENT_TYPE + bytes((16,)) + b"application/grpc"
_OK_TRAILERS: Final = literal_field(b"grpc-status", b"0")
_ACCEPT_ENCODING: Final = literal_field(b"grpc-accept-encoding", b"identity,gzip")
_PLAIN_TEXT: Final = _CONTENT_TYPE + bytes((10,)) + b"text/plain"
NOT_GRPC: Final = b"This port speaks gRPC: use a RocketMQ 5 client.\n"

# A few bytes of gzip can stand for very many: what our clients never do gets less room than what they do. All messages that come
# in one read share it, and it is that of the largest body.
_MAX_INFLATED_BYTES: Final = 5 * 1024 * 1024
_MAX_STATUS_TEXT_BYTES: Final = 1024
_PLAIN: Final = string.punctuation.replace("%", "") + " "
_CONGESTED_BYTES: Final = 16 * 1024 * 1024


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

    @property
    def is_slow(self) -> bool:
        return self._connection.congested

    def when_writable(self, start: Callable[[], None]) -> None:
        connection = self._connection
        if connection.congested:
            connection.deferred[self] = start
        else:
            start()

    def answer(self, message: bytes) -> None:
        connection = self._connection
        method = self._stream.head.method
        assert method is not None
        method.figures.answered(message)
        _leave(self._stream)
        connection.http2.outgoing.respond(
            self._stream, _RESPONSE_HEAD, b"\x00" + len(message).to_bytes(4) + message, _OK_TRAILERS
        )
        if not connection.flush_wanted:
            connection.want_flush()

    def send(self, messages: Sequence[bytes]) -> None:
        connection = self._connection
        method = self._stream.head.method
        assert method is not None
        if messages and (method.kind == Kind.BIDIRECTIONAL or not self._head_sent):
            method.figures.answered(messages[0])
        if not self._head_sent:
            self.open()
        data = _framed(messages)
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

    def finish_with(self, messages: Sequence[bytes]) -> None:
        stream = self._stream
        if self._head_sent or not messages:
            self.send(messages)
            self.finish()
            return
        connection = self._connection
        method = stream.head.method
        assert method is not None
        method.figures.answered(messages[0])
        _leave(stream)
        self._head_sent = True
        data = _framed(messages)
        connection.unflushed_bytes += len(data)
        connection.http2.outgoing.respond(stream, _RESPONSE_HEAD, data, _OK_TRAILERS)
        if not connection.flush_wanted:
            connection.want_flush()

    def finish(self) -> None:
        self.fail(GrpcStatus.OK, "")

    def fail(self, status: GrpcStatus, text: str) -> None:
        connection = self._connection
        method = self._stream.head.method
        if method is not None and status:
            method.figures.ended(status.name)
        _leave(self._stream)
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
        method = self._stream.head.method
        assert method is not None
        method.figures.ended(CANCELLED)
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

    @property
    def wanted_bytes(self) -> int:
        """How long the message at the front will be; 0 = not known yet."""
        return PREFIX_BYTES + PREFIX.unpack_from(self.buffer)[1] if len(self.buffer) >= PREFIX_BYTES else 0

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """The (compressed flag, message) pairs that are complete now. Raises ValueError on a message that is too long."""
        buffer = self.buffer
        buffer += chunk
        messages = []
        position = 0
        while len(buffer) - position >= PREFIX_BYTES:
            flag, length = PREFIX.unpack_from(buffer, position)
            if length > self.max_message_bytes:
                raise ValueError(f"a message of {length} bytes; at most {self.max_message_bytes} are taken here")
            end = position + PREFIX_BYTES + length
            if end > len(buffer):
                break
            messages.append((flag, bytes(buffer[position + PREFIX_BYTES : end])))
            position = end
        del buffer[:position]
        return messages


@dataclass(frozen=True, slots=True)
class GrpcLimits:
    """What one connection may send: request messages, those of a telemetry stream, and what HTTP/2 takes."""

    max_message_bytes: int
    max_streamed_message_bytes: int
    http2: Http2Limits = field(default_factory=Http2Limits)


class Bodies(Protocol):
    """Counts what has begun to come, with the clock (`remoting/transport/watch.py`)."""

    def begin(self, holder: Holder, peer: str, wanted_bytes: int, received_bytes: int) -> Piece: ...

    def end(self, piece: Piece) -> None: ...


@dataclass(frozen=True, slots=True)
class Intake:
    """What the bodies of all connections are counted with. `user_of` says who makes a call with this metadata, before its body is
    there; raises RequestError when that is nobody who may. None = nobody is asked."""

    bodies: Bodies
    user_of: Callable[[Mapping[str, str]], str] | None = None


class _Body:
    """A body, or a message on a stream, that is not all there."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: GrpcConnection, stream: Stream[GrpcHead]) -> None:
        self._connection = connection
        self._stream = stream

    def room_came(self, piece: Piece) -> None:
        """See `unfinished.Holder`."""
        self._connection.http2.go_on(self._stream)
        self._connection.want_flush()

    def dropped(self, piece: Piece, reason: str) -> None:
        """See `unfinished.Holder`."""
        self._connection.give_up(self._stream, GrpcStatus.RESOURCE_EXHAUSTED, f"the request was given up: {reason}")


class _Unfinished:
    """What one connection's bodies count as; see `http2.Unfinished`. A user's are his own; others' are their address'."""

    __slots__ = ("_address", "_connection", "_intake")

    def __init__(self, intake: Intake, connection: GrpcConnection, address: str) -> None:
        self._intake = intake
        self._connection = connection
        self._address = address

    def begin(self, stream: Stream[GrpcHead], wanted_bytes: int, received_bytes: int) -> bool:
        """Whoever sends much shows who he is: a call's signature covers none of its body."""
        intake = self._intake
        peer = self._address
        if wanted_bytes > SMALL_BYTES and intake.user_of is not None and stream.head.refusal is None:
            try:
                peer = intake.user_of(stream.head.metadata)
            except RequestError as error:
                self._connection.give_up(stream, GrpcStatus.UNAUTHENTICATED, str(error))
                return False
        piece = intake.bodies.begin(_Body(self._connection, stream), peer, wanted_bytes, received_bytes)
        if piece.is_over:
            return False
        stream.piece = piece
        return True

    def end(self, stream: Stream[GrpcHead]) -> None:
        if stream.piece is not None:
            self._intake.bodies.end(stream.piece)
            stream.piece = None

    def grew(self, stream: Stream[GrpcHead]) -> None:
        piece = stream.piece
        if piece is not None and piece.waits:
            piece.budget.grew(piece)


class GrpcConnection:
    """One client connection. `wants_flush` is told when output waits; `write_paused` is the shell's word on a slow reader."""

    __slots__ = (
        "_inflatable_bytes",
        "_intake",
        "_max_streamed_message_bytes",
        "_unfinished",
        "_wants_flush",
        "deferred",
        "flush_wanted",
        "http2",
        "is_stranger",
        "peer",
        "unflushed_bytes",
        "write_paused",
    )

    def __init__(
        self,
        heads: CallHeads,
        limits: GrpcLimits,
        intake: Intake,
        *,
        peer: Peer,
        wants_flush: Callable[[GrpcConnection], None],
        now_ms: int,
    ) -> None:
        self._intake = intake
        self.is_stranger = intake.user_of is not None  # until a call comes that somebody signed who is known
        self._max_streamed_message_bytes = limits.max_streamed_message_bytes
        self.peer = peer
        self._wants_flush = wants_flush
        self.flush_wanted = False
        self.write_paused = False
        self.unflushed_bytes = 0
        self._inflatable_bytes = _MAX_INFLATED_BYTES
        self.deferred: dict[GrpcCall, Callable[[], None]] = {}
        self._unfinished = _Unfinished(intake, self, peer_of(split_address(peer.address)[0]))
        self.http2: http2.ServerConnection[GrpcHead] = http2.ServerConnection(
            limits.http2, self._unfinished, heads.reader(limits.http2), now_ms
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
        self._inflatable_bytes = _MAX_INFLATED_BYTES
        for event, stream, chunk in self.http2.receive(data, now_ms):
            head = stream.head
            if self.is_stranger and event in (http2.REQUEST, http2.OPENED):
                self._look_who_asks(head)
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

    def _look_who_asks(self, head: GrpcHead) -> None:
        assert self._intake.user_of is not None
        try:
            self._intake.user_of(head.metadata)
        except RequestError:
            return  # the method says so
        self.is_stranger = False

    @property
    def congested(self) -> bool:
        """The client reads slower than it asks: no work that ends in a large answer is begun."""
        waiting = max(self.unflushed_bytes, self.http2.outgoing.blocked_bytes)
        return self.write_paused or waiting > _CONGESTED_BYTES

    def resume(self) -> None:
        """Begin what was put off, as far as the client has caught up."""
        while self.deferred and not self.congested:
            call = next(iter(self.deferred))
            start = self.deferred.pop(call)
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

    # ---- bodies

    def _unpack_only_message(self, stream: Stream[GrpcHead], body: bytes) -> bytes | None:
        """The message of a unary call that is not the plain case; None after the call was refused."""
        if len(body) < PREFIX_BYTES:
            self._fail(stream, GrpcStatus.INTERNAL, "the request has no message")
            return None
        flag, length = PREFIX.unpack_from(body)
        if length != len(body) - PREFIX_BYTES:
            self._fail(stream, GrpcStatus.INTERNAL, "the request is not exactly one message")
            return None
        return self._decompress(stream, flag, body[PREFIX_BYTES:], stream.head.max_body_bytes - PREFIX_BYTES)

    def _decompress(self, stream: Stream[GrpcHead], flag: int, message: bytes, max_bytes: int) -> bytes | None:
        if not flag:
            return message
        if flag != 1 or stream.head.encoding != "gzip":
            self._fail(stream, GrpcStatus.INTERNAL, "a compressed message without a grpc-encoding")
            return None
        decompressor = zlib.decompressobj(wbits=31)
        try:
            plain = decompressor.decompress(message, max(1, min(max_bytes, self._inflatable_bytes)))
        except zlib.error as error:
            self._fail(stream, GrpcStatus.INTERNAL, f"undecodable gzip message: {error}")
            return None
        self._inflatable_bytes -= len(plain)
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
        assert stream.head.method is not None
        stream.head.method.figures.open_streams += 1
        call.open()
        if stream.state == OPEN:
            self._unfinished.begin(stream, stream.head.held_bytes(), 0)  # until its first message is there

    def _read_chunk(self, stream: Stream[GrpcHead], chunk: bytes) -> list[GrpcCall]:
        reader = stream.context
        if not isinstance(reader, _MessageReader) or stream.state == CLOSED:
            return []
        try:
            complete = reader.feed(chunk)
        except ValueError as error:
            self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, str(error))
            return []
        self._count_unfinished(stream, reader, is_another=bool(complete))
        calls = []
        for flag, message in complete:
            plain = self._decompress(stream, flag, message, self._max_streamed_message_bytes)
            if plain is None:
                break
            calls.append(reader.call.continued(plain))
        return calls

    def _count_unfinished(self, stream: Stream[GrpcHead], reader: _MessageReader, *, is_another: bool) -> None:
        piece, kept_bytes, wanted_bytes = stream.piece, reader.kept_bytes, reader.wanted_bytes
        if piece is not None and not is_another and kept_bytes and piece.wanted_bytes == (wanted_bytes or SMALL_BYTES):
            piece.received_bytes = kept_bytes
            self._unfinished.grew(stream)
            return
        self._unfinished.end(stream)
        if kept_bytes:
            self._unfinished.begin(stream, wanted_bytes or SMALL_BYTES, kept_bytes)

    # ---- refusals

    def give_up(self, stream: Stream[GrpcHead], status: GrpcStatus, text: str) -> None:
        """End a call whose message is not all there."""
        self.http2.refuse_body(stream)
        self._fail(stream, status, text)

    def end_late_requests(self, now_ms: int, deadline_ms: int) -> None:
        """Of requests that began longer ago than that, as far as earlier calls of this tell, and did not end."""
        for stream in self.http2.late_requests(now_ms, now_ms - deadline_ms):
            text = f"the request was given up: it did not come within {deadline_ms / 1000:g} s"
            self.give_up(stream, GrpcStatus.RESOURCE_EXHAUSTED, text)

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
        most = stream.head.max_body_bytes - PREFIX_BYTES
        text = f"the message is larger than {most} bytes, or too many are unfinished at once"
        self._fail(stream, GrpcStatus.RESOURCE_EXHAUSTED, text)

    def _fail(self, stream: Stream[GrpcHead], status: GrpcStatus, text: str) -> None:
        if isinstance(stream.context, _MessageReader):
            stream.context.call.fail(status, text)
        else:
            GrpcCall(self, stream, b"", None).fail(status, text)


def _framed(messages: Sequence[bytes]) -> bytes:
    """Messages as they go over the wire, none of them compressed."""
    parts = []
    for message in messages:
        parts.append(PREFIX.pack(0, len(message)))
        parts.append(message)
    return b"".join(parts)


def _cancel(stream: Stream[GrpcHead]) -> None:
    context = stream.context
    _leave(stream)
    if isinstance(context, GrpcCall):
        context.cancelled()


def _leave(stream: Stream[GrpcHead]) -> None:
    """Nobody waits for an answer on the stream, or reads from it, any more."""
    if isinstance(stream.context, _MessageReader):
        assert stream.head.method is not None
        stream.head.method.figures.open_streams -= 1
    stream.context = None


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
