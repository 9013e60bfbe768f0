"""Whole records: from their parts to bytes and back (pure)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import (
    MAGIC_V1,
    MAGIC_V2,
    MAX_PROPERTIES_BYTES,
    MAX_RECORD_BYTES,
    MAX_RETRY_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    record_size,
)
from remoting.record.properties import decode_properties

_HEAD: Final = struct.Struct(">IIIiiqqiq")  # up to and with bornTimestamp
_AFTER_STORE_HOST: Final = struct.Struct(">iqi")
_LONG: Final = struct.Struct(">q")
_SHORT: Final = struct.Struct(">h")


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
    sys_flag &= ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6)
    if len(born_host) == 20:
        sys_flag |= SYS_BORN_HOST_V6
    if len(store_host) == 20:
        sys_flag |= SYS_STORE_HOST_V6
    long_topic = len(topic) > MAX_TOPIC_BYTES
    return b"".join(
        (
            _HEAD.pack(
                size,
                MAGIC_V2 if long_topic else MAGIC_V1,
                crc32(body) & 0x7FFFFFFF,
                queue_id,
                flag,
                queue_offset,
                physical_offset,
                sys_flag,
                born_timestamp_ms,
            ),
            born_host,
            _LONG.pack(store_timestamp_ms),
            store_host,
            _AFTER_STORE_HOST.pack(reconsume_times, prepared_transaction_offset, len(body)),
            body,
            _SHORT.pack(len(topic)) if long_topic else bytes((len(topic),)),
            topic,
            _SHORT.pack(len(properties)),
            properties,
        )
    )


def decode_record(buffer: Bytes, position: int = 0) -> Record:
    """Decode the record that starts at `position`; raises ProtocolError when its lengths contradict each other.

    The body's CRC is not checked: see `body_is_intact`.
    """
    try:
        return _decode_record(buffer, position)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise ProtocolError(f"undecodable record: {error}") from error


def _decode_record(buffer: Bytes, start: int) -> Record:
    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born = _HEAD.unpack_from(
        buffer, start
    )
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise ProtocolError(f"no record here: magic {magic:#010x}")
    end = start + size
    if end > len(buffer):
        raise ProtocolError(f"record of {size} bytes in a buffer of {len(buffer) - start}")
    position = start + _HEAD.size
    host_length = 20 if sys_flag & SYS_BORN_HOST_V6 else 8
    born_host = bytes(buffer[position : position + host_length])
    position += host_length
    (store_timestamp,) = _LONG.unpack_from(buffer, position)
    position += 8
    host_length = 20 if sys_flag & SYS_STORE_HOST_V6 else 8
    store_host = bytes(buffer[position : position + host_length])
    position += host_length
    reconsume_times, prepared, body_length = _AFTER_STORE_HOST.unpack_from(buffer, position)
    position += _AFTER_STORE_HOST.size
    body_start, position = position, position + body_length
    if magic == MAGIC_V1:
        topic_length = buffer[position]
        position += 1
    else:
        (topic_length,) = _SHORT.unpack_from(buffer, position)
        position += 2
    topic_start, position = position, position + topic_length
    (properties_length,) = _SHORT.unpack_from(buffer, position)
    properties_start = position + 2
    if min(body_length, topic_length, properties_length) < 0 or properties_start + properties_length != end:
        raise ProtocolError("the parts of a record do not add up to its size")
    return Record(
        size,
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared,
        bytes(buffer[body_start : body_start + body_length]),
        str(buffer[topic_start:position], "utf-8"),
        bytes(buffer[properties_start:end]),
    )


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
