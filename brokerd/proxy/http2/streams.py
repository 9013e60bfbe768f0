"""One stream of a connection: its state, what has come in, what waits to go out (pure).

    OPEN                 both sides may send
    HALF_CLOSED_REMOTE   the peer ended its side: we may still send
    HALF_CLOSED_LOCAL    we ended our side: the peer may still send
    CLOSED               over; the connection has forgotten the stream

An idle stream has no object yet, a closed one no more. `ON_END` is the whole state machine of the ends; which frames are legal
in which state is `FRAME_FAULTS`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Generic

from brokerd.proxy.http2.frames import DATA, HEADERS, ErrorCode
from brokerd.proxy.http2.headers import H
from remoting.transport.unfinished import Piece

OPEN: Final = 0
HALF_CLOSED_REMOTE: Final = 1
HALF_CLOSED_LOCAL: Final = 2
CLOSED: Final = 3

BY_PEER: Final = 0
BY_US: Final = 1

# (state, who ended its side) -> new state; an end that is not here cannot happen
ON_END: Final = {
    (OPEN, BY_PEER): HALF_CLOSED_REMOTE,
    (OPEN, BY_US): HALF_CLOSED_LOCAL,
    (HALF_CLOSED_LOCAL, BY_PEER): CLOSED,
    (HALF_CLOSED_REMOTE, BY_US): CLOSED,
}

# (state, frame) -> why the peer must not send it; every other frame that names a live stream is legal
FRAME_FAULTS: Final = {
    (HALF_CLOSED_REMOTE, DATA): ErrorCode.STREAM_CLOSED,
    (HALF_CLOSED_REMOTE, HEADERS): ErrorCode.STREAM_CLOSED,
}


@dataclass(slots=True, eq=False)
class Stream(Generic[H]):
    """A live stream. `context` belongs to the layer above."""

    stream_id: int
    head: H
    receive_window: int
    send_window: int
    state: int = OPEN
    context: object = None
    # the body so far, of a head that collects; complete in `body`
    chunks: list[bytes | bytearray] | None = None
    body: bytes = b""
    received_bytes: int = 0
    piece: Piece | None = None  # what it, or a message on it, counts as while it is not all there
    is_refused: bool = False  # the rest of the body is dropped as it comes
    # data that the flow-control windows hold back, and the trailers to end with after it
    waiting: deque[bytes | memoryview] | None = None
    waiting_trailers: bytes | None = None

    def ended(self, side: int) -> None:
        """One side sent its END_STREAM."""
        self.state = ON_END[self.state, side]
