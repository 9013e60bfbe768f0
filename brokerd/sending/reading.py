"""The frames of a read buffer as the send kernel wants them: sends in pieces, and a mark where anything else stands (pure).

What it takes decodes to the same as with `frame.decode_frames`; what it would not, that is left to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import orjson

from remoting import codes, frame
from remoting.disk import Bytes
from remoting.errors import ProtocolError

# extFields, opaque, flag, body, and where the next one begins
Send = tuple[dict[str, str], int, int, Bytes, int]

_CODES: Final = {codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE}
_STRINGS: Final = {str}
_PREFIX: Final = struct.Struct(">iI")
_CODE: Final = struct.Struct(">h")
# How such frames begin behind their prefix, as clients write them; a client that writes them otherwise is decoded first
_BEGINNINGS: Final = tuple(
    beginning for code in sorted(_CODES) for beginning in (b'{"code":%d,' % code, _CODE.pack(code))
)
_NOTHING: Final[dict[str, str]] = {}


def begins_with_send(buffer: bytes) -> bool:
    """Whether the buffer seems to begin with a send, and has all of its frame."""
    return buffer.startswith(_BEGINNINGS, frame.PREFIX_BYTES) and len(buffer) >= frame.bytes_wanted(buffer)


def sends_of(buffer: bytes, position: int, max_frame_bytes: int) -> Iterator[Send]:
    """The sends from the position on, as far as their frames are whole; where another frame stands, one without fields."""
    view = memoryview(buffer)
    end = len(buffer)
    unpack, loads = _PREFIX.unpack_from, orjson.loads
    while end - position >= frame.PREFIX_BYTES:
        total, word = unpack(buffer, position)
        header_length = word & 0xFFFFFF
        reached = position + 4 + total
        if reached > end:
            return
        if not 4 + header_length <= total <= max_frame_bytes - 4 or header_length > frame.MAX_HEADER_BYTES:
            break
        body_start = position + frame.PREFIX_BYTES + header_length
        header = view[position + frame.PREFIX_BYTES : body_start]
        try:
            if word == header_length:  # the encoding's byte is 0: JSON
                fields: Any = loads(header)
                code, opaque, flag, ext = fields["code"], fields["opaque"], fields["flag"], fields["extFields"]
                is_plain = type(ext) is dict and set(map(type, ext.values())) == _STRINGS
                if not (is_plain and type(code) is type(opaque) is type(flag) is int):
                    break
            elif word >> 24 == 1:
                command = frame.decode_compact(header)
                code, opaque, flag, ext = command.code, command.opaque, command.flag, command.ext
            else:
                break
        except (ValueError, KeyError, TypeError, ProtocolError):
            break
        if code not in _CODES or flag & codes.FLAG_RESPONSE:
            break
        yield ext, opaque, flag, view[body_start:reached], reached
        position = reached
    else:
        return
    yield _NOTHING, 0, 0, b"", position
