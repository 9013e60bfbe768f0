"""Stored records as the answers that a gRPC client receives, laid out byte by byte (pure).

What protobuf's own library makes of the same fields is the oracle (`tests/unit/brokerd/proxy/test_received.py`); it takes four
times as long. Texts of protobuf are UTF-8: where a stored property is not, U+FFFD takes the place of what cannot be read, as in
`Record.property_map`. What no protobuf field can hold is bounded or left out, so that no record can make a pop fail.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import lz4.frame
import zstandard

from brokerd.pop.requests import PoppedMessage
from brokerd.proxy import properties as names
from brokerd.proxy.digests import Digest, digest_for
from brokerd.proxy.mapping import MAX_RECOVERY_S
from brokerd.proxy.protobuf import definition
from brokerd.proxy.status import encode_length
from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.codec import Record
from remoting.record.fields import CONTRADICTION, measure
from remoting.record.hosts import offset_message_id, unpack_host
from remoting.record.layout import (
    LENGTH_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    MAX_BODY_BYTES,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE_MASK,
    SYS_V6_HOSTS,
    Field,
    heads,
)

log = logging.getLogger(__name__)

_MAX_TIMESTAMP_S: Final = 253402300799  # the end of year 9999, where protobuf's timestamps end
_MAX_INT32: Final = 0x7FFFFFFF
_MAX_DIGITS: Final = 19
_MAX_PLAIN_BODY_BYTES: Final = 4 * MAX_BODY_BYTES
# By how much the answers of a call may be longer than their records: who has a few bytes stand for very many gets less at once
MAX_GROWTH_BYTES: Final = 8 * 1024 * 1024
_VIEWED_BODY_BYTES: Final = 16 * 1024  # from here on a view costs less than a copy
_LZ4: Final = 0x100
_ZSTD: Final = 0x200

_HEADS: Final = heads(
    Field.SIZE,
    Field.MAGIC,
    Field.PHYSICAL_OFFSET,
    Field.SYS_FLAG,
    Field.BORN_TIMESTAMP,
    Field.BORN_HOST,
    Field.STORE_TIMESTAMP,
    Field.STORE_HOST,
    Field.BODY_LENGTH,
)
_HEAD: Final = _HEADS[0].unpack_from
_HEAD_BYTES: Final = _HEADS[0].size

_MAGICS: Final = frozenset((MAGIC_V1, MAGIC_V2))
# a name, and a value that is not empty
_PROPERTIES: Final = re.compile(rb"(?:\A|\x02)([^\x01\x02]+)\x01([^\x02]+)")
RESERVED: Final = frozenset(name.encode() for name in names.RESERVED)
_KEYS: Final = names.KEYS.encode()
_TAGS: Final = names.TAGS.encode()
_UNIQ_KEY: Final = names.UNIQ_KEY.encode()
SHARDING_KEY: Final = names.SHARDING_KEY.encode()
_TRACE_CONTEXT: Final = names.TRACE_CONTEXT.encode()
_BORN_HOST: Final = names.BORN_HOST.encode()
_TRAN_MSG: Final = names.TRAN_MSG.encode()
_CHECK_IMMUNITY: Final = names.CHECK_IMMUNITY.encode()
_TIMER_DELIVER_MS: Final = names.TIMER_DELIVER_MS.encode()
_TIMER_DUE_MS: Final = names.TIMER_DUE_MS.encode()
_TIMER_OUT_MS: Final = names.TIMER_OUT_MS.encode()
_PRIORITY: Final = names.PRIORITY.encode()
_DLQ_ORIGIN_TOPIC: Final = names.DLQ_ORIGIN_TOPIC.encode()
_DLQ_ORIGIN_MESSAGE_ID: Final = names.DLQ_ORIGIN_MESSAGE_ID.encode()
_DELAYS: Final = (_TIMER_DELIVER_MS, b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"DELAY")
# what a message seldom has: looked for at once
SELDOM: Final = frozenset(
    (
        *(_TRAN_MSG, _CHECK_IMMUNITY, _TIMER_DUE_MS, _TIMER_OUT_MS, *_DELAYS, SHARDING_KEY, _TRACE_CONTEXT),
        *(_DLQ_ORIGIN_TOPIC, _DLQ_ORIGIN_MESSAGE_ID, _PRIORITY),
    )
)

_NORMAL, _FIFO, _DELAY, _TRANSACTION, _PRIORITIZED = (
    b"\x30" + encode_length(definition.MessageType.Value(name))
    for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
)
_IDENTITY, _GZIP = (b"\x28" + encode_length(definition.Encoding.Value(name)) for name in ("IDENTITY", "GZIP"))


Answered = tuple[bytes, bytes]  # a message's tag, empty without one, and its answer
# `answers_of`, or the same in C: of messages, their label, for how long they are hidden, and the client's language; at least one,
# and no more as soon as unpacked bodies make them longer than `MAX_GROWTH_BYTES` allows
Answers = Callable[[Sequence[PoppedMessage], bytes, int, str], list[Answered | None]]

# Encoding and type of most messages: without a message group, and with one
ORDINARY: Final = _IDENTITY + _NORMAL
GROUPED: Final = _IDENTITY + _FIFO

# A record as far as its message needs it: physical offset, sysFlag, born time and host, store time and host, body, and its
# properties, which have a name and a value each, both valid UTF-8. A plain tuple, as one is made for each message.
Stored = tuple[int, int, int, bytes, int, bytes, Bytes, Mapping[bytes, bytes]]


def take_apart(record: bytes) -> Stored:
    """Raises ProtocolError when the record's parts contradict each other."""
    if len(record) < _HEAD_BYTES:
        raise ProtocolError(CONTRADICTION)
    size, magic, physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, body_length = _HEAD(record)
    if hosts := sys_flag & SYS_V6_HOSTS:
        head = _HEADS[hosts]
        if len(record) < head.size:
            raise ProtocolError(CONTRADICTION)
        *_, born_ms, born_host, store_ms, store_host, _ = head.unpack_from(record)
    if magic not in _MAGICS or size > len(record):
        raise ProtocolError(CONTRADICTION)
    places = measure(record, 0, size, magic, sys_flag, body_length)
    if places is None:
        raise ProtocolError(CONTRADICTION)
    body_at, body_end, _, topic_end = places
    body = record[body_at:body_end] if body_end - body_at < _VIEWED_BODY_BYTES else memoryview(record)[body_at:body_end]
    properties = _properties(record[topic_end + LENGTH_BYTES : size])
    return physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, body, properties


