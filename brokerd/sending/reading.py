"""The sends at the beginning of a read buffer, as the send kernel wants them (pure).

What it takes decodes to the same as with `frame.decode_frames`; what it would not, that is left to it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import orjson

from remoting import codes, frame
from remoting.disk import Bytes
from remoting.errors import ProtocolError

Send = tuple[dict[str, str], int, int, Bytes]  # extFields, opaque, flag, body

_CODES: Final = {codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE}
_STRINGS: Final = {str}
_PREFIX: Final = struct.Struct(">iI")
_CODE: Final = struct.Struct(">h")
# How such frames begin behind their prefix, as most clients write them
_BEGINNINGS: Final = tuple(
    beginning for code in sorted(_CODES) for beginning in (b'{"code":%d,' % code, _CODE.pack(code))
)
_USUAL: Final = re.compile(rb'\{"code":[0-9]')
_ANYWHERE: Final = re.compile(rb'"code"\s*:\s*(?:%s)\b' % b"|".join(b"%d" % code for code in sorted(_CODES)))
_LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


def begins_with_send(buffer: bytes) -> bool:
    """Whether the buffer seems to begin with a send, and has all of its frame."""
    if not buffer.startswith(_BEGINNINGS, frame.PREFIX_BYTES):
        if len(buffer) <= frame.PREFIX_BYTES or buffer[4] or _USUAL.match(buffer, frame.PREFIX_BYTES):
            return False
        header_end = frame.PREFIX_BYTES + int.from_bytes(buffer[5 : frame.PREFIX_BYTES])
        if not _ANYWHERE.search(buffer, frame.PREFIX_BYTES, header_end):
            return False
    total: int = _PREFIX.unpack_from(buffer)[0]
    return total + 4 <= len(buffer)


def short_names(ext: Mapping[str, str]) -> dict[str, str]:
    """The fields of a send header with long names under their short ones."""
    return {short: ext[long] for short, long in _LONG_NAMES.items() if long in ext}


def sends_of(buffer: bytes, position: int, most: int, max_frame_bytes: int) -> tuple[list[Send], list[int], bool]:
    """The sends from the position on, as far as their frames are whole, at most so many; where the frame of each ends; and
    whether a frame follows that is something else."""
    sends: list[Send] = []
    ends: list[int] = []
    view = memoryview(buffer)
    end = len(buffer)
    unpack, loads = _PREFIX.unpack_from, orjson.loads
    while end - position >= frame.PREFIX_BYTES and len(sends) < most:
        total, word = unpack(buffer, position)
        header_length = word & 0xFFFFFF
        body_start = position + frame.PREFIX_BYTES + header_length
        frame_end = position + 4 + total
        if frame_end > end:
            break
        if not body_start <= frame_end <= position + max_frame_bytes or header_length > frame.MAX_HEADER_BYTES:
            return sends, ends, True
        header = view[position + frame.PREFIX_BYTES : body_start]
        try:
            if word == header_length:  # the encoding's byte is 0: JSON
                fields: Any = loads(header)
                code, opaque, flag, ext = fields["code"], fields["opaque"], fields["flag"], fields["extFields"]
                if not (type(ext) is dict and set(map(type, ext.values())) == _STRINGS):
                    ext = frame.as_strings(ext)
            elif word >> 24 == 1:
                command = frame.decode_compact(header)
                code, opaque, flag, ext = command.code, command.opaque, command.flag, command.ext
            else:
                return sends, ends, True
        except (ValueError, KeyError, TypeError, ProtocolError):
            return sends, ends, True
        if not type(code) is type(opaque) is type(flag) is int or code not in _CODES or flag & codes.FLAG_RESPONSE:
            return sends, ends, True
        if code == codes.SEND_MESSAGE:
            ext = short_names(ext)
        sends.append((ext, opaque, flag, view[body_start:frame_end]))
        ends.append(frame_end)
        position = frame_end
    return sends, ends, False
