"""What only clients of the protocol write: frames with the compact header, and the bodies of batches."""

from __future__ import annotations

import struct

from remoting import codes
from remoting.frame import Command

_PREFIX = struct.Struct(">iI")
_COMPACT_FIXED = struct.Struct(">hBhiii")
_LENGTH16 = struct.Struct(">h")
_LENGTH32 = struct.Struct(">i")
_BATCH_ITEM = struct.Struct(">iIIii")


def encode_compact(command: Command) -> bytes:
    """The frame of a command with the compact header, as clients write it that are started in that mode."""
    remark = (command.remark or "").encode()
    entries = bytearray()
    for key, value in command.ext.items():
        encoded_key, encoded_value = key.encode(), value.encode()
        entries += _LENGTH16.pack(len(encoded_key)) + encoded_key + _LENGTH32.pack(len(encoded_value)) + encoded_value
    language = codes.LANGUAGES.index(command.language if command.language in codes.LANGUAGES else "OTHER")
    code = (command.code + 0x8000) % 0x10000 - 0x8000
    fixed = _COMPACT_FIXED.pack(code, language, command.version, command.opaque, command.flag, len(remark))
    header = b"".join((fixed, remark, _LENGTH32.pack(len(entries)), entries))
    return b"".join((_PREFIX.pack(4 + len(header) + len(command.body), 1 << 24 | len(header)), header, command.body))


def encode_batch_body(items: list[tuple[int, bytes, bytes]]) -> bytes:
    """A batch body of (flag, body, properties) triples."""
    parts = []
    for flag, body, properties in items:
        size = _BATCH_ITEM.size + len(body) + _LENGTH16.size + len(properties)
        parts += [_BATCH_ITEM.pack(size, 0, 0, flag, len(body)), body, _LENGTH16.pack(len(properties)), properties]
    return b"".join(parts)
