"""JSON as objects of a tier have it: named, checked and compressed (pure).

8 bytes   magic, the version of the layout in the last one
4 bytes   CRC-32 of all that follows
8 bytes   length of the JSON before compression
zstd of   the JSON, in one frame that has its length, too
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from remoting.checksum import crc32

MAX_JSON_BYTES: Final = 1 << 30

_MAGIC_AND_CRC: Final = struct.Struct(">8sI")
_LENGTH: Final = struct.Struct(">Q")
_HEAD_BYTES: Final = _MAGIC_AND_CRC.size + _LENGTH.size


class Layout(NamedTuple):
    """Of one kind of objects: how they begin, and what an object that begins otherwise is not."""

    magic: bytes
    kind: str


def encode_json(layout: Layout, value: Any) -> bytes:
    """As it is stored; equal values give equal bytes."""
    document = orjson.dumps(value)
    checked = _LENGTH.pack(len(document)) + zstandard.compress(document)
    return _MAGIC_AND_CRC.pack(layout.magic, crc32(checked)) + checked


def decode_json(layout: Layout, content: bytes, name: str) -> Any:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    if len(content) < _HEAD_BYTES:
        raise ValueError(f"{name} is cut off: {len(content)} bytes")
    magic, crc = _MAGIC_AND_CRC.unpack_from(content)
    if magic != layout.magic:
        known = "a newer version wrote it" if magic[:-1] == layout.magic[:-1] else f"it is no {layout.kind}"
        raise ValueError(f"{name} cannot be read: {known}")
    if crc != crc32(memoryview(content)[_MAGIC_AND_CRC.size :]):
        raise ValueError(f"{name} is damaged: its checksum is another one")
    (length,) = _LENGTH.unpack_from(content, _MAGIC_AND_CRC.size)
    if length > MAX_JSON_BYTES:
        raise ValueError(f"{name} says that it has {length} bytes, and at most {MAX_JSON_BYTES} are read")
    try:
        return orjson.loads(_unpacked(content[_HEAD_BYTES:], length))
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _unpacked(frame: bytes, length: int) -> bytes:
    """The frame's own length decides what is allocated for it, so it has to be the one that was bounded."""
    if zstandard.frame_content_size(frame) != length:
        raise ValueError("its lengths contradict each other")
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=length)
