"""The message record: its layout in the commitlog and on the wire, properties, batch bodies and ids (pure).

One record, all integers big-endian (offsets for IPv4 hosts):

    0 totalSize  4 magic  8 bodyCRC  12 queueId  16 flag  20 queueOffset(8)  28 physicalOffset(8)  36 sysFlag
    40 bornTimestamp(8)  48 bornHost ip+port(4)  56 storeTimestamp(8)  64 storeHost ip+port(4)  72 reconsumeTimes
    76 preparedTransactionOffset(8)  84 bodyLength, body  topicLength(1 or 2), topic  propertiesLength(2), properties

An IPv6 host takes 16 bytes instead of 4 and sets its bit in sysFlag, which shifts what follows it.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.errors import ProtocolError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194

SYS_COMPRESSED: Final = 0x1
SYS_TRANSACTION_MASK: Final = 0xC
SYS_TRANSACTION_PREPARED: Final = 0x4
SYS_TRANSACTION_COMMIT: Final = 0x8
SYS_TRANSACTION_ROLLBACK: Final = 0xC
SYS_BORN_HOST_V6: Final = 0x10
SYS_STORE_HOST_V6: Final = 0x20
SYS_NEED_UNWRAP: Final = 0x40
SYS_INNER_BATCH: Final = 0x80
SYS_COMPRESSION_TYPE_MASK: Final = 0x700

RECORD_OVERHEAD_BYTES: Final = 91
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
MAX_PROPERTIES_BYTES: Final = 32767
MAX_TOPIC_BYTES: Final = 127
MAX_RETRY_TOPIC_BYTES: Final = 255
MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + 64 * 1024

NAME_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW_DIGITS: Final = bytes(_DIGITS[unit % 31] for unit in range(256))
_HIGH_DIGITS: Final = bytes(_DIGITS[unit // 31] for unit in range(256))
_HASHED_AT_ONCE: Final = 256
_SHORT_TEXT: Final = 64  # characters; hashes of longer ones are not remembered
# everything before the body of a record whose hosts are IPv4
HEAD_V4: Final = struct.Struct(">IIIiiqqiqIIqIIiqi")
_HEAD: Final = struct.Struct(">IIIiiqqiq")  # up to and with bornTimestamp
_AFTER_STORE_HOST: Final = struct.Struct(">iqi")
_BATCH_HEAD: Final = struct.Struct(">iIIii")
_INT: Final = struct.Struct(">i")
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


def record_size(
    topic_length: int, body_length: int, properties_length: int, born_host_length: int = 8, store_host_length: int = 8
) -> int:
    """How many bytes a record takes; lengths in bytes."""
    size = RECORD_OVERHEAD_BYTES + body_length + topic_length + properties_length
    size += born_host_length - 8 + store_host_length - 8
    return size + 1 if topic_length > MAX_TOPIC_BYTES else size


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


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string: name 0x01 value 0x02, repeated. Empty values are left out, since readers drop them."""
    return "".join(
        f"{name}{NAME_SEPARATOR}{value}{PROPERTY_SEPARATOR}" for name, value in properties.items() if name and value
    ).encode()


def decode_properties(encoded: Bytes) -> dict[str, str]:
    """The mapping of a property string; entries without a name or a value are dropped, the last of a name wins."""
    properties = {}
    for entry in str(encoded, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = entry.partition(NAME_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


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


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, wrapped to a signed 32-bit integer."""
    return _known_hash(text) if len(text) <= _SHORT_TEXT else _hash_of(text)


def _hash_of(text: str) -> int:
    if text.isascii():
        value = _polynomial(text.encode())
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        value = (_polynomial(units[::2]) + 256 * _polynomial(units[1::2])) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


_known_hash = lru_cache(maxsize=16384)(_hash_of)


def java_hash_bits(text: bytes) -> int:
    """The same for UTF-8 text, as an unsigned 32-bit integer; what is no UTF-8 counts as replacement characters."""
    return _polynomial(text) if text.isascii() else java_hash(str(text, "utf-8", "replace")) & 0xFFFFFFFF


def _polynomial(units: bytes) -> int:
    """The sum of units[i] * 31 ** (n - 1 - i), modulo 2 ** 32.

    `int` evaluates such polynomials: a unit is 31 * high + low, and both are digits of base 31.
    """
    if len(units) > _HASHED_AT_ONCE:  # `int` takes a limited number of digits, in a time that grows with their square
        value = 0
        for start in range(0, len(units), _HASHED_AT_ONCE):
            part = units[start : start + _HASHED_AT_ONCE]
            value = value * pow(31, len(part), 1 << 32) + _polynomial(part)
        return value & 0xFFFFFFFF
    if not units:
        return 0
    return (int(units.translate(_LOW_DIGITS), 31) + 31 * int(units.translate(_HIGH_DIGITS), 31)) & 0xFFFFFFFF


def tags_code(properties: bytes) -> int:
    """The consume-queue tags code of a property string: the hash of its TAGS, 0 without."""
    start = properties.rfind(b"\x02TAGS\x01") + 1  # the last of a name wins
    if not start and not properties.startswith(b"TAGS\x01"):
        return 0
    tag, _, _ = properties[start + 5 :].partition(b"\x02")
    return java_hash(str(tag, "utf-8", "replace")) if tag else 0


def pack_host(host: str, port: int) -> bytes:
    """A record's host field: packed IPv4 or IPv6 address and a 4-byte port. An IPv4 address mapped into IPv6 is unmapped."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _INT.pack(port)


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """The address and port of a record's host field."""
    return str(ipaddress.ip_address(packed[:-4])), _INT.unpack_from(packed, len(packed) - 4)[0]


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The server's message id: hex of the store host and the physical offset."""
    return (store_host + _LONG.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(host, port, physical offset) of a server message id; raises ProtocolError when it is none."""
    try:
        packed = bytes.fromhex(message_id)
        if len(packed) not in (16, 28):
            raise ProtocolError(f"{message_id!r} is not an offset message id: it has 32 or 56 hexadecimal digits")
        host, port = unpack_host(packed[:-8])
    except ValueError as error:
        raise ProtocolError(f"{message_id!r} is not an offset message id: {error}") from error
    return host, port, _LONG.unpack_from(packed, len(packed) - 8)[0]
