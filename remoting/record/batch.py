"""Batches: many messages in the body of one request (pure).

A message of a batch is: totalSize magic crc flag bodyLength, each of 4 bytes, body, propertiesLength(2), properties.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import LENGTH, LENGTH_BYTES

MAX_BATCH_COUNT: Final = 32767  # messages
ITEM_HEAD: Final = struct.Struct(">i8xii")  # what of an item's head counts: size, flag, body length
ITEM_HEAD_BYTES: Final = ITEM_HEAD.size
ITEM_COLUMNS: Final = "i8x8s"  # for items that are alike: size; flag and body length
ITEM_OVERHEAD_BYTES: Final = ITEM_HEAD_BYTES + LENGTH_BYTES


class BatchItem(NamedTuple):
    flag: int
    body: memoryview
    properties: bytes


def decode_batch_body(body: Bytes, max_count: int = MAX_BATCH_COUNT) -> list[BatchItem]:
    """The messages of a batch body (code 320).

    Raises ProtocolError when lengths contradict each other or there are more than `max_count`.
    """
    view = memoryview(body)
    items: list[BatchItem] = []
    position = 0
    try:
        while position < len(view):
            size, flag, body_length = ITEM_HEAD.unpack_from(view, position)
            body_start = position + ITEM_HEAD_BYTES
            length_at = body_start + body_length
            (properties_length,) = LENGTH.unpack_from(view, length_at)
            properties_at = length_at + LENGTH_BYTES
            end = position + size
            if min(body_length, properties_length) < 0 or properties_at + properties_length != end or end > len(view):
                raise ProtocolError("the parts of a batch item do not add up to its size")
            if len(items) == max_count:
                raise ProtocolError(f"a batch of more than {max_count} messages")
            items.append(BatchItem(flag, view[body_start:length_at], bytes(view[properties_at:end])))
            position = end
    except struct.error as error:
        raise ProtocolError(f"undecodable batch body: {error}") from error
    return items
