"""Bytes <-> commands: the frame of the RocketMQ remoting protocol (pure).

    totalLength i32 | serializeType u8, headerLength u24 | header | body

Both header encodings are read; answers are always JSON, because every client reads JSON and two do not mask the type byte.
`extFields` values come out as strings whatever the peer sent (numbers, booleans and null occur), so that nothing above this
module deals with more than one type. A frame longer than the limit, or a header that does not decode, raises ProtocolError
before anything is allocated for it.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping
from typing import Any, Final

import orjson

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
# The longest that a client has reason to send: 32 KB of properties whose every byte is escaped, and a filter expression.
MAX_HEADER_BYTES: Final = 512 * 1024
PREFIX_BYTES: Final = 8

_PREFIX = struct.Struct(">iI")
_COMPACT_FIXED = struct.Struct(">hBhiii")
_LENGTH16 = struct.Struct(">h")
_LENGTH32 = struct.Struct(">i")
_STRINGS = {str}
_LOOKED_UP: Final = {"version": int, "language": str, "remark": str}
_DEFAULTS: Final = {"version": 0, "language": "OTHER", "remark": None}


class Command:
    """One request or response. `body` may be a view into the buffer it was read from: copy it to keep it.

    Of a command that was read from a JSON header, `version`, `language` and `remark` are looked up when somebody asks: few do.
    """

    __slots__ = ("_header", "body", "code", "ext", "flag", "language", "opaque", "remark", "version")

    version: int
    language: str
    remark: str | None
    _header: Any

    def __init__(
        self,
        code: int,
        opaque: int = 0,
        ext: dict[str, str] | None = None,
        body: Bytes = b"",
        flag: int = 0,
        remark: str | None = None,
        version: int = codes.VERSION,
        language: str = "PYTHON",
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.ext: dict[str, str] = {} if ext is None else ext
        self.body = body
        self.flag = flag
        self.remark = remark
        self.version = version
        self.language = language

    def __getattr__(self, name: str) -> Any:
        if name not in _LOOKED_UP:
            raise AttributeError(name)
        value = self._header.get(name)
        if not isinstance(value, _LOOKED_UP[name]):
            value = _DEFAULTS[name]
        setattr(self, name, value)
        return value

    def drop_content(self) -> None:
        """Forget what the peer sent, all but what an answer needs: for a request that waits for long."""
        self._header = {}
        self.ext = {}
        self.body = b""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & codes.FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & codes.FLAG_ONEWAY)

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        return f"<{kind} {self.code} opaque={self.opaque} ext={self.ext} body={len(self.body)}B remark={self.remark}>"


def decode_frames(
    buffer: bytes | bytearray | memoryview,
    commands: list[Command],
    max_frame_bytes: int = MAX_FRAME_BYTES,
    most: int = sys.maxsize,
) -> int:
    """Append the complete frames of the buffer to `commands`, as far as there are `most` in it; return how many bytes they took.

    Bodies are views into `buffer`. Raises ProtocolError for a frame that no correct peer sends.
    """
    position = 0
    end = len(buffer)
    view = memoryview(buffer)
    unpack = _PREFIX.unpack_from
    loads = orjson.loads
    while end - position >= PREFIX_BYTES and len(commands) < most:
        total, word = unpack(buffer, position)
        header_length = word & 0xFFFFFF
        if not 4 + header_length <= total <= max_frame_bytes - 4 or header_length > MAX_HEADER_BYTES:
            raise ProtocolError(
                f"frame of {total} bytes with a header of {header_length}; the limits are {max_frame_bytes} and "
                f"{MAX_HEADER_BYTES}"
            )
        frame_end = position + 4 + total
        if frame_end > end:
            break
        body_start = position + PREFIX_BYTES + header_length
        header = view[position + PREFIX_BYTES : body_start]
        if word == header_length:  # the encoding's byte is 0: JSON
            try:
                fields = loads(header)
                command = Command.__new__(Command)
                command._header = fields
                command.code = code = fields["code"]
                command.opaque = opaque = fields["opaque"]
                command.flag = flag = fields["flag"]
                ext = fields.get("extFields")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ProtocolError(f"undecodable JSON header: {error}") from error
            if not type(code) is type(opaque) is type(flag) is int:
                raise ProtocolError("code, opaque and flag of a header must be integers")
            if ext:
                plain = type(ext) is dict and set(map(type, ext.values())) == _STRINGS
                command.ext = ext if plain else as_strings(ext)
            else:
                command.ext = {}
        elif word >> 24 == 1:
            command = decode_compact(header)
        else:
            raise ProtocolError(f"unknown header encoding {word >> 24}")
        command.body = view[body_start:frame_end]
        commands.append(command)
        position = frame_end
    return position


def bytes_wanted(buffer: Bytes) -> int:
    """How many bytes the first frame of the buffer has in all; PREFIX_BYTES while that is not known."""
    if len(buffer) < PREFIX_BYTES:
        return PREFIX_BYTES
    total: int = _PREFIX.unpack_from(buffer)[0]
    return total + 4


def count_frames(buffer: bytes, start: int, end: int) -> int:
    """How many frames lie between two places at which one begins."""
    count = 0
    while start < end:
        start += 4 + _PREFIX.unpack_from(buffer, start)[0]
        count += 1
    return count


def header_end(buffer: Bytes) -> int:
    """Where the header of the first frame ends, whose prefix is there."""
    word: int = _PREFIX.unpack_from(buffer)[1]
    return PREFIX_BYTES + (word & 0xFFFFFF)


def decode_head(buffer: bytes) -> Command:
    """The first frame without its body, of which nothing need be there. Raises ProtocolError."""
    _, word = _PREFIX.unpack_from(buffer)
    end = header_end(buffer)
    commands: list[Command] = []
    decode_frames(_PREFIX.pack(end - 4, word) + buffer[PREFIX_BYTES:end], commands)
    return commands[0]


def as_strings(ext: Any) -> dict[str, str]:
    """The fields of a header whatever their values are; raises ProtocolError for what no peer writes there."""
    if not isinstance(ext, dict):
        raise ProtocolError("extFields must be an object")
    result = {}
    for key, value in ext.items():
        if value is None:
            continue
        if isinstance(value, str):
            result[key] = value
        elif isinstance(value, bool):
            result[key] = "true" if value else "false"
        elif isinstance(value, int):
            result[key] = str(value)
        elif isinstance(value, float):
            result[key] = str(int(value)) if value.is_integer() else repr(value)
        else:
            raise ProtocolError(f"extFields.{key} must be a string, a number or a boolean")
    return result


def decode_compact(header: memoryview) -> Command:
    """The command of a compact header, without its body. Raises ProtocolError."""
    try:
        code, language, version, opaque, flag, remark_length = _COMPACT_FIXED.unpack_from(header)
        position = _COMPACT_FIXED.size
        remark, position = _take_text(header, position, remark_length)
        (ext_length,) = _LENGTH32.unpack_from(header, position)
        position += 4
        end = position + ext_length
        if ext_length < 0 or end > len(header):
            raise ProtocolError("the ext block is longer than its header")
        ext: dict[str, str] = {}
        while position < end:
            (key_length,) = _LENGTH16.unpack_from(header, position)
            key, position = _take_text(header, position + 2, key_length)
            (value_length,) = _LENGTH32.unpack_from(header, position)
            value, position = _take_text(header, position + 4, value_length)
            if key and value:
                ext[key] = value
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"undecodable compact header: {error}") from error
    name = codes.LANGUAGES[language] if language < len(codes.LANGUAGES) else "OTHER"
    return Command(code, opaque, ext, b"", flag, remark or None, version, name)


def _take_text(header: memoryview, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if length < 0 or end > len(header):
        raise ProtocolError("a text of the compact header is longer than the header")
    return str(header[position:end], "utf-8"), end


def encode_request(
    code: int, opaque: int, ext: Mapping[str, str] | None = None, body: Bytes = b"", *, oneway: bool = False
) -> bytes:
    """A request frame with a JSON header."""
    fields = {
        "code": code,
        "extFields": ext or {},
        "flag": codes.FLAG_ONEWAY if oneway else 0,
        "language": "PYTHON",
        "opaque": opaque,
        "version": codes.VERSION,
    }
    return _frame(orjson.dumps(fields), body)


def encode_response(
    code: int, opaque: int, ext: Mapping[str, str] | None = None, body: Bytes = b"", remark: str | None = None
) -> bytes:
    """A response frame with a JSON header. `extFields` is always there, because some clients read it unasked."""
    return _frame(_response_header(code, opaque, ext, remark), body)


def encode_response_head(
    code: int, opaque: int, ext: Mapping[str, str] | None, body_length: int, remark: str | None = None
) -> bytes:
    """A response frame without its body, for one so long that it is not to be copied into it."""
    header = _response_header(code, opaque, ext, remark)
    return _PREFIX.pack(4 + len(header) + body_length, len(header)) + header


def _response_header(code: int, opaque: int, ext: Mapping[str, str] | None, remark: str | None) -> bytes:
    fields = {
        "code": code,
        "extFields": ext or {},
        "flag": codes.FLAG_RESPONSE,
        "language": "JAVA",
        "opaque": opaque,
        "version": codes.VERSION,
    }
    if remark is not None:
        fields["remark"] = remark
    return orjson.dumps(fields)


def _frame(header: bytes, body: Bytes) -> bytes:
    header_length = len(header)
    return b"".join((_PREFIX.pack(4 + header_length + len(body), header_length), header, body))