def stored_of(record: Record) -> Stored:
    """What `take_apart` would give of the record."""
    return (
        *(record.physical_offset, record.sys_flag, record.born_timestamp_ms, record.born_host),
        *(record.store_timestamp_ms, record.store_host, record.body, _properties(record.properties)),
    )


def topic_label(topic: Any) -> bytes:
    """The resource that a client asked for, as `encode_answer` puts it into each message."""
    return _field(
        b"\x0a", definition.Resource(resource_namespace=topic.resource_namespace, name=topic.name).SerializeToString()
    )


def encode_answer(popped: PoppedMessage, stored: Stored, label: bytes, invisible_time_ms: int, digest: Digest) -> bytes:
    """A whole answer of a receive or a pull with one message, which is field 2 of both; `stored` is the record taken apart."""
    physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, body, properties = stored
    get = properties.get
    encoding = _IDENTITY
    if sys_flag & SYS_COMPRESSED:
        body, encoding = _plain_body(body, sys_flag)
    parts: list[bytes] = []
    if tag := get(_TAGS):
        parts += (b"\x0a", encode_length(len(tag)), tag)
    if keys := get(_KEYS):
        for key in keys.split(b" "):
            if key:
                parts += (b"\x12", encode_length(len(key)), key)
    message_id = get(_UNIQ_KEY) or offset_message_id(store_host, physical_offset).encode()
    seldom = not SELDOM.isdisjoint(properties)
    born_host_name = get(_BORN_HOST)
    handle = popped.receipt_handle.encode()
    parts += (
        b"\x1a",
        encode_length(len(message_id)),
        message_id,
        digest(body),
        encoding,
        _message_type(properties) if seldom else _NORMAL,
        _born_timestamp(born_ms),
        _born_host(born_host) if born_host_name is None else _field(b"\x42", born_host_name),
        _stored_at(store_ms, store_host),
        b"\x62",
        encode_length(len(handle)),
        handle,
        b"\x68",
        encode_length(popped.queue_id),
        b"\x70",
        encode_length(popped.queue_offset),
        _hidden(invisible_time_ms, popped.delivery_attempt),
    )
    if seldom:
        parts += _seldom_fields(properties)
    system = b"".join(parts)
    message = [label]
    if not RESERVED.issuperset(properties):
        for name, value in properties.items():
            if name not in RESERVED:
                entry = b"\x0a" + encode_length(len(name)) + name + b"\x12" + encode_length(len(value)) + value
                message += (b"\x12", encode_length(len(entry)), entry)
    message += (b"\x1a", encode_length(len(system)), system, b"\x22", encode_length(len(body)))
    before = b"".join(message)
    return b"".join((b"\x12", encode_length(len(before) + len(body)), before, body))


def answers_of(
    messages: Sequence[PoppedMessage], label: bytes, invisible_time_ms: int, language: str
) -> list[Answered | None]:
    """The answers of a receive by a client of that language; None for a record whose parts contradict each other."""
    digest = digest_for(language)
    answers: list[Answered | None] = []
    growth = 0
    for popped in messages:
        if growth > MAX_GROWTH_BYTES:
            break
        try:
            stored = take_apart(popped.record)
        except ProtocolError as error:
            log.error("offset %d of queue %d of %s: %s", popped.queue_offset, popped.queue_id, popped.topic, error)
            answers.append(None)
        else:
            tag = stored[-1].get(_TAGS, b"")
            answer = encode_answer(popped, stored, label, invisible_time_ms, digest)
            growth += len(answer) - len(popped.record)
            answers.append((tag, answer))
    return answers


