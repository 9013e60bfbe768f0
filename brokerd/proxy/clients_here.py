"""The clients of a replica, as its master knows them: each connection by a number, and each client by its last settings.

Telemetry streams end here. Every master is told of their clients, pushes to them what it has to say, and is passed their answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from brokerd.proxy.calls import Call
from brokerd.proxy.forwarded import TELEMETRY
from brokerd.proxy.methods.base import CLIENT_ID
from brokerd.proxy.methods.telemetry import MAX_KEPT_BYTES
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy_call import ANSWER, CONNECTION_CLOSED, PUSH, STREAM_CLOSED, ProxyCall, decode_messages
from brokerd.proxy.sessions import MAX_SESSIONS_PER_CONNECTION, MAX_SETTINGS_BYTES
from remoting import codes
from remoting.errors import ProtocolError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_NOBODY: Final = 0  # whose connection was closed, and has no number any more


class _Announcement(NamedTuple):
    """A client's last settings: the call that brought them, which is its stream, and the message."""

    call: Call
    settings: bytes


class ClientsHere:
    """Those of one replica. Calls that are told of go to the master on its connection, if there is one."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._call_ids = itertools.count(1)
        self._next_number = itertools.count(1)
        self._numbers: dict[object, int] = {}
        self._connections: dict[int, object] = {}  # by their numbers
        self._announced: dict[object, dict[str, _Announcement]] = {}
        self._announced_bytes = 0

    def __len__(self) -> int:
        """How many connections have numbers."""
        return len(self._numbers)

    def next_call_id(self) -> int:
        """Another one each time."""
        return next(self._call_ids)

    def origin(self, name: str, call: Call) -> ProxyCall:
        """The call, as the master is told of it under the method's name."""
        left_ms = 0 if call.deadline_ms is None else max(1, call.deadline_ms - self._now_ms())
        client = self._number_of(call)
        return ProxyCall(name, self.next_call_id(), left_ms, call.peer.address, client, call.metadata)

    def _number_of(self, call: Call) -> int:
        connection = call.peer.connection
        number = self._numbers.get(connection)
        if number is None:
            if not call.live:
                return _NOBODY  # nobody would take its number back
            number = self._numbers[connection] = next(self._next_number)
            self._connections[number] = connection
        return number

    def connection_closed(self, connection: object, masters: Iterable[RemotingConnection]) -> None:
        """A client's connection is gone: the master should not wait for it, nor those before, who may lead again."""
        for client_id in list(self._announced.get(connection, ())):
            self.forget(connection, client_id)
        self._announced.pop(connection, None)
        number = self._numbers.pop(connection, None)
        if number is None:
            return
        del self._connections[number]
        for master in masters:
            if master.is_open:
                master.notify(codes.PROXY_CALL, ProxyCall(CONNECTION_CLOSED, 0, client=number).to_ext())

    # ---- telemetry

    def note(self, master: RemotingConnection | None, call: Call, message: bytes) -> None:
        """Keep a client's last settings for as long as it is connected: every new master is told of them. Pass answers on."""
        try:
            command = service.TelemetryCommand.FromString(message)
        except DecodeError:
            return  # that was answered
        if not command.HasField("settings"):
            if master is not None:
                self._tell(master, ANSWER, call, message)
            return
        identity = call.metadata.get(CLIENT_ID, "")
        self.forget(call.peer.connection, identity)
        clients = self._announced.setdefault(call.peer.connection, {})
        has_room = self._announced_bytes + len(message) <= MAX_SETTINGS_BYTES
        if has_room and len(message) <= MAX_KEPT_BYTES and len(clients) < MAX_SESSIONS_PER_CONNECTION:
            clients[identity] = _Announcement(call, message)
            self._announced_bytes += len(message)
        if master is not None:
            self._tell(master, TELEMETRY, call, message)

    def forget(self, connection: object, client_id: str) -> None:
        """No later master is told of it."""
        announcement = self._announced.get(connection, {}).pop(client_id, None)
        if announcement is not None:
            self._announced_bytes -= len(announcement.settings)

    def tell_all(self, master: RemotingConnection) -> None:
        """Tell a new master who is there."""
        for clients in self._announced.values():
            for call, settings in clients.values():
                self._tell(master, TELEMETRY, call, settings)

    def _tell(self, master: RemotingConnection, method: str, call: Call, message: bytes) -> None:
        origin = self.origin(method, call)
        if origin.client != _NOBODY:
            master.notify(codes.PROXY_CALL, origin.to_ext(), message)

    def handle_pushes(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        """The master has something to say to clients of ours."""
        for request in requests:
            try:
                place = ProxyCall.from_ext(request.ext)
                messages = decode_messages(bytes(request.body))
            except ProtocolError as error:
                connection.respond_error(request, error)
                continue
            client_id = (place.metadata or {}).get(CLIENT_ID, "")
            announced = self._announced.get(self._connections.get(place.client), {}).get(client_id)
            if place.method == PUSH and announced is not None and announced.call.live and not announced.call.is_slow:
                announced.call.send(messages)
            elif place.method == PUSH:
                gone = ProxyCall(STREAM_CLOSED, 0, client=place.client, metadata={CLIENT_ID: client_id})
                connection.notify(codes.PROXY_CALL, gone.to_ext())
