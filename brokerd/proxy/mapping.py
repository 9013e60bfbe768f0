"""Protobuf messages to drafts, and stored records to protobuf messages: every rule of what a gRPC client may send (pure).

The checks come in the protocol's order, because a message that breaks two rules must be refused with the first one's code.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence
from typing import Any, Final

import lz4.frame
import zstandard

from brokerd.metadata.configs import TopicConfig
from brokerd.pop.requests import PoppedMessage
from brokerd.proxy import properties as names
from brokerd.proxy.names import topic_name
from brokerd.proxy.protobuf import definition, milliseconds
from brokerd.proxy.status import Code, Refusal
from brokerd.store.draft import Draft
from remoting.message_groups import MAX_GROUP_BYTES, queue_of_group
from remoting.record.codec import Record
from remoting.record.hosts import offset_message_id, unpack_host
from remoting.record.layout import MAX_BODY_BYTES, SYS_COMPRESSED, SYS_COMPRESSION_TYPE_MASK
from remoting.record.properties import MAX_USER_PROPERTIES, MAX_USER_PROPERTIES_BYTES

MAX_MESSAGE_ID_LENGTH: Final = 255
MAX_DELAY_MS: Final = 24 * 3600 * 1000
MAX_RECOVERY_S: Final = 3600

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_MAX_TIMESTAMP_S: Final = 253402300799  # the end of year 9999, where protobuf's timestamps end
_MAX_PLAIN_BODY_BYTES: Final = 4 * MAX_BODY_BYTES
_LZ4: Final = 0x100
_ZSTD: Final = 0x200

TYPE_NAMES: Final = {definition.MessageType.Value(name): name for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")}
NORMAL, FIFO, DELAY, TRANSACTION = TYPE_NAMES
_IDENTITY: Final = definition.Encoding.Value("IDENTITY")
_GZIP: Final = definition.Encoding.Value("GZIP")
_MD5: Final = definition.DigestType.Value("MD5")


# ---- sending


def check_same_topic(messages: Sequence[Any]) -> str:
    """The broker's name of the topic that all messages of a request have."""
    if not messages:
        raise Refusal(Code.MESSAGE_CORRUPTED, "the request has no message")
    first = messages[0].topic
    for message in messages[1:]:
        if message.topic != first:
            raise Refusal(Code.MESSAGE_CORRUPTED, "all messages of a request must have the same topic")
    return topic_name(first)


def to_draft(message: Any, topic: str, config: TopicConfig | None, born_host: bytes, now_ms: int) -> Draft:
    """The draft of a message after all checks. `config` is the topic's, None when there is no such topic."""
    system = message.system_properties
    body: bytes = message.body
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes; at most {MAX_BODY_BYTES} are accepted"
        )
    user_properties = message.user_properties
    # the quick ways to copy these two; their iterators are slow
    user_properties = {name: user_properties[name] for name in user_properties}
    tag: str = system.tag
    keys: list[str] = system.keys[:]
    _check_properties(user_properties, tag, keys)
    if tag or system.HasField("tag"):
        _check_tag(tag)
    for key in keys:
        if not key.strip() or _CONTROL.search(key):
            raise Refusal(Code.ILLEGAL_MESSAGE_KEY, "a key must not be blank nor have control characters")
    group: str = system.message_group
    if group or system.HasField("message_group"):
        _check_group(group)
    message_id: str = system.message_id
    if not message_id.strip() or len(message_id) > MAX_MESSAGE_ID_LENGTH or _CONTROL.search(message_id):
        raise Refusal(Code.ILLEGAL_MESSAGE_ID, "the message needs a message_id without control characters")
    deliver_at_ms = _deliver_at_ms(system, now_ms)
    recovery = "orphaned_transaction_recovery_duration"
    if system.HasField(recovery) and system.orphaned_transaction_recovery_duration.seconds > MAX_RECOVERY_S:
        raise Refusal(Code.BAD_REQUEST, f"{recovery} may be at most one hour")
    _check_type(system, deliver_at_ms, group, topic, config, now_ms)
    assert config is not None

    stored = [f"{names.UNIQ_KEY}\x01{message_id}\x02"]
    for name, value in user_properties.items():
        stored.append(f"{name}\x01{value}\x02")
    if tag:
        stored.append(f"{names.TAGS}\x01{tag}\x02")
    if keys:
        stored.append(f"{names.KEYS}\x01{' '.join(keys)}\x02")
    if group:
        stored.append(f"{names.SHARDING_KEY}\x01{group}\x02")
    if system.trace_context and not _CONTROL.search(system.trace_context):
        stored.append(f"{names.TRACE_CONTEXT}\x01{system.trace_context}\x02")
    if system.born_host and not _CONTROL.search(system.born_host):
        stored.append(f"{names.BORN_HOST}\x01{system.born_host}\x02")
    born_ms = now_ms
    born = system.born_timestamp
    if 0 < born.seconds <= _MAX_TIMESTAMP_S:
        born_ms = milliseconds(born)
        stored.append(f"{names.BORN_TIMESTAMP}\x01{born_ms}\x02")
    attempt = system.delivery_attempt
    if 0 < attempt < 0x8000:
        stored.append(f"{names.RECONSUME_TIME}\x01{attempt}\x02")
    return Draft(
        topic,
        queue_of_group(group, config.write_queue_nums) if group else -1,
        body,
        "".join(stored).encode(),
        born_ms,
        born_host,
        sys_flag=SYS_COMPRESSED if system.body_encoding == _GZIP else 0,
    )


