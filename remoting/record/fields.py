"""Single fields of encoded records, for paths that decode nothing else (pure). Where they are is `layout`'s.

The records are whole, as a walk found them or a checked read gave them.
"""

from __future__ import annotations

from typing import Final

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import (
    BODY_LENGTH,
    HEAD_BYTES,
    LENGTH,
    MAGIC,
    MAGIC_V1,
    PHYSICAL_OFFSET,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    SHORT_TOPIC_LENGTH_BYTES,
    STORE_TIMESTAMP,
    SYS_FLAG,
    SYS_V6_HOSTS,
    heads,
)

_RECONSUME_TIMES: Final = heads(RECONSUME_TIMES)
_QUEUE_OFFSET: Final = heads(QUEUE_OFFSET)[0].unpack_from
_PHYSICAL_OFFSET: Final = heads(PHYSICAL_OFFSET)[0].unpack_from
_STORE_TIMESTAMP: Final = heads(STORE_TIMESTAMP)
_BODY_LENGTH: Final = heads(BODY_LENGTH)
_OFFSETS_V4: Final = heads(QUEUE_OFFSET, PHYSICAL_OFFSET, SYS_FLAG, RECONSUME_TIMES)[0].unpack_from
_STORED_V4: Final = heads(SYS_FLAG, STORE_TIMESTAMP)[0].unpack_from
_BODY_V4: Final = heads(MAGIC, SYS_FLAG, BODY_LENGTH)[0].unpack_from
_LENGTH: Final = LENGTH.unpack_from
_LENGTH_BYTES: Final = LENGTH.size
CONTRADICTION: Final = "the parts of a record do not add up to its size"
_LEAST_BEHIND_BODY: Final = SHORT_TOPIC_LENGTH_BYTES + LENGTH.size
STORE_TIMESTAMP_END: Final = _STORE_TIMESTAMP[SYS_V6_HOSTS].size  # so much of a record's begin tells when it was stored


def offsets_of(record: Bytes) -> tuple[int, int, int]:
    """(queue offset, physical offset, reconsume times)."""
    queue_offset, physical_offset, sys_flag, reconsume_times = _OFFSETS_V4(record)
    if hosts := sys_flag & SYS_V6_HOSTS:
        (reconsume_times,) = _RECONSUME_TIMES[hosts].unpack_from(record)
    return queue_offset, physical_offset, reconsume_times


def queue_offset_of(record: Bytes) -> int:
    offset: int = _QUEUE_OFFSET(record)[0]
    return offset


def physical_offset_of(record: Bytes) -> int:
    offset: int = _PHYSICAL_OFFSET(record)[0]
    return offset


def store_timestamp_of(record: Bytes) -> int:
    """When a record was stored; its first `STORE_TIMESTAMP_END` bytes are enough."""
    timestamp: int
    sys_flag, timestamp = _STORED_V4(record)
    if hosts := sys_flag & SYS_V6_HOSTS:
        (timestamp,) = _STORE_TIMESTAMP[hosts].unpack_from(record)
    return timestamp


def properties_of(record: Bytes) -> bytes:
    """The property string. Raises ProtocolError when its lengths contradict each other."""
    _, topic_end = _topic_span(record)
    return bytes(record[topic_end + _LENGTH_BYTES :])


def topic_of(record: Bytes) -> str:
    """The topic. Raises ProtocolError when its lengths contradict each other."""
    start, end = _topic_span(record)
    return str(record[start:end], "utf-8", "surrogateescape")


def _topic_span(record: Bytes) -> tuple[int, int]:
    magic, sys_flag, body_length = _BODY_V4(record)
    body_at = HEAD_BYTES
    if hosts := sys_flag & SYS_V6_HOSTS:
        head = _BODY_LENGTH[hosts]
        body_at = head.size
        if body_at > len(record):
            raise ProtocolError(CONTRADICTION)
        (body_length,) = head.unpack_from(record)
    span = topic_span(record, magic, body_at, body_length, len(record))
    if span is None:
        raise ProtocolError(CONTRADICTION)
    return span


def topic_span(data: Bytes, magic: int, body_at: int, body_length: int, end: int) -> tuple[int, int] | None:
    """Where the topic of the record starts and ends that has its body there and ends at `end` of the data; None when its parts do
    not add up to that. Its properties begin behind the topic and their own length."""
    body_end = body_at + body_length
    if body_length < 0 or body_end + _LEAST_BEHIND_BODY > end:
        return None
    if magic == MAGIC_V1:
        start = body_end + SHORT_TOPIC_LENGTH_BYTES
        topic_end = start + data[body_end]
    else:
        start = body_end + _LENGTH_BYTES
        topic_end = start + _LENGTH(data, body_end)[0]
    properties_at = topic_end + _LENGTH_BYTES
    if topic_end < start or properties_at > end or properties_at + _LENGTH(data, topic_end)[0] != end:
        return None
    return start, topic_end
