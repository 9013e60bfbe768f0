"""Where every consume queue begins and ends, in one file, so that a start after a clean end opens none of theirs.

    0 "LBQE"  4 queuesOffset(8)  12 units in a file(4)  16 count(4)
    then for each queue: topic length(2), topic, queueId(4), firstOffset(8), maxOffset(8), lastPhysicalOffset(8)
    CRC-32 of all before it(4)

Derived: written at a clean end, right after the last checkpoint, and believed only where that one is the newest, by its
`queuesOffset`. It also lists which queues there were: a directory that is missing at a start was removed by somebody.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from remoting.checksum import crc32

PATH: Final = "queueEnds"

_MAGIC: Final = b"LBQE"
_HEAD: Final = struct.Struct(">4sqii")
_NAME: Final = struct.Struct(">H")
_QUEUE: Final = struct.Struct(">iqqq")
_CRC: Final = struct.Struct(">I")


class QueueEnd(NamedTuple):
    """One queue: its units `[first_offset, max_offset)`, and the physical offset in the last one."""

    topic: str
    queue_id: int
    first_offset: int
    max_offset: int
    last_physical: int


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """All queues that have files, as of a checkpoint."""

    queues_offset: int
    file_units: int
    queues: tuple[QueueEnd, ...]


def encode(queues_offset: int, file_units: int, queues: Iterable[QueueEnd]) -> bytes:
    """The file's content."""
    parts = []
    for topic, *numbers in queues:
        name = topic.encode("utf-8", "surrogateescape")
        parts += [_NAME.pack(len(name)), name, _QUEUE.pack(*numbers)]
    content = _HEAD.pack(_MAGIC, queues_offset, file_units, len(parts) // 3) + b"".join(parts)
    return content + _CRC.pack(crc32(content))


def decode(content: bytes | None) -> QueueEnds | None:
    """What the file says; None when it is missing or not whole."""
    if content is None or len(content) < _HEAD.size + _CRC.size:
        return None
    body = content[: -_CRC.size]
    if _CRC.unpack(content[-_CRC.size :]) != (crc32(body),):
        return None
    magic, queues_offset, file_units, count = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        return None
    queues = []
    position = _HEAD.size
    for _ in range(count):
        (length,) = _NAME.unpack_from(body, position)
        position += _NAME.size
        topic = body[position : position + length].decode("utf-8", "surrogateescape")
        position += length
        queues.append(QueueEnd(topic, *_QUEUE.unpack_from(body, position)))
        position += _QUEUE.size
    return QueueEnds(queues_offset, file_units, tuple(queues))