def _properties(encoded: bytes) -> dict[bytes, bytes]:
    """As `remoting.record.properties.decode_properties`, but encoded; the record's checksum is among them."""
    if not encoded.isascii():
        encoded = encoded.decode("utf-8", "replace").encode()
    return dict(_PROPERTIES.findall(encoded))


def _message_type(properties: Mapping[bytes, bytes]) -> bytes:
    """The type as it was sent, from the stored properties."""
    if properties.get(_TRAN_MSG) == b"true":
        return _TRANSACTION
    if any(name in properties for name in _DELAYS):
        return _DELAY
    if SHARDING_KEY in properties:
        return _FIFO
    return _PRIORITIZED if _PRIORITY in properties else _NORMAL


def _seldom_fields(properties: Mapping[bytes, bytes]) -> list[bytes]:
    get = properties.get
    fields = []
    due_ms = _number(get(_TIMER_DELIVER_MS) or get(_TIMER_DUE_MS) or get(_TIMER_OUT_MS))
    if due_ms is not None:
        fields.append(_timestamp(b"\x5a", due_ms))
    if group := get(SHARDING_KEY):
        fields.append(_field(b"\x8a\x01", group))
    if trace_context := get(_TRACE_CONTEXT):
        fields.append(_field(b"\x92\x01", trace_context))
    immunity_s = _number(get(_CHECK_IMMUNITY))
    if immunity_s is not None:
        fields.append(_field(b"\x9a\x01", b"\x08" + encode_length(min(immunity_s, MAX_RECOVERY_S))))
    if origin := get(_DLQ_ORIGIN_TOPIC):
        letter = _field(b"\x0a", origin) + _field(b"\x12", get(_DLQ_ORIGIN_MESSAGE_ID, b""))
        fields.append(_field(b"\xa2\x01", letter))
    priority = _number(get(_PRIORITY))
    if priority is not None:
        fields.append(b"\xb0\x01" + encode_length(min(priority, _MAX_INT32)))
    return fields


def _number(text: bytes | None) -> int | None:
    """The decimal number that a property is; None when it is none, or one that is longer than any time."""
    return int(text) if text is not None and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _plain_body(body: Bytes, sys_flag: int) -> tuple[Bytes, bytes]:
    """The body and its encoding as gRPC clients can read it: they know gzip and zlib, so the others are unpacked here."""
    kind = sys_flag & SYS_COMPRESSION_TYPE_MASK
    try:
        if kind == _LZ4:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            plain: bytes = decompressor.decompress(body, _MAX_PLAIN_BODY_BYTES)
            if decompressor.eof:
                return plain, _IDENTITY
        elif kind == _ZSTD:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body)
            plain = reader.read(_MAX_PLAIN_BODY_BYTES + 1)
            if len(plain) <= _MAX_PLAIN_BODY_BYTES:
                return plain, _IDENTITY
    except (RuntimeError, zstandard.ZstdError, zlib.error):
        pass  # not what its flag says: the client gets the bytes as they are and finds the message corrupted
    return body, _GZIP


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + encode_length(len(content)) + content


def _timestamp(tag: bytes, time_ms: int) -> bytes:
    seconds, rest_ms = divmod(max(0, time_ms), 1000)
    return _field(tag, _seconds_and_nanos(min(seconds, _MAX_TIMESTAMP_S), rest_ms))


def _seconds_and_nanos(seconds: int, rest_ms: int) -> bytes:
    return b"\x08" + encode_length(seconds) + b"\x10" + encode_length(rest_ms * 1_000_000)


@lru_cache(maxsize=64)
def invisible_duration(time_ms: int) -> bytes:
    return _field(b"\x7a", _seconds_and_nanos(*divmod(time_ms, 1000)))


# Fields that many messages in a row have alike


@lru_cache(maxsize=1024)
def _born_timestamp(time_ms: int) -> bytes:
    return _timestamp(b"\x3a", time_ms)


@lru_cache(maxsize=1024)
def _born_host(packed: bytes) -> bytes:
    return _field(b"\x42", unpack_host(packed)[0].encode())


@lru_cache(maxsize=1024)
def _stored_at(time_ms: int, packed_host: bytes) -> bytes:
    """When and by whom the message was stored."""
    host, port = unpack_host(packed_host)
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return _timestamp(b"\x4a", time_ms) + _field(b"\x52", name.encode())


@lru_cache(maxsize=1024)
def _hidden(invisible_time_ms: int, delivery_attempt: int) -> bytes:
    """For how long the message is hidden, and how often it was delivered."""
    return (
        invisible_duration(invisible_time_ms) + b"\x80\x01" + encode_length(min(max(1, delivery_attempt), _MAX_INT32))
    )
