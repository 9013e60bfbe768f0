"""Calls of gRPC clients that a broker is given without a socket between: one that is answered once, and a telemetry stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from brokerd.proxy.calls import GrpcStatus, Peer
from brokerd.proxy.methods.base import CLIENT_ID
from remoting.record.hosts import pack_host
from tests.sim.clients import Client, Reply

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker

_CALL_MS = 2000
_HOST = pack_host("10.1.0.9", 40000)


class UnaryCall:
    """A `Call` of a client that waits for one message."""

    is_slow = False

    def __init__(self, client: Client, broker: SimBroker, message: bytes, reply: Reply) -> None:
        self.message = message
        self.metadata: Mapping[str, str] = {CLIENT_ID: client.name}
        self.deadline_ms: int | None = broker.monotonic_ms() + _CALL_MS
        self.peer = Peer("10.1.0.9:40000", _HOST, client)
        self.live = True
        self.on_cancel: Callable[[], None] | None = None
        self._reply = reply

    def when_writable(self, start: Callable[[], None]) -> None:
        start()

    def answer(self, message: bytes) -> None:
        assert self.live, "a call is answered twice"
        self.live = False
        self._reply(message)

    def send(self, messages: Sequence[bytes]) -> None:
        raise AssertionError("a unary call has one answer")

    def finish_with(self, messages: Sequence[bytes]) -> None:
        raise AssertionError("a unary call has one answer")

    def finish(self) -> None:
        raise AssertionError("a unary call has one answer")

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.live = False
        self._reply(None)


class StreamCall:
    """A `Call` that stays open: a client's telemetry stream at one life of a broker, until the client opens another."""

    is_slow = False

    def __init__(
        self, client: Client, broker: SimBroker, message: bytes, heard: Callable[[SimBroker, bytes], None]
    ) -> None:
        self.message = message
        self.metadata: Mapping[str, str] = {CLIENT_ID: client.name}
        self.deadline_ms: int | None = None
        self.peer = Peer("10.1.0.9:40000", _HOST, client)
        self.on_cancel: Callable[[], None] | None = None
        self.is_closed = False
        self.broker = broker
        self._client = client
        self._life = broker.life
        self._heard = heard

    @property
    def live(self) -> bool:
        return not self.is_closed and self.broker.is_up and self.broker.life == self._life

    def when_writable(self, start: Callable[[], None]) -> None:
        start()

    def answer(self, message: bytes) -> None:
        self.send([message])

    def send(self, messages: Sequence[bytes]) -> None:
        broker = self.broker
        for message in messages:
            broker.network.send(broker, self._client, lambda message=message: self._heard(broker, message))

    def finish_with(self, messages: Sequence[bytes]) -> None:
        self.send(messages)
        self.finish()

    def finish(self) -> None:
        self.is_closed = True

    def fail(self, status: GrpcStatus, text: str) -> None:
        self.is_closed = True
