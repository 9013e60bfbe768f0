"""Batches: many messages in the body of one request (pure)."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from remoting.disk import Bytes
from remoting.errors import ProtocolError

_BATCH_HEAD: Final = struct.Struct(">iIIii")
_SHORT: Final = struct.Struct(">h")


class BatchItem(NamedTuple):
    """One message inside a batch body."""

    flag: int
    body: memoryview
    properties: bytes


def decode_batch_body(body: Bytes, max_count: int = 32767) -> list[BatchItem]:
    """The messages of a batch body (code 320): totalSize magic crc flag bodyLength body propertiesLength properties.

    Raises ProtocolError when lengths contradict each other or there are more than `max_count`.
    """
    view = memoryview(body)
    items: list[BatchItem] = []
    position = 0
    try:
        while position < len(view):
            size, _, _, flag, body_length = _BATCH_HEAD.unpack_from(view, position)
            body_start = position + _BATCH_HEAD.size
            properties_at = body_start + body_length
            (properties_length,) = _SHORT.unpack_from(view, properties_at)
            end = position + size
            if (
                min(body_length, properties_length) < 0
                or properties_at + 2 + properties_length != end
                or end > len(view)
            ):
                raise ProtocolError("the parts of a batch item do not add up to its size")
            if len(items) == max_count:
                raise ProtocolError(f"a batch of more than {max_count} messages")
            items.append(BatchItem(flag, view[body_start:properties_at], bytes(view[properties_at + 2 : end])))
            position = end
    except struct.error as error:
        raise ProtocolError(f"undecodable batch body: {error}") from error
    return items


def encode_batch_body(items: list[tuple[int, bytes, bytes]]) -> bytes:
    """A batch body of (flag, body, properties) triples."""
    parts = []
    for flag, body, properties in items:
        size = _BATCH_HEAD.size + len(body) + 2 + len(properties)
        parts += [_BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties]
    return b"".join(parts)