def _check_properties(user_properties: dict[str, str], tag: str, keys: Sequence[str]) -> None:
    if len(user_properties) > MAX_USER_PROPERTIES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user_properties)} user properties; at most {MAX_USER_PROPERTIES} are accepted",
        )
    texts = "".join((*user_properties, *user_properties.values(), tag, *keys))
    size = len(texts) if texts.isascii() else len(texts.encode())
    if size > MAX_USER_PROPERTIES_BYTES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the properties, tag and keys take {size} bytes; at most {MAX_USER_PROPERTIES_BYTES} are accepted",
        )
    if not names.FORBIDDEN.isdisjoint(user_properties):
        name = min(names.FORBIDDEN.intersection(user_properties))
        raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"a user property cannot be named {name!r}")
    if not _CONTROL.search(texts):
        return
    for name, value in user_properties.items():
        if _CONTROL.search(name) or _CONTROL.search(value):
            raise Refusal(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the user property {name[:64]!r} has control characters")


def _check_tag(tag: str) -> None:
    if not tag.strip() or "|" in tag or _CONTROL.search(tag):
        raise Refusal(Code.ILLEGAL_MESSAGE_TAG, "a tag must not be blank nor have | or control characters")


def _check_group(group: str) -> None:
    if not group.strip() or len(group.encode()) >= MAX_GROUP_BYTES or _CONTROL.search(group):
        raise Refusal(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"a message group must not be blank, must be shorter than {MAX_GROUP_BYTES} bytes, and must have no "
            "control characters",
        )


def _deliver_at_ms(system: Any, now_ms: int) -> int | None:
    if not system.HasField("delivery_timestamp"):
        return None
    deliver_at_ms = milliseconds(system.delivery_timestamp)
    if deliver_at_ms > now_ms + MAX_DELAY_MS:
        raise Refusal(Code.ILLEGAL_DELIVERY_TIME, "the delivery time may be at most 24 hours ahead")
    return deliver_at_ms


def _check_type(
    system: Any, deliver_at_ms: int | None, group: str, topic: str, config: TopicConfig | None, now_ms: int
) -> None:
    """The message's type, as its properties say, must be one that the topic takes and that this broker can keep."""
    if config is None:
        raise Refusal(
            Code.TOPIC_NOT_FOUND,
            f"topic {topic} does not exist; create it in the console or with manage.py topic create",
        )
    if system.message_type == TRANSACTION:
        message_type = TRANSACTION
    elif deliver_at_ms is not None:
        message_type = DELAY
    elif group:
        message_type = FIFO
    else:
        message_type = NORMAL
    if config.message_type not in ("MIXED", TYPE_NAMES[message_type]):
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is {TYPE_NAMES[message_type]}, the topic {topic} takes {config.message_type}",
        )
    if message_type == TRANSACTION:
        raise Refusal(Code.UNSUPPORTED, "transactional messages are not supported by this version")
    if deliver_at_ms is not None and deliver_at_ms > now_ms:
        raise Refusal(
            Code.UNSUPPORTED, "delayed delivery is not supported by this version; send without a delivery time"
        )
    if system.HasField("lite_topic") or system.HasField("priority"):
        raise Refusal(Code.UNSUPPORTED, "lite topics and priorities are not supported by this version")


