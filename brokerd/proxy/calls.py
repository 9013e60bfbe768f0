"""A call as a method sees it, whether it came over HTTP/2 or from a replica that forwards it (pure).

Methods get the calls of one read event together, answer each of them once, now or later, and never wait. What a call answers
when its client is gone is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

log = logging.getLogger(__name__)


class GrpcStatus(IntEnum):
    """The transport's own status; what a method decided is in its response's `status` instead, with the transport's OK."""

    OK = 0
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a call came from: host:port, the same packed as a record's host field, and who the connection is."""

    address: str
    packed_host: bytes
    connection: object


class Call(Protocol):
    """One request message and the way to answer it.

    A unary method answers with `answer`; a streaming one with any number of `send` and one `finish`. `fail` gives up with a
    transport status. `deadline_ms` is on the monotonic clock. `on_cancel`, when set, is called once if the client goes away
    before the answer is finished.
    """

    message: bytes
    on_cancel: Callable[[], None] | None

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def deadline_ms(self) -> int | None: ...

    @property
    def peer(self) -> Peer: ...

    @property
    def live(self) -> bool:
        """Somebody still waits for the answer."""

    def when_writable(self, start: Callable[[], None]) -> None:
        """Call `start` now, or, when the client reads slower than it asks, as soon as it has caught up.

        For work that ends in a large answer. Not called any more when the client goes away.
        """

    def answer(self, message: bytes) -> None: ...

    def send(self, messages: Sequence[bytes]) -> None: ...

    def finish(self) -> None: ...

    def fail(self, status: GrpcStatus, text: str) -> None: ...


class Kind(IntEnum):
    UNARY = 0
    SERVER_STREAM = 1
    BIDIRECTIONAL = 2


Handler = Callable[[Sequence[Call]], None]


def run(handler: Handler, calls: Sequence[Call]) -> None:
    """The outermost edge of every handler: what it did not foresee fails its own calls and nobody else's."""
    try:
        handler(calls)
    except Exception as error:
        log.exception("a method failed")
        for call in calls:
            if call.live:
                call.fail(GrpcStatus.INTERNAL, f"internal error: {type(error).__name__}")


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the method table. Of a bidirectional method each message is a call of its own, sharing the stream."""

    name: str
    kind: Kind
    handler: Handler
