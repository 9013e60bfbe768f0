"""The master's side of forwarded calls: the same methods, called by replicas instead of clients (shell over remoting)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.proxy.bundles import SENDS, decode_calls
from brokerd.proxy.calls import Call, GrpcStatus, Handler, Peer, run
from brokerd.proxy.forwarded_bundle import BundledCall, ForwardedBundle
from brokerd.proxy.forwarded_call import ForwardedCall
from brokerd.proxy.methods.base import CLIENT_ID
from brokerd.proxy.proxy_call import (
    ANSWER,
    CANCEL,
    CONNECTION_CLOSED,
    MORE,
    PUSH,
    STREAM_CLOSED,
    ProxyCall,
    encode_messages,
)
from brokerd.proxy.sessions import MAX_SESSIONS_PER_CONNECTION
from brokerd.replication.replica import Replica
from remoting import codes
from remoting.errors import NotMaster, ProtocolError, RequestError
from remoting.frame import Command
from remoting.record.hosts import pack_host
from remoting.transport.client import split_address
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

TELEMETRY: Final = "Telemetry"
SEND_MESSAGE: Final = "SendMessage"

_RETURN_S: Final = 15.0  # longer than the ten seconds between a client's heartbeats
_NO_HOST: Final = bytes(8)


@dataclass(slots=True, eq=False)
class ForwardedStream:
    """A client's telemetry stream at a replica, as a `calls.Call`: what is sent goes there as it is, and is never answered."""

    connection: RemotingConnection
    origin: ProxyCall
    peer: Peer
    message: bytes
    deadline_ms: int | None = None
    on_cancel: Callable[[], None] | None = None
    is_closed: bool = False

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.origin.metadata or {}

    @property
    def live(self) -> bool:
        return self.connection.is_open and not self.is_closed

    @property
    def is_slow(self) -> bool:
        return self.connection.is_slow

    @property
    def client_id(self) -> str:
        return self.metadata.get(CLIENT_ID, "")

    def when_writable(self, start: Callable[[], None]) -> None:
        start()

    def answer(self, message: bytes) -> None:
        self.send([message])

    def send(self, messages: Sequence[bytes]) -> None:
        place = ProxyCall(PUSH, 0, client=self.origin.client, metadata={CLIENT_ID: self.client_id})
        self.connection.notify(codes.PROXY_CALL, place.to_ext(), encode_messages(messages))

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)
        self.finish()

    def finish(self) -> None:
        self.is_closed = True

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.is_closed = True