# ---- receiving


def to_message(
    popped: PoppedMessage, record: Record, properties: dict[str, str], topic: Any, invisible_time_ms: int
) -> bytes:
    """The encoded protobuf message of a taken message: its record and properties are given decoded.

    `topic` is the resource that the client asked for.
    """
    message = definition.Message()
    message.topic.CopyFrom(topic)
    for name, value in properties.items():
        if name not in names.RESERVED:
            message.user_properties[name] = value
    body, encoding = plain_body(record)
    message.body = body
    system = message.system_properties
    if tag := properties.get(names.TAGS):
        system.tag = tag
    if keys := properties.get(names.KEYS):
        system.keys.extend(filter(None, keys.split(" ")))
    system.message_id = properties.get(names.UNIQ_KEY) or offset_message_id(record.store_host, record.physical_offset)
    system.body_digest.type = _MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = encoding
    system.message_type = message_type(properties)
    _set_timestamp(system.born_timestamp, record.born_timestamp_ms)
    system.born_host = properties.get(names.BORN_HOST) or unpack_host(record.born_host)[0]
    _set_timestamp(system.store_timestamp, record.store_timestamp_ms)
    host, port = unpack_host(record.store_host)
    system.store_host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    due = properties.get(names.TIMER_DELIVER_MS) or properties.get(names.TIMER_OUT_MS)
    if due and due.isdecimal():
        _set_timestamp(system.delivery_timestamp, int(due))
    system.receipt_handle = popped.receipt_handle
    system.queue_id = popped.queue_id
    system.queue_offset = popped.queue_offset
    system.invisible_duration.FromMilliseconds(invisible_time_ms)
    system.delivery_attempt = max(1, popped.delivery_attempt)
    if group := properties.get(names.SHARDING_KEY):
        system.message_group = group
    if trace_context := properties.get(names.TRACE_CONTEXT):
        system.trace_context = trace_context
    immunity = properties.get(names.CHECK_IMMUNITY)
    if immunity and immunity.isdecimal():
        system.orphaned_transaction_recovery_duration.seconds = min(int(immunity), MAX_RECOVERY_S)
    if origin := properties.get(names.DLQ_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID, "")
    encoded: bytes = message.SerializeToString()
    return encoded


def message_type(properties: dict[str, str]) -> int:
    """The type as it was sent, from the stored properties."""
    if properties.get(names.TRAN_MSG) == "true":
        return int(TRANSACTION)
    if names.TIMER_DELIVER_MS in properties or "TIMER_DELAY_MS" in properties or "DELAY" in properties:
        return int(DELAY)
    return int(FIFO if names.SHARDING_KEY in properties else NORMAL)


def plain_body(record: Record) -> tuple[bytes, int]:
    """The body and its encoding as gRPC clients can read it: they know gzip and zlib, so the others are unpacked here."""
    if not record.sys_flag & SYS_COMPRESSED:
        return record.body, int(_IDENTITY)
    kind = record.sys_flag & SYS_COMPRESSION_TYPE_MASK
    try:
        if kind == _LZ4:
            decompressor = lz4.frame.LZ4FrameDecompressor()
            plain = decompressor.decompress(record.body, _MAX_PLAIN_BODY_BYTES)
            if decompressor.eof:
                return plain, int(_IDENTITY)
        elif kind == _ZSTD:
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(record.body)
            plain = reader.read(_MAX_PLAIN_BODY_BYTES + 1)
            if len(plain) <= _MAX_PLAIN_BODY_BYTES:
                return plain, int(_IDENTITY)
    except (RuntimeError, zstandard.ZstdError, zlib.error):
        pass  # not what its flag says: the client gets the bytes as they are and finds the message corrupted
    return record.body, int(_GZIP)


def _set_timestamp(field: Any, time_ms: int) -> None:
    seconds, rest_ms = divmod(max(0, time_ms), 1000)
    field.seconds = min(seconds, _MAX_TIMESTAMP_S)
    field.nanos = rest_ms * 1_000_000
