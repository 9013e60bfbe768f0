"""The gRPC port: sockets, TLS, the clock and the flow of bytes around the pure connection (shell).

One listener, one protocol object per connection, no task per anything. Output of all connections is written once per turn of
the loop. A connection that reads slowly is not read from; one that does not come to the point, stalls, or idles without an open
stream is closed by one sweep for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from brokerd.proxy.calls import Call, Method, Peer, run
from brokerd.proxy.grpc import NOT_GRPC, GrpcConnection, GrpcLimits, Intake
from brokerd.proxy.heads import PREFIX_BYTES, CallHeads
from brokerd.proxy.http2.frames import PREFACE
from remoting.errors import ProtocolError, SettingsError
from remoting.record.hosts import pack_host
from remoting.settings import setting
from remoting.transport import tls
from remoting.transport.carrying import nothing
from remoting.transport.refusals import Refusals
from remoting.transport.tls import DISABLED, PERMISSIVE, TlsSettings, tls_server
from remoting.transport.waiting import MOST_STRANGERS, Waiting
from remoting.transport.watch import UnfinishedSettings, Watch

log = logging.getLogger(__name__)

_MIB: Final = 1024 * 1024
_HIGH_WATER_BYTES: Final = _MIB
_SWEPT_AT_ONCE: Final = 1000
_STREAMS_OF_A_LOOK: Final = 16  # as long as a connection's own look takes

PROTOCOLS: Final = ("h2",)

_HTTP_1_REQUESTS: Final = (b"GET ", b"HEAD ", b"OPTIONS ", b"DELETE ")
_WRONG_PROTOCOL: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    % len(NOT_GRPC)
    + NOT_GRPC
)


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """Bounds of the gRPC port."""

    max_message_bytes: int = setting(
        130 * _MIB, "the largest request message taken", minimum=16 * 1024, maximum=1024 * _MIB
    )
    max_streamed_message_bytes: int = setting(
        _MIB, "the largest message taken on a telemetry stream", minimum=1024, maximum=64 * _MIB
    )
    max_connections: int = setting(10000, "client connections at the same time", minimum=1)
    max_unwritten_bytes: int = setting(
        256 * _MIB, "answers that one client has not read; beyond it is disconnected", minimum=_MIB
    )
    handshake_s: float = setting(10.0, "how long a new connection may take to say what it is", minimum=0.01)
    idle_s: float = setting(120.0, "after which a connection without an open call is closed", minimum=0.01)
    stalled_s: float = setting(30.0, "how long a client may leave its answers unread", minimum=0.01)
    drain_s: float = setting(1.0, "how long a stop waits for calls to be answered", minimum=0.0, maximum=60)
    sweep_s: float = setting(5.0, "how often idle and stalled connections are looked for", minimum=0.01, maximum=60)
    certificate_path: str = setting(
        "", "a certificate of this port's own, a PEM file: makes it answer TLS as well as plaintext; needs key_path"
    )
    key_path: str = setting("", "the certificate's private key, a PEM file")


def _of_this_port(tls: TlsSettings, settings: EndpointSettings) -> TlsSettings:
    """The daemon's TLS with this port's own certificate, if it has one: without TLS elsewhere it is beside plaintext."""
    if bool(settings.certificate_path) != bool(settings.key_path):
        raise SettingsError("set both grpc.certificate_path and grpc.key_path for TLS, or neither")
    if not settings.certificate_path:
        return tls
    return replace(
        tls,
        mode=PERMISSIVE if tls.mode == DISABLED else tls.mode,
        certificate_path=settings.certificate_path,
        key_path=settings.key_path,
    )


@dataclass(frozen=True, slots=True)
class Protection:
    """What protects the daemon's ports: its TLS (a certificate of this port's own takes the place of that one, and all else of it
    counts); what it counts unfinished frames and bodies with; and who makes a call (`grpc.Intake`)."""

    tls: TlsSettings | None = None
    watch: Watch | None = None
    user_of: Callable[[Mapping[str, str]], str] | None = None


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class GrpcEndpoint:
    """The listener. `heads` has the methods; `closed` learns the identity of each connection that went away."""

    def __init__(
        self,
        host: str,
        port: int,
        heads: CallHeads,
        settings: EndpointSettings,
        *,
        closed: Callable[[object], None] | None = None,
        protection: Protection | None = None,
    ) -> None:
        """Without a watch of the daemon's the port has a budget of its own."""
        protection = protection or Protection()
        self.watch = protection.watch or Watch(UnfinishedSettings())
        most = self.watch.proven.most_piece_bytes - PREFIX_BYTES
        if settings.max_message_bytes > most:
            raise SettingsError(
                f"grpc.max_message_bytes is {settings.max_message_bytes}, and unfinished.max_bytes leaves room for {most}: "
                "lower the one or raise the other"
            )
        self._host = host
        self._port = port
        self._closed = closed
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._unswept: list[GrpcProtocol] = []
        self._flush_scheduled = False
        self._dirty: list[GrpcConnection] = []
        self._drained: asyncio.Event | None = None
        self.heads = heads
        self.settings = settings
        self.limits = GrpcLimits(settings.max_message_bytes, settings.max_streamed_message_bytes)
        self.intake = Intake(self.watch, protection.user_of)
        self.tls = tls_server(_of_this_port(protection.tls or TlsSettings(), settings), PROTOCOLS)
        self.connections: set[GrpcProtocol] = set()
        self.catch_up: Callable[[], None] = nothing  # called before anything is read: see `connection.Intake`
        self._strangers = Waiting(MOST_STRANGERS)
        self._refusals = Refusals(log, "gRPC connections")

    @property
    def port(self) -> int:
        """The bound port (the one given, or the one chosen for 0)."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Bind and serve. Raises SettingsError when the address cannot be bound."""
        self._loop = asyncio.get_running_loop()
        try:
            self._server = await self._loop.create_server(
                lambda: GrpcProtocol(self), self._host, self._port, backlog=1024
            )
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror}; free the port or choose another one"
            ) from error
        self._sweeper = self._loop.call_later(self.settings.sweep_s, self._sweep)

    def stop_listening(self) -> None:
        """Take no further connections."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Stop listening, let what is being answered be answered for a moment, then close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is None:
            return
        self.stop_listening()
        for connection in list(self.connections):
            connection.go_away()
        if self.connections:
            self._drained = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.drain_s):
                    await self._drained.wait()
        for connection in list(self.connections):
            connection.abort("the broker is stopping")
        await self._server.wait_closed()

    # ---- what the connections call

    def flush_soon(self, connection: GrpcConnection) -> None:
        """Write the connection's output at the end of this turn."""
        self._dirty.append(connection)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def opened(self, connection: GrpcProtocol) -> bool:
        """Count a connection in; False when there are too many."""
        if len(self.connections) >= self.settings.max_connections and not self._strangers.make_room():
            self._refusals.note(connection.address, len(self.connections))
            return False
        self.connections.add(connection)
        if self.intake.user_of is not None:
            self._strangers.begin(connection)
        return True

    def proved(self, connection: GrpcProtocol) -> None:
        """Somebody who is known asked something there."""
        self._strangers.end(connection)

    def lost(self, connection: GrpcProtocol) -> None:
        self.connections.discard(connection)
        self._strangers.end(connection)
        if self._closed is not None:
            self._closed(connection)
        if self._drained is not None and not self.connections:
            self._drained.set()

    # ---- inside

    def _flush(self) -> None:
        self._flush_scheduled = False
        dirty, self._dirty = self._dirty, []
        for connection in dirty:
            protocol = connection.peer.connection
            assert isinstance(protocol, GrpcProtocol)
            protocol.flush()
            connection.flushed()

    def _sweep(self) -> None:
        """Look at some of the connections, so that no turn of the loop is long; at the others in the next turns."""
        unswept = self._unswept or list(self.connections)
        now_ms = monotonic_ms()
        looks = 0
        while unswept and looks < _SWEPT_AT_ONCE:
            connection = unswept.pop()
            if connection in self.connections:
                looks += 1 + connection.stream_count // _STREAMS_OF_A_LOOK
                connection.check_progress(now_ms)
        self._unswept = unswept
        self._sweeper = self._loop.call_later(0 if unswept else self.settings.sweep_s, self._sweep)


