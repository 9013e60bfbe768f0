"""A call as a method sees it, whether it came over HTTP/2 or from a replica that forwards it (pure).

Methods get the calls of one read event together, answer each of them once, now or later, and never wait. What a call answers
when its client is gone is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Protocol

log = logging.getLogger(__name__)


class GrpcStatus(IntEnum):
    """The transport's own status; what a method decided is in its response's `status` instead, with the transport's OK."""

    OK = 0
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a call came from: host:port, the same packed as a record's host field, and who the connection is."""

    address: str
    packed_host: bytes
    connection: object


class Call(Protocol):
    """One request message and the way to answer it.

    A unary method answers with `answer`; a streaming one with any number of `send` and one `finish`, or `finish_with`.
    `fail` gives up with a transport status. `deadline_ms` is on the monotonic clock. `on_cancel`, when set, is called once if the
    client goes away before the answer is finished.
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

    @property
    def is_slow(self) -> bool:
        """The client reads slower than it asks: nothing should be sent to it that it did not ask for."""

    def when_writable(self, start: Callable[[], None]) -> None:
        """Call `start` now, or, when the client reads slower than it asks, as soon as it has caught up.

        For work that ends in a large answer. Not called any more when the client goes away.
        """

    def answer(self, message: bytes) -> None: ...

    def send(self, messages: Sequence[bytes]) -> None: ...

    def finish_with(self, messages: Sequence[bytes]) -> None:
        """`send` these, which are all or the last ones, and `finish`."""

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


CANCELLED: Final = "CANCELLED"  # the client went away before the answer
_OTHER: Final = "OTHER"
_MAX_CODES: Final = 64
_STATUS_FIELD: Final = b"\x0a"
_CODE_FIELD: Final = b"\x08"


class CallFigures:
    """How the calls of one method were answered, since the start, and how many of its streams are open.

    Counted by the bytes in which a response's status says its code, see `status.status_field`: that costs next to nothing.
    """

    __slots__ = ("_answers", "_ends", "open_streams")

    def __init__(self) -> None:
        self._answers: dict[bytes, int] = {}
        self._ends: dict[str, int] = {}
        self.open_streams = 0

    def answered(self, message: bytes) -> None:
        """A response with a status, or the first of a stream of them, was given; anything else on a stream is no answer."""
        if message[:1] == _STATUS_FIELD:
            answers, code = self._answers, message[3:7]
            answers[code] = answers.get(code, 0) + 1

    def ended(self, what: str) -> None:
        """A call ended without a response: with a transport's status, or because its client went away."""
        self._ends[what] = self._ends.get(what, 0) + 1

    def by_code(self, name_of: Callable[[int], str]) -> dict[str, int]:
        """Calls by the name of the code that they were answered with."""
        counts = dict(self._ends)
        for encoded, count in self._answers.items():
            # behind a status of more than 127 bytes, whose length takes two, the code begins a byte later
            code = encoded[1:] if encoded[:1] == _CODE_FIELD else encoded
            name = name_of(decode_varint(code)) if code else GrpcStatus.OK.name
            if name not in counts and len(counts) >= _MAX_CODES:
                name = _OTHER
            counts[name] = counts.get(name, 0) + count
        return counts


class StatuslessFigures(CallFigures):
    """Of a method whose responses have no status: all of them are OK."""

    __slots__ = ()

    def answered(self, message: bytes) -> None:
        self._answers[b""] = self._answers.get(b"", 0) + 1


def decode_varint(encoded: bytes) -> int:
    """The number at the beginning of the bytes."""
    value = 0
    for place, byte in enumerate(encoded):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return value


@dataclass(frozen=True, slots=True)
class Method:
    """One entry of the method table. Of a bidirectional method each message is a call of its own, sharing the stream.

    `max_message_bytes`: less than the connection's own limit, 0 = that one.
    """

    name: str
    kind: Kind
    handler: Handler
    max_message_bytes: int = 0
    figures: CallFigures = field(default_factory=CallFigures)

    @property
    def is_bidirectional(self) -> bool:
        return self.kind == Kind.BIDIRECTIONAL
