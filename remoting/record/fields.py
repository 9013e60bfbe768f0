"""Single fields of encoded records, for paths that decode nothing else (pure). Where they are is `layout`'s.

The records are whole, as a walk found them or a checked read gave them.
"""

from __future__ import annotations

from typing import Final

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import (
    HEAD_BYTES,
    LENGTH,
    LENGTH_BYTES,
    MAGIC_V1,
    SHORT_TOPIC_LENGTH_BYTES,
    SYS_V6_HOSTS,
    Field,
    heads,
)

_QUEUE_OFFSET: Final = heads(Field.QUEUE_OFFSET)[0].unpack_from
_PHYSICAL_OFFSET: Final = heads(Field.PHYSICAL_OFFSET)[0].unpack_from
_RECONSUME_TIMES: Final = heads(Field.RECONSUME_TIMES)
_STORE_TIMESTAMP: Final = heads(Field.STORE_TIMESTAMP)
_BODY_LENGTH: Final = heads(Field.BODY_LENGTH)
# Several at once, right for IPv4 hosts
_OFFSETS: Final = heads(Field.QUEUE_OFFSET, Field.PHYSICAL_OFFSET, Field.SYS_FLAG, Field.RECONSUME_TIMES)[0]
_STORED: Final = heads(Field.SYS_FLAG, Field.STORE_TIMESTAMP)[0]
_BODY: Final = heads(Field.MAGIC, Field.SYS_FLAG, Field.BODY_LENGTH)[0]
_LENGTH: Final = LENGTH.unpack_from
_LEAST_BEHIND_BODY: Final = SHORT_TOPIC_LENGTH_BYTES + LENGTH_BYTES
STORE_TIMESTAMP_END: Final = _STORE_TIMESTAMP[SYS_V6_HOSTS].size  # so much of a record's begin tells when it was stored
CONTRADICTION: Final = "the parts of a record do not add up to its size"


def offsets_of(record: Bytes) -> tuple[int, int, int]:
    """(queue offset, physical offset, reconsume times)."""
    queue_offset, physical_offset, sys_flag, reconsume_times = _OFFSETS.unpack_from(record)
    if hosts := sys_flag & SYS_V6_HOSTS:
        (reconsume_times,) = _RECONSUME_TIMES[hosts].unpack_from(record)
    return queue_offset, physical_offset, reconsume_times


def with_reconsume_times(record: bytes, times: int) -> bytes:
    """The record with another number of reconsume times. A checksum over the whole that it has does not fit it any more."""
    at = Field.RECONSUME_TIMES.place(_STORED.unpack_from(record)[0])
    end = at + Field.RECONSUME_TIMES.size
    return record[:at] + times.to_bytes(end - at, "big", signed=True) + record[end:]


def queue_offset_of(record: Bytes) -> int:
    offset: int = _QUEUE_OFFSET(record)[0]
    return offset


def physical_offset_of(record: Bytes) -> int:
    offset: int = _PHYSICAL_OFFSET(record)[0]
    return offset


def store_timestamp_of(record: Bytes) -> int:
    """When a record was stored; its first `STORE_TIMESTAMP_END` bytes are enough."""
    timestamp: int
    sys_flag, timestamp = _STORED.unpack_from(record)
    if hosts := sys_flag & SYS_V6_HOSTS:
        (timestamp,) = _STORE_TIMESTAMP[hosts].unpack_from(record)
    return timestamp


def properties_of(record: Bytes) -> bytes:
    """The property string. Raises ProtocolError when the record's lengths contradict each other."""
    return bytes(record[_places(record)[3] + LENGTH_BYTES :])


def body_and_properties_of(record: Bytes) -> tuple[bytes, bytes]:
    """The body and the property string. Raises ProtocolError when the record's lengths contradict each other."""
    body_at, body_end, _, topic_end = _places(record)
    return bytes(record[body_at:body_end]), bytes(record[topic_end + LENGTH_BYTES :])


def topic_of(record: Bytes) -> str:
    """The topic. Raises ProtocolError when the record's lengths contradict each other."""
    _, _, start, end = _places(record)
    return str(record[start:end], "utf-8", "surrogateescape")


def _places(record: Bytes) -> tuple[int, int, int, int]:
    magic, sys_flag, body_length = _BODY.unpack_from(record)
    places = measure(record, 0, len(record), magic, sys_flag, body_length)
    if places is None:
        raise ProtocolError(CONTRADICTION)
    return places


def measure(
    data: Bytes, at: int, end: int, magic: int, sys_flag: int, body_length: int
) -> tuple[int, int, int, int] | None:
    """From where to where the body and then the topic are, of the record at `[at, end)` of the data; None when its parts do not
    add up to that. Its properties begin behind the topic and their own length. `body_length` is as read for IPv4 hosts."""
    body_at = at + HEAD_BYTES
    if hosts := sys_flag & SYS_V6_HOSTS:
        head = _BODY_LENGTH[hosts]
        body_at = at + head.size
        if body_at > end:
            return None
        (body_length,) = head.unpack_from(data, at)
    body_end = body_at + body_length
    if body_length < 0 or body_end + _LEAST_BEHIND_BODY > end:
        return None
    if magic == MAGIC_V1:
        topic_at = body_end + SHORT_TOPIC_LENGTH_BYTES
        topic_end = topic_at + data[body_end]
    else:
        topic_at = body_end + LENGTH_BYTES
        topic_end = topic_at + _LENGTH(data, body_end)[0]
    properties_at = topic_end + LENGTH_BYTES
    if topic_end < topic_at or properties_at > end or properties_at + _LENGTH(data, topic_end)[0] != end:
        return None
    return body_at, body_end, topic_at, topic_end
