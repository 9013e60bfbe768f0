"""A server's connection: frames in, events out, answers collected as bytes (pure; the clock is an argument).

`receive` takes the bytes of one read and returns what they mean, as (event, stream, chunk) in the order of arrival; what has to
be sent is picked up with `take_output`, once per turn of the loop. A request that arrives as one HEADERS frame of known headers
and one DATA frame, which is what a unary call is, passes through the two short branches at the top of `receive`; everything
else goes through `_FRAME_READERS`. Both lead to the same states.

Invariants: stream ids only grow; a stream is in `streams` until both sides ended or one reset it; our receive windows are
replenished as bytes arrive, because what bounds memory is the budget for unfinished bodies, not the windows; that of a stream
whose body waits for room there is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol

from brokerd.proxy.http2 import frames
from brokerd.proxy.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    GOAWAY,
    HEADERS,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ConnectionFault,
    ErrorCode,
    Setting,
    StreamFault,
)
from brokerd.proxy.http2.headers import H, HeaderReader, MalformedHeaders, check_trailers
from brokerd.proxy.http2.limits import Allowance, Http2Limits
from brokerd.proxy.http2.outgoing import Outgoing
from brokerd.proxy.http2.streams import BY_PEER, CLOSED, FRAME_FAULTS, HALF_CLOSED_REMOTE, OPEN, Stream
from remoting.transport.unfinished import SMALL_BYTES, keep

# Events. REQUEST: a collected request is complete, its body in `stream.body`. OPENED, CHUNK, ENDED: the life of a request that
# does not collect. TOO_LARGE: a collected body is over its bound and was dropped. RESET: the stream is gone (chunk: None).
REQUEST: Final = 0
OPENED: Final = 1
CHUNK: Final = 2
ENDED: Final = 3
TOO_LARGE: Final = 4
RESET: Final = 5

Event = tuple[int, Stream[H], bytes | None]

_REMEMBERED_GAPS: Final = 32
_PREFIX_BYTES: Final = 5  # how much of a body says how long it will be


class Unfinished(Protocol):
    """Counts what is there of bodies, and of messages on streams, that are not all there."""

    def begin(self, stream: Stream[Any], wanted_bytes: int, received_bytes: int) -> bool:
        """Have `stream.piece` from now on; False when the stream was refused, and knows."""

    def end(self, stream: Stream[Any]) -> None:
        """The piece, if there is one, is all there, or not wanted any more."""

    def grew(self, stream: Stream[Any]) -> None:
        """More came of a piece."""


class ServerConnection(Generic[H]):
    """One HTTP/2 connection. `headers` turns header blocks into what the layer above works with."""

    __slots__ = (
        "_block",
        "_block_bytes",
        "_block_ends_stream",
        "_block_since_ms",
        "_block_stream_id",
        "_events",
        "_gaps",
        "_headers",
        "_idle_frames",
        "_last_stream_id",
        "_limits",
        "_marks",
        "_now_ms",
        "_pings",
        "_preface_seen",
        "_receive_window",
        "_replenish_below",
        "_resets",
        "_rest",
        "_rest_since_ms",
        "_settings_frames",
        "_unfinished",
        "fault",
        "going_away",
        "outgoing",
        "ready",
        "streams",
    )

    def __init__(self, limits: Http2Limits, unfinished: Unfinished, headers: HeaderReader[H], now_ms: int) -> None:
        assert limits.connection_window_bytes >= 4 * limits.max_frame_bytes <= 4 * limits.stream_window_bytes
        self._limits = limits
        self._unfinished = unfinished
        self._headers = headers
        self._pings = Allowance(limits.ping_rate, limits.ping_burst)
        self._settings_frames = Allowance(limits.settings_rate, limits.settings_burst)
        self._resets = Allowance(limits.reset_rate, limits.max_concurrent_streams)
        self._idle_frames = Allowance(limits.idle_frame_rate, limits.idle_frame_burst)
        self._now_ms = now_ms

        self.streams: dict[int, Stream[H]] = {}
        self._last_stream_id = -1
        self._gaps: tuple[range, ...] = ()

        self._rest = b""
        self._rest_since_ms = now_ms
        self._preface_seen = False
        self.ready = False  # the peer's preface and first settings have come
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_stream_id = 0
        self._block_since_ms = 0
        self._block_ends_stream = False
        self._marks: deque[tuple[int, int]] = deque()  # (when, the highest stream id then)

        self._receive_window = limits.connection_window_bytes
        self._replenish_below = limits.connection_window_bytes // 2
        self.going_away = False
        self.fault: ConnectionFault | None = None  # set when the connection is to be closed after its output was sent
        self._events: list[Event[H]] = []
        self.outgoing: Outgoing[H] = Outgoing(self.streams, limits.max_blocked_bytes, unfinished.end, self._fail)
        self.outgoing.put(self._opening())

    def _opening(self) -> bytes:
        limits = self._limits
        settings = [
            (Setting.MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams),
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
            (Setting.MAX_FRAME_SIZE, limits.max_frame_bytes),
            (Setting.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes),
        ]
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW
        return frames.encode_settings(settings) + frames.encode_window_update(0, more)

    # ---- what the shell asks

    def go_away(self, reason: str) -> None:
        """Announce that no new streams are taken; those that are open go on."""
        if not self.going_away:
            self.going_away = True
            self.outgoing.put(frames.encode_goaway(max(self._last_stream_id, 0), ErrorCode.NO_ERROR, reason))

    def go_on(self, stream: Stream[H]) -> None:
        """There is room for the stream's body now."""
        self._replenish_stream(stream)

    def refuse_body(self, stream: Stream[H]) -> None:
        """Forget what came of the stream's body, and drop what still comes."""
        self._unfinished.end(stream)
        stream.is_refused = True
        if stream.chunks:
            stream.chunks.clear()

    def is_late(self, before_ms: int) -> bool:
        """Whether a frame or a header block began before that time and is not all there."""
        return bool(self._rest and self._rest_since_ms < before_ms) or bool(
            self._block_stream_id and self._block_since_ms < before_ms
        )

    def late_requests(self, now_ms: int, before_ms: int) -> list[Stream[H]]:
        """Requests that began before that time, as far as earlier calls of this tell, and whose end has not come."""
        self._marks.append((now_ms, self._last_stream_id))
        last_id = 0
        while self._marks and self._marks[0][0] <= before_ms:
            last_id = self._marks.popleft()[1]
        if last_id <= 0:
            return []
        return [
            each
            for each in self.streams.values()
            if each.stream_id <= last_id and each.state == OPEN and each.head.collects
        ]

    # ---- receiving

    def receive(self, data: bytes, now_ms: int) -> list[Event[H]]:
        """What the bytes of one read mean. Never raises: a broken connection has `fault` set and takes nothing more."""
        self._now_ms = now_ms
        events: list[Event[H]] = []
        if self.fault is not None:
            return events
        self._events = events
        try:
            self._receive(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            self._fail(fault)
        return events

    def _receive(self, data: bytes) -> None:
        position = 0
        if not self._preface_seen:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2: the connection preface is wrong")
            if len(data) < len(PREFACE):
                self._rest = data
                return
            self._preface_seen = True
            position = len(PREFACE)
        end = len(data)
        before_id = self._last_stream_id
        events = self._events
        streams = self.streams
        cached_heads = self._headers.cached
        unpack = FRAME_HEADER.unpack_from
        max_frame_bytes = self._limits.max_frame_bytes
        max_streams = self._limits.max_concurrent_streams
        stream_window = self._limits.stream_window_bytes
        while end - position >= FRAME_HEADER_BYTES:
            length_high, length_low, kind, flags, stream_id = unpack(data, position)
            length = length_high << 8 | length_low
            start = position + FRAME_HEADER_BYTES
            if length > max_frame_bytes:
                text = f"a frame of type {kind} with {length} bytes; at most {max_frame_bytes} are taken"
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)
            if start + length > end:
                break
            position = start + length

            if kind == DATA:
                stream = streams.get(stream_id)
                if (
                    flags == END_STREAM
                    and stream is not None
                    and stream.state == OPEN
                    and stream.chunks is None
                    and stream.head.collects
                    and (stream.head.content_length is None or stream.head.content_length == length)
                    and not self._block_stream_id
                ):
                    stream.body = data[start:position]
                    stream.state = HALF_CLOSED_REMOTE
                    if stream.piece is not None:
                        self._unfinished.end(stream)
                    self._receive_window -= length
                    if self._receive_window < self._replenish_below:
                        self._replenish()
                    events.append((REQUEST, stream, None))
                    continue
            elif kind == HEADERS and flags == END_HEADERS and stream_id == self._last_stream_id + 2:
                head = cached_heads.get(data[start:position])
                if (
                    head is not None
                    and len(streams) < max_streams
                    and not self._block_stream_id
                    and not self.going_away
                    and self.ready
                ):
                    self._last_stream_id = stream_id
                    stream = Stream(stream_id, head, stream_window, self.outgoing.initial_window)
                    streams[stream_id] = stream
                    if not head.collects:
                        events.append((OPENED, stream, None))
                    continue
            self._read_frame(kind, flags, stream_id & 0x7FFFFFFF, data[start:position])
        if self._last_stream_id > before_id:
            self._count_heads(before_id)
        if position < end:
            if position or not self._rest:  # a frame that began now
                self._rest_since_ms = self._now_ms
            self._rest = data[position:]
        else:
            self._rest = b""

    def _count_heads(self, before_id: int) -> None:
        """Of requests that came in this read with nothing of their bodies: a few bytes can stand for long fields."""
        opened = []
        for stream in reversed(self.streams.values()):
            if stream.stream_id <= before_id:
                break
            if stream.state == OPEN and stream.chunks is None and stream.head.collects:
                opened.append(stream)
        for stream in opened:
            if stream.state == OPEN:  # room for the others may have cost this one
                self._unfinished.begin(stream, stream.head.held_bytes(), 0)

    def _read_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self.ready and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if self._block_stream_id and (kind != CONTINUATION or stream_id != self._block_stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block must go on in CONTINUATION frames")
        reader = _FRAME_READERS.get(kind)
        if reader is None:
            self._count_idle_frame()
            return
        try:
            reader(self, flags, stream_id, payload)
        except StreamFault as fault:
            self._count_reset()
            self._reset(fault.stream_id, fault.error_code)

    # ---- one reader per frame type

    def _read_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "DATA on stream 0")
        # padding counts in the windows; a stream that is gone still counts in the connection's
        flow_bytes = len(payload)
        self._receive_window -= flow_bytes
        if self._receive_window < self._replenish_below:
            self._replenish()
        if flags & PADDED:
            payload = _unpad(payload)
        stream = self._live_stream(stream_id, DATA)
        if stream is None:
            return
        if flow_bytes > stream.receive_window:
            raise StreamFault(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
        stream.receive_window -= flow_bytes
        if not payload and not flags & END_STREAM:
            self._count_idle_frame()
        self._check_content_length(stream, len(payload), ends=bool(flags & END_STREAM))
        if stream.head.collects:
            self._collect(stream, payload, ends=bool(flags & END_STREAM))
        elif payload:
            self._events.append((CHUNK, stream, payload))
        if flags & END_STREAM:
            self._end_by_peer(stream)
        elif stream.receive_window < self._limits.stream_window_bytes // 2 and (
            stream.piece is None or not stream.piece.waits
        ):
            self._replenish_stream(stream)

    def _read_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}: clients use odd ids")
        if flags & PADDED:
            payload = _unpad(payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            if int.from_bytes(payload[:4]) & 0x7FFFFFFF == stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")
            payload = payload[5:]
        self._block_ends_stream = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._read_block(stream_id, payload)
        else:
            self._block_stream_id = stream_id
            self._block_since_ms = self._now_ms
            self._block = [payload]
            self._block_bytes = len(payload)

    def _read_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > self._limits.max_header_block_bytes or len(self._block) > self._limits.max_continuations:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a header block that is too long or in too many frames")
        if flags & END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._block_stream_id = 0
            self._read_block(stream_id, block)

    def _read_block(self, stream_id: int, block: bytes) -> None:
        """A complete header block: it opens a stream, or it is the trailers of one."""
        if stream_id > self._last_stream_id:
            self._open(stream_id, block)
            return
        fields = self._headers.decode(block)
        stream = self._live_stream(stream_id, HEADERS)
        if stream is None:
            return
        try:
            check_trailers(fields)
        except MalformedHeaders as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if not self._block_ends_stream:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, "a second HEADERS that does not end the stream")
        self._check_content_length(stream, 0, ends=True)
        self._end_by_peer(stream)

    def _open(self, stream_id: int, block: bytes) -> None:
        if stream_id != self._last_stream_id + 2:
            self._gaps = (*self._gaps, range(self._last_stream_id + 2, stream_id, 2))[-_REMEMBERED_GAPS:]
        self._last_stream_id = stream_id
        if self.going_away:
            self._headers.decode(block)
            self.outgoing.remember_reset(stream_id)
            return
        try:
            head = self._headers.read_request(block)
        except MalformedHeaders as error:
            raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if len(self.streams) >= self._limits.max_concurrent_streams:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams at once")
        stream = Stream(stream_id, head, self._limits.stream_window_bytes, self.outgoing.initial_window)
        self.streams[stream_id] = stream
        if not head.collects:
            self._events.append((OPENED, stream, None))
        if self._block_ends_stream:
            self._check_content_length(stream, 0, ends=True)
            self._end_by_peer(stream)

    def _read_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._count_idle_frame()
        if len(payload) != 5:
            fault = ErrorCode.FRAME_SIZE_ERROR, "PRIORITY must have 5 bytes"
        elif int.from_bytes(payload[:4]) & 0x7FFFFFFF == stream_id:
            fault = ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself"
        else:
            return
        # a stream that was never opened cannot be reset
        raise StreamFault(stream_id, *fault) if stream_id in self.streams else ConnectionFault(*fault)

    def _read_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM must have 4 bytes")
        self._refuse_idle(stream_id, "RST_STREAM")
        self._count_reset()
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.outgoing.forget(stream)
            self._events.append((RESET, stream, None))

    def _read_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement of SETTINGS must be empty")
            return
        if len(payload) % frames.SETTING.size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a broken length")
        if not self._settings_frames.take(self._now_ms):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS frames")
        for name, value in frames.SETTING.iter_unpack(payload):
            self._apply_setting(name, value)
        self.ready = True
        self.outgoing.put(frames.encode_frame(SETTINGS, ACK, 0))  # before the data that they let go
        self.outgoing.send_released()

    def _apply_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE above 2^31-1")
            self.outgoing.change_initial_window(value)
        elif name == Setting.MAX_FRAME_SIZE:
            if not frames.DEFAULT_MAX_FRAME_BYTES <= value < 1 << 24:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its bounds")
            self.outgoing.max_frame_bytes = value
        elif name == Setting.ENABLE_PUSH:
            if value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH must be 0 or 1")
        elif name == Setting.HEADER_TABLE_SIZE and value < frames.DEFAULT_TABLE_BYTES:
            # we put nothing into the peer's table, but it wants to be told that we know of the smaller one
            self.outgoing.must_empty_table = True

    def _read_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients cannot push")

    def _read_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "PING must have 8 bytes")
        if flags & ACK:
            self._count_idle_frame()
            return
        if not self._pings.take(self._now_ms):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many PING frames")
        self.outgoing.put(frames.encode_frame(PING, ACK, 0, payload))

    def _read_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY too short")
        # the peer opens nothing more; what is open is answered, then it closes
        self._count_idle_frame()

    def _read_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE must have 4 bytes")
        increment = int.from_bytes(payload) & MAX_WINDOW
        if not stream_id:
            self.outgoing.open_window(increment)
            return
        self._refuse_idle(stream_id, "WINDOW_UPDATE")
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.outgoing.open_stream_window(stream, increment)

    # ---- rules that several frames share

    def _live_stream(self, stream_id: int, kind: int) -> Stream[H] | None:
        """The stream that DATA or trailers are for; None when they are to be ignored."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            fault = FRAME_FAULTS.get((stream.state, kind))
            if fault is not None:
                raise StreamFault(stream_id, fault, "the stream was ended before")
            return stream
        if stream_id in self.outgoing.reset_by_us:
            return None  # sent before the peer learned of the reset
        if stream_id > self._last_stream_id or not stream_id & 1 or any(stream_id in gap for gap in self._gaps):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"a frame for stream {stream_id}, which was never opened")
        raise ConnectionFault(ErrorCode.STREAM_CLOSED, f"a frame for stream {stream_id}, which is closed")

    def _refuse_idle(self, stream_id: int, frame: str) -> None:
        if not stream_id or stream_id > self._last_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{frame} for stream {stream_id}, which was never opened")

    def _check_content_length(self, stream: Stream[H], more: int, *, ends: bool) -> None:
        stream.received_bytes += more
        expected = stream.head.content_length
        if expected is not None and (stream.received_bytes > expected or (ends and stream.received_bytes != expected)):
            raise StreamFault(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "the body is not as long as content-length")

    def _collect(self, stream: Stream[H], payload: bytes, *, ends: bool) -> None:
        if stream.is_refused:
            return
        if stream.chunks is None:
            stream.chunks = []
            self._unfinished.end(stream)  # of its head
        keep(stream.chunks, payload)
        if stream.received_bytes > stream.head.max_body_bytes:
            self.refuse_body(stream)
            self._events.append((TOO_LARGE, stream, None))
        elif not ends:
            self._count_unfinished(stream, stream.chunks)

    def _count_unfinished(self, stream: Stream[H], chunks: list[bytes | bytearray]) -> None:
        piece = stream.piece
        if piece is not None and stream.received_bytes <= piece.wanted_bytes:
            piece.received_bytes = stream.received_bytes
            self._unfinished.grew(stream)
            return
        self._unfinished.end(stream)  # it was not known how long it would be
        wanted = stream.head.body_bytes(b"".join(chunks[:2])[:_PREFIX_BYTES])
        if wanted > stream.head.max_body_bytes:
            self.refuse_body(stream)
            self._events.append((TOO_LARGE, stream, None))
            return
        if stream.received_bytes > max(wanted, SMALL_BYTES):
            raise StreamFault(stream.stream_id, ErrorCode.PROTOCOL_ERROR, "the body is longer than its message")
        self._unfinished.begin(
            stream, max(wanted, stream.received_bytes) if wanted else SMALL_BYTES, stream.received_bytes
        )

    def _end_by_peer(self, stream: Stream[H]) -> None:
        stream.ended(BY_PEER)
        if stream.head.collects:
            if not stream.is_refused:
                stream.body = b"".join(stream.chunks or ())
                stream.chunks = None
                self._unfinished.end(stream)
                self._events.append((REQUEST, stream, None))
        else:
            self._events.append((ENDED, stream, None))
        if stream.state == CLOSED:
            self.outgoing.forget(stream)

    def _replenish_stream(self, stream: Stream[H]) -> None:
        more = self._limits.stream_window_bytes - stream.receive_window
        if more > 0 and stream.state != CLOSED:
            stream.receive_window += more
            self.outgoing.put(frames.encode_window_update(stream.stream_id, more))

    def _replenish(self) -> None:
        more = self._limits.connection_window_bytes - self._receive_window
        self._receive_window += more
        self.outgoing.put(frames.encode_window_update(0, more))

    def _count_idle_frame(self) -> None:
        if not self._idle_frames.take(self._now_ms):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that mean nothing")

    def _count_reset(self) -> None:
        if not self._resets.take(self._now_ms):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many streams reset")

    # ---- ends

    def _reset(self, stream_id: int, error_code: ErrorCode) -> None:
        """Reset a stream because of the peer's fault; the layer above learns of it if it knew the stream."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.outgoing.forget(stream)
            self._events.append((RESET, stream, None))
        self.outgoing.reset_id(stream_id, error_code)

    def _fail(self, fault: ConnectionFault) -> None:
        if self.fault is None:
            self.fault = fault
            self.going_away = True
            self.outgoing.put(frames.encode_goaway(max(self._last_stream_id, 0), fault.error_code, str(fault)))

    def close(self) -> list[Stream[H]]:
        """The transport is gone: give back all budgets; answers the streams that were live."""
        streams = list(self.streams.values())
        for stream in streams:
            self.outgoing.forget(stream)
        return streams


def _unpad(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]


_FRAME_READERS: Final[dict[int, Callable[[ServerConnection[Any], int, int, bytes], None]]] = {
    DATA: ServerConnection._read_data,
    HEADERS: ServerConnection._read_headers,
    PRIORITY: ServerConnection._read_priority,
    RST_STREAM: ServerConnection._read_rst_stream,
    SETTINGS: ServerConnection._read_settings,
    PUSH_PROMISE: ServerConnection._read_push_promise,
    PING: ServerConnection._read_ping,
    GOAWAY: ServerConnection._read_goaway,
    WINDOW_UPDATE: ServerConnection._read_window_update,
    CONTINUATION: ServerConnection._read_continuation,
}