class GrpcProtocol(asyncio.Protocol):
    """One connection. Its first byte decides whether TLS comes between the transport and the gRPC connection."""

    __slots__ = (
        "_active_ms",
        "_endpoint",
        "_going_away",
        "_grpc",
        "_opened_ms",
        "_peer",
        "_progress_ms",
        "_tls",
        "_transport",
        "_unwritten",
        "address",
    )

    def __init__(self, endpoint: GrpcEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: Any = None
        self._tls: tls.TlsLayer | None = None
        self._grpc: GrpcConnection | None = None
        self._going_away = False
        self._opened_ms = self._active_ms = self._progress_ms = monotonic_ms()
        self._unwritten = (0, 0)
        self.address = "?"

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._peer = Peer(self.address, pack_host(host, port), self)
        if not self._endpoint.opened(self):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        _keep_alive(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        now_ms = self._active_ms = monotonic_ms()
        self._endpoint.catch_up()
        if self._grpc is None and not self._begin(data, now_ms):
            return
        if self._tls is not None:
            try:
                data = self._tls.receive(data)
            except ProtocolError as error:
                self._transport.write(self._tls.take_output())
                self.abort(str(error))
                return
            self.flush()
            if self._tls.ended:
                self._close()
                return
        assert self._grpc is not None
        was_stranger = self._grpc.is_stranger
        self._grpc.receive(data, now_ms, _execute)
        if was_stranger and not self._grpc.is_stranger:
            self._endpoint.proved(self)
        if self._grpc.http2.outgoing or self._grpc.http2.fault is not None:
            self._grpc.want_flush()

    def pause_writing(self) -> None:
        self._pause(True)

    def resume_writing(self) -> None:
        self._pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._grpc is not None:
            self._grpc.close()
        self._endpoint.lost(self)

    # ---- what the endpoint calls

    def flush(self) -> None:
        """Write what the connection has to say; close it when that was its last word."""
        if self._transport is None or self._grpc is None:
            return
        http2 = self._grpc.http2
        if http2.outgoing:
            output = http2.outgoing.take()
            self._transport.write(self._tls.send(output) if self._tls is not None else output)
        elif self._tls is not None and (output := self._tls.take_output()):
            self._transport.write(output)
        if http2.fault is not None:
            log.info("closing the gRPC connection of %s: %s", self.address, http2.fault)
            self._close()
        elif self._going_away and not http2.streams:
            self._close()
        elif self._transport.get_write_buffer_size() > self._endpoint.settings.max_unwritten_bytes:
            self.abort("it reads its answers too slowly")

    def go_away(self) -> None:
        """Finish what is being answered, then close."""
        self._going_away = True
        if self._grpc is None:
            self.abort("the broker is stopping")
            return
        self._grpc.go_away()
        self._grpc.want_flush()

    @property
    def stream_count(self) -> int:
        return 0 if self._grpc is None else len(self._grpc.http2.streams)

    def check_progress(self, now_ms: int) -> None:
        """Close a connection that does not come to the point, does not read, or has nothing to do."""
        settings = self._endpoint.settings
        if self._grpc is None or not self._grpc.http2.ready:
            if now_ms - self._opened_ms > settings.handshake_s * 1000:
                self.abort("no HTTP/2 preface came")
            return
        http2 = self._grpc.http2
        deadline_ms = self._endpoint.watch.deadline_ms
        if http2.is_late(now_ms - deadline_ms):
            self.abort(f"it began a frame or the head of a request, and did not end it within {deadline_ms / 1000:g} s")
            return
        self._grpc.end_late_requests(now_ms, deadline_ms)
        unwritten = (self._transport.get_write_buffer_size(), http2.outgoing.blocked_bytes)
        if unwritten != self._unwritten or unwritten == (0, 0):
            self._unwritten = unwritten
            self._progress_ms = now_ms
        elif now_ms - self._progress_ms > settings.stalled_s * 1000:
            self.abort(f"it does not read: {sum(unwritten)} bytes of answers wait")
            return
        if not http2.streams and now_ms - self._active_ms > settings.idle_s * 1000:
            http2.go_away("idle")
            self._going_away = True
            self._grpc.want_flush()

    def give_way(self) -> None:
        """See `waiting.Waiter`."""
        self.abort("it has not shown who it is, and too many others come")

    def abort(self, reason: str) -> None:
        """Close at once and drop what was not written."""
        if self._transport is not None:
            log.info("dropping the gRPC connection of %s: %s", self.address, reason)
            self._transport.abort()

    # ---- inside

    def _begin(self, data: bytes, now_ms: int) -> bool:
        """Decide what this connection speaks; False when it is nothing that we do."""
        first_byte = data[0]
        if first_byte == tls.FIRST_BYTE and self._endpoint.tls is not None:
            self._tls = self._endpoint.tls.layer()
        elif first_byte == tls.FIRST_BYTE:
            self.abort("it speaks TLS, and tls.mode is disabled; let the client use plaintext")
            return False
        elif self._endpoint.tls is not None and self._endpoint.tls.enforcing:
            self.abort("it speaks plaintext, and tls.mode is enforcing; let the client use TLS")
            return False
        elif first_byte != PREFACE[0]:
            if data.startswith(_HTTP_1_REQUESTS):
                self._transport.write(_WRONG_PROTOCOL)
            self._close()
            return False
        self._grpc = GrpcConnection(
            self._endpoint.heads,
            self._endpoint.limits,
            self._endpoint.intake,
            peer=self._peer,
            wants_flush=self._endpoint.flush_soon,
            now_ms=now_ms,
        )
        return True

    def _pause(self, paused: bool) -> None:
        """A peer that does not read its answers is not listened to either."""
        if self._grpc is not None:
            self._grpc.write_paused = paused
            if not paused:
                self._grpc.resume()
        if self._transport is None or self._transport.is_closing():
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _close(self) -> None:
        if self._transport is not None:
            if self._tls is not None:
                self._transport.write(self._tls.close())
            self._transport.close()


def _execute(method: Method, calls: Sequence[Call]) -> None:
    run(method.handler, calls)


def _keep_alive(connected: socket.socket | None) -> None:
    """Let the kernel find out within half a minute when the client's machine is gone."""
    if connected is None:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 15),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_NODELAY, 1),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
