"""What a mount needs of a broker group besides its messages: topics, groups and consumer offsets, an object at a time (pure).

    8 bytes   magic, the version of the layout in the last one
    4 bytes   CRC-32 of all that follows
    8 bytes   length of the JSON before compression
    zstd of   [row, ...], as the snapshots of the broker's metadata have them

The object of the highest epoch and number counts, as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import orjson
import zstandard

from remoting.checksum import crc32

MAX_BYTES: Final = 256 << 20  # as stored
_MAX_JSON_BYTES: Final = 1 << 30
_MAGIC: Final = b"LBSTAT\x00\x01"
_HEAD: Final = struct.Struct(">8sIQ")

Row = list[Any]


def encode_state(rows: Sequence[Row]) -> bytes:
    """As it is stored; equal rows give equal bytes."""
    document = orjson.dumps(rows)
    packed = struct.pack(">Q", len(document)) + zstandard.compress(document)
    return _HEAD.pack(_MAGIC, crc32(packed), len(document)) + packed[8:]


def decode_state(content: bytes, name: str) -> list[Row]:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    if len(content) < _HEAD.size:
        raise ValueError(f"{name} is cut off: {len(content)} bytes")
    magic, crc, length = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        known = "a newer version wrote it" if magic[:7] == _MAGIC[:7] else "it is no state of a broker group"
        raise ValueError(f"{name} cannot be read: {known}")
    if crc != crc32(content[12:]):
        raise ValueError(f"{name} is damaged: its checksum is another one")
    if length > _MAX_JSON_BYTES:
        raise ValueError(f"{name} says that it has {length} bytes, and at most {_MAX_JSON_BYTES} are read")
    try:
        rows = orjson.loads(zstandard.ZstdDecompressor().decompress(content[_HEAD.size :], max_output_size=length))
    except (zstandard.ZstdError, ValueError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, list) and row for row in rows):
        raise ValueError(f"{name} cannot be read: it holds no rows")
    return rows