class ForwardedCalls:
    """The handler of forwarded calls. `closed` is told of clients that went away from their replica."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        mastership: Replica,
        scheduler: Scheduler,
        closed: Callable[[object], None],
    ) -> None:
        self._handlers = handlers
        self._mastership = mastership
        self._scheduler = scheduler
        self._closed = closed
        self._calls: dict[RemotingConnection, dict[int, ForwardedCall | ForwardedBundle]] = {}
        # what stands for a client's connection to a replica in the registry of clients
        self._clients: dict[RemotingConnection, dict[int, object]] = {}
        self._returning: dict[RemotingConnection, Timer] = {}
        # the latest of each client, by its connection to the replica and its id
        self._streams: dict[RemotingConnection, dict[int, dict[str, ForwardedStream]]] = {}

    def handle(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """The handler of code PROXY_CALL: the requests of one read event."""
        batches: dict[str, list[Call]] = {}
        for request in requests:
            try:
                origin = ProxyCall.from_ext(request.ext)
            except ProtocolError as error:
                connection.respond_error(request, error)
                continue
            if origin.method == CANCEL:
                call = self._calls.get(connection, {}).get(origin.call_id)
                if call is not None:
                    call.cancel()
            elif origin.method == MORE:
                self._fetch(connection, request, origin.call_id)
            elif origin.method == CONNECTION_CLOSED:
                for stream in self._streams.get(connection, {}).pop(origin.client, {}).values():
                    stream.finish()
                client = self._clients.get(connection, {}).pop(origin.client, None)
                if client is not None:
                    self._closed(client)
            elif origin.method == STREAM_CLOSED:
                self._stream_closed(connection, origin)
            elif not self._mastership.serves_clients:
                connection.respond_error(request, NotMaster())
            elif origin.method in (TELEMETRY, ANSWER):
                stream = ForwardedStream(connection, origin, self._peer(connection, origin), bytes(request.body))
                if origin.method == TELEMETRY:
                    self._stream_opened(connection, stream)
                batches.setdefault(TELEMETRY, []).append(stream)
            elif origin.method == SENDS:
                batches.setdefault(SEND_MESSAGE, []).extend(self._accept_bundle(connection, request, origin))
            elif origin.method not in self._handlers:
                connection.respond(request, codes.REQUEST_CODE_NOT_SUPPORTED, remark=f"no method {origin.method}")
            else:
                batches.setdefault(origin.method, []).append(self._accept(connection, request, origin))
        for method, calls in batches.items():
            run(self._handlers[method], calls)

    def connection_closed(self, connection: RemotingConnection) -> None:
        """A replica's connection is gone: nobody waits for its calls any more.

        Its clients get some time to come back, by another connection of the replica or to another broker, before they count as
        gone: what they hold must not be given to others because of a broken connection between brokers.
        """
        self._streams.pop(connection, None)
        for call in list(self._calls.pop(connection, {}).values()):
            call.cancel()
        clients = list(self._clients.pop(connection, {}).values())
        if clients:
            timer = self._scheduler.call_later(_RETURN_S, self._gone, connection, clients)
            self._returning[connection] = timer

    def stop(self) -> None:
        """Wait for nobody's return any more."""
        for timer in self._returning.values():
            timer.cancel()
        self._returning.clear()

    def _gone(self, connection: RemotingConnection, clients: Sequence[object]) -> None:
        self._returning.pop(connection, None)
        for client in clients:
            self._closed(client)

    def _peer(self, connection: RemotingConnection, origin: ProxyCall) -> Peer:
        client = self._clients.setdefault(connection, {}).setdefault(origin.client, object())
        return Peer(origin.peer, _packed(origin.peer), client)

    def _stream_opened(self, connection: RemotingConnection, stream: ForwardedStream) -> None:
        """A client sent settings: the stream that brought them takes the place of an earlier one of the same client."""
        streams = self._streams.setdefault(connection, {}).setdefault(stream.origin.client, {})
        earlier = streams.pop(stream.client_id, None)
        if earlier is not None:
            earlier.finish()
        streams[stream.client_id] = stream
        if len(streams) > MAX_SESSIONS_PER_CONNECTION:
            streams.pop(next(iter(streams))).finish()

    def _stream_closed(self, connection: RemotingConnection, origin: ProxyCall) -> None:
        client_id = (origin.metadata or {}).get(CLIENT_ID, "")
        stream = self._streams.get(connection, {}).get(origin.client, {}).pop(client_id, None)
        if stream is not None:
            stream.finish()

    def _accept(self, connection: RemotingConnection, request: Command, origin: ProxyCall) -> ForwardedCall:
        deadline_ms = int(self._scheduler.time() * 1000) + origin.timeout_ms if origin.timeout_ms else None
        peer = self._peer(connection, origin)
        call = ForwardedCall(self._finished, connection, request, origin, peer, deadline_ms, bytes(request.body))
        self._calls.setdefault(connection, {})[origin.call_id] = call
        return call

    def _accept_bundle(self, connection: RemotingConnection, request: Command, bundle: ProxyCall) -> Sequence[Call]:
        """The calls of a bundle; none when it cannot be read, which is answered."""
        try:
            sent = decode_calls(bytes(request.body))
            if not sent:
                raise ProtocolError("a bundle of no forwarded calls")
        except ProtocolError as error:
            connection.respond_error(request, error)
            return ()
        calls = self._calls.setdefault(connection, {})

        def done() -> None:
            calls.pop(bundle.call_id, None)

        answers = ForwardedBundle(connection, request, len(sent), self._scheduler, done)
        calls[bundle.call_id] = answers
        now_ms = int(self._scheduler.time() * 1000)
        found = []
        peers: dict[int, Peer] = {}
        for origin, message in sent:
            deadline_ms = now_ms + origin.timeout_ms if origin.timeout_ms else None
            peer = peers.get(origin.client)
            if peer is None:
                peer = peers[origin.client] = self._peer(connection, origin)
            call = BundledCall(self._finished, connection, None, origin, peer, deadline_ms, message, bundle=answers)
            calls[origin.call_id] = call
            found.append(call)
        return found

    def _finished(self, call: ForwardedCall) -> None:
        self._calls.get(call.connection, {}).pop(call.origin.call_id, None)

    def _fetch(self, connection: RemotingConnection, request: Command, call_id: int) -> None:
        call = self._calls.get(connection, {}).get(call_id)
        if call is None:
            connection.respond(request, codes.SYSTEM_ERROR, remark=f"there is no rest of call {call_id}")
        else:
            call.fetch(request)


@lru_cache(maxsize=1024)
def _packed(address: str) -> bytes:
    """The address of a client as records have it."""
    try:
        return pack_host(*split_address(address))
    except (OSError, RequestError):
        return _NO_HOST
