"""The objects of a manifest: a checkpoint of all contents, and what changed since, one object each (pure).

    8 bytes   magic, the version of the layout in the last one
    4 bytes   CRC-32 of all that follows
    8 bytes   length of the JSON before compression
    zstd of   {epoch, number, checkpoint, epochs: [[master epoch, start in the log], ...], changes: [change, ...]}

Numbers of an epoch are consecutive from 0 on, and 0 is a checkpoint. Whoever wants the contents takes the last checkpoint of
the highest epoch, and what follows it by number. `epochs` says which log they were made of: what was uploaded belongs to it up
to where another log goes apart.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from remoting.checksum import crc32
from remoting.tier.contents import Change

MAX_BYTES: Final = 1 << 30  # of the JSON

_MAGIC: Final = b"LBTIER\x00\x01"
_HEAD: Final = struct.Struct(">8sIQ")


class Position(NamedTuple):
    """Which object of the manifest."""

    epoch: int
    number: int


class ManifestPart(NamedTuple):
    """One object. `epochs` are the log's: (master epoch, where it begins)."""

    position: Position
    is_checkpoint: bool
    epochs: list[tuple[int, int]]
    changes: list[Change]


def encode_part(part: ManifestPart) -> bytes:
    """As it is stored."""
    document = orjson.dumps(
        {
            "epoch": part.position.epoch,
            "number": part.position.number,
            "checkpoint": part.is_checkpoint,
            "epochs": part.epochs,
            "changes": part.changes,
        }
    )
    packed = struct.pack(">Q", len(document)) + zstandard.compress(document)
    return _HEAD.pack(_MAGIC, crc32(packed), len(document)) + packed[8:]


def decode_part(content: bytes, name: str) -> ManifestPart:
    """Raises ValueError, whose text names the object, when that is none, is damaged, or is of a version that is not known."""
    if len(content) < _HEAD.size:
        raise ValueError(f"{name} is cut off: {len(content)} bytes")
    magic, crc, length = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        known = "a newer version wrote it" if magic[:7] == _MAGIC[:7] else "it is no manifest"
        raise ValueError(f"{name} cannot be read: {known}")
    if crc != crc32(content[12:]):
        raise ValueError(f"{name} is damaged: its checksum is another one")
    if length > MAX_BYTES:
        raise ValueError(f"{name} says that it has {length} bytes, and at most {MAX_BYTES} are read")
    try:
        document = zstandard.ZstdDecompressor().decompress(content[_HEAD.size :], max_output_size=length)
        return _part(orjson.loads(document))
    except (zstandard.ZstdError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} cannot be read: {error}") from error


def _part(document: Any) -> ManifestPart:
    epoch, number, changes = document["epoch"], document["number"], document["changes"]
    epochs = [(each[0], each[1]) for each in document["epochs"]]
    whole = [epoch, number, *(value for entry in epochs for value in entry)]
    if not all(type(value) is int and value >= 0 for value in whole) or not isinstance(changes, list):
        raise ValueError("its numbers or its changes are none")
    return ManifestPart(Position(epoch, number), document["checkpoint"] is True, epochs, changes)
