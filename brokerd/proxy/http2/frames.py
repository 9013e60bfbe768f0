"""The bytes of HTTP/2 frames: constants, faults, and the encoders of what a server sends (pure).

Frame header, 9 bytes big-endian: length(3) type(1) flags(1) reserved bit and stream id(4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from remoting.errors import ProtocolError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
MAX_WINDOW: Final = 0x7FFFFFFF
DEFAULT_WINDOW: Final = 65535
DEFAULT_MAX_FRAME_BYTES: Final = 16384
DEFAULT_TABLE_BYTES: Final = 4096

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_FLAG: Final = 0x20

# the frame header read in one go: the 24-bit length comes in two parts
FRAME_HEADER: Final = struct.Struct(">HBBBI")
SETTING: Final = struct.Struct(">HI")
_UINT32: Final = struct.Struct(">I")


class ErrorCode(IntEnum):
    """RFC 9113 section 7, as far as we say them."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Setting(IntEnum):
    """RFC 9113 section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class ConnectionFault(ProtocolError):
    """The peer broke the connection's rules: it gets a GOAWAY with the code and reason, then the connection closes."""

    def __init__(self, error_code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.error_code = error_code


class StreamFault(ProtocolError):
    """The peer broke one stream's rules: that stream is reset, the connection lives on."""

    def __init__(self, stream_id: int, error_code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.stream_id = stream_id
        self.error_code = error_code


def encode_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    length = len(payload)
    return FRAME_HEADER.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def encode_settings(settings: Iterable[tuple[int, int]]) -> bytes:
    return encode_frame(SETTINGS, 0, 0, b"".join(SETTING.pack(name, value) for name, value in settings))


def encode_window_update(stream_id: int, increment: int) -> bytes:
    return encode_frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(increment))


def encode_rst_stream(stream_id: int, error_code: int) -> bytes:
    return encode_frame(RST_STREAM, 0, stream_id, _UINT32.pack(error_code))


def encode_goaway(last_stream_id: int, error_code: int, reason: str) -> bytes:
    return encode_frame(GOAWAY, 0, 0, _UINT32.pack(last_stream_id) + _UINT32.pack(error_code) + reason.encode()[:200])


def literal_field(name: bytes, value: bytes) -> bytes:
    """A header field as a literal that leaves the peer's table alone: so equal headers are equal bytes, on any connection."""
    return b"\x00" + _string(name) + _string(value)


def _string(text: bytes) -> bytes:
    """An HPACK string without Huffman coding: a length with a 7-bit prefix, then the bytes."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    encoded = bytearray(b"\x7f")
    length -= 127
    while length >= 128:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text
