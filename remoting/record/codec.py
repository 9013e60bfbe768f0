"""Whole records: from their parts to bytes and back (pure)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.fields import CONTRADICTION, measure
from remoting.record.layout import (
    BORDER,
    FILLER_BYTES,
    HOST_V6_BYTES,
    LENGTH,
    LENGTH_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MAX_RECORD_BYTES,
    MAX_RETRY_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_V6_HOSTS,
    Field,
    heads,
    record_size,
)
from remoting.record.properties import decode_properties

_HEADS: Final = heads(*Field)
_SYS_FLAG: Final = heads(Field.SYS_FLAG)[0].unpack_from


class Record(NamedTuple):
    """A decoded record. `body` and `properties` are as stored; hosts are packed address + 4-byte port."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    store_timestamp_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: bytes

    def property_map(self) -> dict[str, str]:
        """The properties as a mapping; last one wins, empty values are dropped."""
        return decode_properties(self.properties)

    def encode(self) -> bytes:
        """The bytes of this record, also after parts were replaced: size, CRC and host bits are those that follow."""
        return encode_record(
            topic=self.topic.encode(),
            queue_id=self.queue_id,
            queue_offset=self.queue_offset,
            physical_offset=self.physical_offset,
            body=self.body,
            properties=self.properties,
            born_timestamp_ms=self.born_timestamp_ms,
            born_host=self.born_host,
            store_timestamp_ms=self.store_timestamp_ms,
            store_host=self.store_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
        )


def encode_record(
    *,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: Bytes,
    properties: bytes,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """The bytes of one record. Host bits of `sys_flag` are set from the hosts' lengths.

    Raises ValueError when a part is over its limit: the caller checks first and answers with the protocol's code.
    """
    size = record_size(len(topic), len(body), len(properties), len(born_host), len(store_host))
    if len(properties) > MAX_PROPERTIES_BYTES or len(topic) > MAX_RETRY_TOPIC_BYTES or size > MAX_RECORD_BYTES:
        raise ValueError("a record is over its size limit")
    sys_flag &= ~SYS_V6_HOSTS
    if len(born_host) == HOST_V6_BYTES:
        sys_flag |= SYS_BORN_HOST_V6
    if len(store_host) == HOST_V6_BYTES:
        sys_flag |= SYS_STORE_HOST_V6
    long_topic = len(topic) > MAX_TOPIC_BYTES
    head = _HEADS[sys_flag & SYS_V6_HOSTS].pack(
        size,
        MAGIC_V2 if long_topic else MAGIC_V1,
        crc32(body) & 0x7FFFFFFF,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp_ms,
        born_host,
        store_timestamp_ms,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    topic_length = LENGTH.pack(len(topic)) if long_topic else bytes((len(topic),))
    return b"".join((head, body, topic_length, topic, LENGTH.pack(len(properties)), properties))


def encode_filler(remaining: int) -> bytes:
    """The filler that declares the last `remaining` bytes of a log's file blank."""
    assert remaining >= FILLER_BYTES
    return BORDER.pack(remaining, MAGIC_BLANK)


def decode_record(buffer: Bytes, position: int = 0) -> Record:
    """Decode the record that starts at `position`; raises ProtocolError when its lengths contradict each other.

    The body's CRC is not checked: see `body_is_intact`.
    """
    try:
        return _decode_record(buffer, position)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"undecodable record: {error}") from error


def _decode_record(buffer: Bytes, start: int) -> Record:
    (sys_flag,) = _SYS_FLAG(buffer, start)
    head = _HEADS[sys_flag & SYS_V6_HOSTS]
    size, magic, *others, body_length = head.unpack_from(buffer, start)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"no record here: magic {magic:#010x}")
    end = start + size
    if end > len(buffer):
        raise ProtocolError(f"record of {size} bytes in a buffer of {len(buffer) - start}")
    places = measure(buffer, start, end, magic, sys_flag, body_length)
    if places is None:
        raise ProtocolError(CONTRADICTION)
    body_at, body_end, topic_at, topic_end = places
    parts = (
        bytes(buffer[body_at:body_end]),
        str(buffer[topic_at:topic_end], "utf-8"),
        bytes(buffer[topic_end + LENGTH_BYTES : end]),
    )
    return Record._make((size, *others, *parts))


def decode_records(buffer: Bytes) -> Iterator[Record]:
    """The records of a pull or pop answer, back to back."""
    position = 0
    while position < len(buffer):
        record = decode_record(buffer, position)
        yield record
        position += record.size


def body_is_intact(record: Record) -> bool:
    """Whether the body's CRC is the one in the record."""
    return crc32(record.body) & 0x7FFFFFFF == record.body_crc
