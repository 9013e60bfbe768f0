"""The sending half of a connection: answers as frames, within the peer's two flow-control windows (pure).

Invariants: data leaves in order per stream and only within both windows; a stream waits in `_blocked` only for the connection's
window, one that waits for its own is brought back by its own WINDOW_UPDATE, so that no update costs more than what it lets go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Generic

from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    HEADERS,
    MAX_WINDOW,
    ConnectionFault,
    ErrorCode,
    StreamFault,
)
from brokerd.proxy.http2.headers import H
from brokerd.proxy.http2.streams import BY_US, CLOSED, HALF_CLOSED_REMOTE, OPEN, Stream

_REMEMBERED_RESETS: Final = 4096
_EMPTY_TABLE: Final = b"\x20"  # HPACK: "my table has size 0"


class Outgoing(Generic[H]):
    """Output of one connection, collected until `take`.

    `streams` are the connection's live streams; `release` gives back what a stream that is forgotten held; `fail` ends the
    connection.
    """

    __slots__ = (
        "_blocked",
        "_fail",
        "_max_blocked_bytes",
        "_out",
        "_release",
        "_streams",
        "_window",
        "blocked_bytes",
        "initial_window",
        "max_frame_bytes",
        "must_empty_table",
        "reset_by_us",
    )

    def __init__(
        self,
        streams: dict[int, Stream[H]],
        max_blocked_bytes: int,
        release: Callable[[Stream[H]], None],
        fail: Callable[[ConnectionFault], None],
    ) -> None:
        self._streams = streams
        self._max_blocked_bytes = max_blocked_bytes
        self._release = release
        self._fail = fail
        self._out: list[bytes | memoryview] = []
        self._window = frames.DEFAULT_WINDOW
        self.initial_window = frames.DEFAULT_WINDOW
        self.max_frame_bytes = frames.DEFAULT_MAX_FRAME_BYTES
        self.must_empty_table = False  # the peer made its header table smaller and wants to hear that we know
        self._blocked: dict[int, Stream[H]] = {}
        self.blocked_bytes = 0
        self.reset_by_us: dict[int, None] = {}

    def __bool__(self) -> bool:
        return bool(self._out)

    def put(self, frame: bytes) -> None:
        """A frame that no window holds back."""
        self._out.append(frame)

    def take(self) -> bytes:
        """Everything to be sent, once."""
        out = self._out
        self._out = []
        return b"".join(out)

    # ---- answers

    def respond(self, stream: Stream[H], head: bytes, message: bytes, trailers: bytes) -> None:
        """A whole answer: header block, data, trailer block; in one go when the windows allow."""
        length = len(message)
        if (
            length > self._window
            or length > stream.send_window
            or length > self.max_frame_bytes
            or stream.state != HALF_CLOSED_REMOTE
            or self.must_empty_table
        ):
            self.send_headers(stream, head)
            self.send_data(stream, message)
            self.end(stream, trailers)
            return
        self._window -= length
        stream_id = stream.stream_id
        pack = FRAME_HEADER.pack
        self._out += (
            pack(0, len(head), HEADERS, END_HEADERS, stream_id),
            head,
            pack(length >> 8, length & 0xFF, DATA, 0, stream_id),
            message,
            pack(0, len(trailers), HEADERS, END_HEADERS | END_STREAM, stream_id),
            trailers,
        )
        stream.state = CLOSED
        del self._streams[stream_id]

    def send_headers(self, stream: Stream[H], block: bytes, *, end_stream: bool = False) -> None:
        """The answer's header block; with `end_stream` it is the whole answer."""
        if stream.state == CLOSED:
            return
        if self.must_empty_table:
            self.must_empty_table = False
            block = _EMPTY_TABLE + block
        assert len(block) <= self.max_frame_bytes  # we have nothing to say that would need CONTINUATION
        flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
        self._out.append(frames.encode_frame(HEADERS, flags, stream.stream_id, block))
        if end_stream:
            self._ended(stream)

    def send_data(self, stream: Stream[H], data: bytes) -> None:
        """A piece of the answer's body; held back while the peer's windows are full."""
        if stream.state == CLOSED or not data:
            return
        if stream.waiting is None:
            stream.waiting = deque()
        stream.waiting.append(data)
        self.blocked_bytes += len(data)
        self._send_waiting(stream)
        if self.blocked_bytes > self._max_blocked_bytes:
            self._fail(ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many answers wait for the peer's windows"))

    def end(self, stream: Stream[H], trailers: bytes) -> None:
        """End the answer after all of its data: with its trailer block, or with an empty frame if there is none."""
        if stream.state == CLOSED:
            return
        if stream.waiting:
            stream.waiting_trailers = trailers
        elif trailers:
            self.send_headers(stream, trailers, end_stream=True)
        else:
            self._out.append(frames.encode_frame(DATA, END_STREAM, stream.stream_id))
            self._ended(stream)

    def reset_id(self, stream_id: int, error_code: ErrorCode) -> None:
        """Reset a stream that has no object (any more)."""
        self.remember_reset(stream_id)
        self._out.append(frames.encode_rst_stream(stream_id, error_code))

    def remember_reset(self, stream_id: int) -> None:
        """Frames that the peer sent before it learned of this will be ignored."""
        remembered = self.reset_by_us
        remembered[stream_id] = None
        if len(remembered) > _REMEMBERED_RESETS:
            del remembered[next(iter(remembered))]

    def forget(self, stream: Stream[H]) -> None:
        """The stream is over: drop what waits, give back what it held."""
        stream.state = CLOSED
        self._release(stream)
        self._streams.pop(stream.stream_id, None)
        self._blocked.pop(stream.stream_id, None)
        if stream.waiting:
            self.blocked_bytes -= sum(map(len, stream.waiting))
            stream.waiting = None

    # ---- what the peer says about its windows

    def open_window(self, increment: int) -> None:
        """WINDOW_UPDATE of the connection."""
        if not increment or self._window + increment > MAX_WINDOW:
            raise ConnectionFault(_window_error(increment), "WINDOW_UPDATE by zero or beyond 2^31-1")
        self._window += increment
        self._send_blocked()

    def open_stream_window(self, stream: Stream[H], increment: int) -> None:
        """WINDOW_UPDATE of a stream."""
        if not increment or stream.send_window + increment > MAX_WINDOW:
            raise StreamFault(stream.stream_id, _window_error(increment), "WINDOW_UPDATE by zero or beyond 2^31-1")
        stream.send_window += increment
        if stream.waiting:
            self._send_waiting(stream)

    def change_initial_window(self, value: int) -> None:
        """The setting applies to the streams that are open, too; their windows may become negative. What it lets go leaves with
        `send_released`."""
        difference = value - self.initial_window
        self.initial_window = value
        for stream in list(self._streams.values()):
            stream.send_window += difference
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE makes a window overflow")

    def send_released(self) -> None:
        """Windows of streams opened all at once: send what waited for them."""
        for stream in list(self._streams.values()):
            if stream.waiting and stream.send_window > 0:
                self._send_waiting(stream)

    # ---- inside

    def _send_waiting(self, stream: Stream[H]) -> None:
        """Send as much of the stream's waiting data as both windows allow."""
        waiting = stream.waiting
        assert waiting is not None
        while waiting:
            if not self._send_one_frame(stream, waiting):
                return
        stream.waiting = None
        self._blocked.pop(stream.stream_id, None)
        if stream.waiting_trailers is not None:
            self.end(stream, stream.waiting_trailers)

    def _send_one_frame(self, stream: Stream[H], waiting: deque[bytes | memoryview]) -> bool:
        """One DATA frame of what waits; False when a window is full."""
        if stream.send_window <= 0:
            self._blocked.pop(stream.stream_id, None)
            return False
        if self._window <= 0:
            self._blocked[stream.stream_id] = stream
            return False
        data = waiting.popleft()
        room = min(self._window, stream.send_window, self.max_frame_bytes)
        if len(data) > room:
            # a view, so that cutting a large answer into frames copies each byte once
            view = memoryview(data)
            waiting.appendleft(view[room:])
            data = view[:room]
        length = len(data)
        self._window -= length
        stream.send_window -= length
        self.blocked_bytes -= length
        self._out += (FRAME_HEADER.pack(length >> 8, length & 0xFF, DATA, 0, stream.stream_id), data)
        return True

    def _send_blocked(self) -> None:
        """The connection's window opened: one frame per blocked stream in turn, until it is full again."""
        blocked = self._blocked
        while blocked and self._window > 0:
            for stream in list(blocked.values()):
                if self._window <= 0:
                    return
                assert stream.waiting
                if self._send_one_frame(stream, stream.waiting) and not stream.waiting:
                    self._send_waiting(stream)

    def _ended(self, stream: Stream[H]) -> None:
        """We sent END_STREAM."""
        unfinished = stream.state == OPEN
        stream.ended(BY_US)
        self.forget(stream)
        if unfinished:
            # answered before the request ended: tell the peer to stop sending it
            self.reset_id(stream.stream_id, ErrorCode.NO_ERROR)


def _window_error(increment: int) -> ErrorCode:
    return ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
