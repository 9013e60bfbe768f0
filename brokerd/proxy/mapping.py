"""Protobuf messages to drafts: every rule of what a gRPC client may send (pure).

The checks come in the protocol's order, because a message that breaks two rules must be refused with the first one's code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from brokerd.metadata.configs import TopicConfig
from brokerd.proxy import properties as names
from brokerd.proxy.names import topic_name
from brokerd.proxy.protobuf import definition, milliseconds
from brokerd.proxy.status import Code, Refusal
from brokerd.store.draft import Draft
from brokerd.timers.rules import too_far_ahead
from remoting.message_groups import MAX_GROUP_BYTES, queue_of_group
from remoting.record.layout import MAX_BODY_BYTES, SYS_COMPRESSED
from remoting.record.properties import MAX_USER_PROPERTIES, MAX_USER_PROPERTIES_BYTES

MAX_MESSAGE_ID_LENGTH: Final = 255
MAX_RECOVERY_S: Final = 3600

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_MAX_TIMESTAMP_S: Final = 253402300799  # the end of year 9999, where protobuf's timestamps end

TYPE_NAMES: Final = {
    definition.MessageType.Value(name): name for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
}
NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY = TYPE_NAMES
LITE: Final = definition.MessageType.Value("LITE")
MIXED_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")  # what a MIXED topic takes
MAX_LITE_TOPIC: Final = 64
_GZIP: Final = definition.Encoding.Value("GZIP")


def check_same_topic(messages: Sequence[Any]) -> str:
    """The broker's name of the topic that all messages of a request have."""
    if not messages:
        raise Refusal(Code.MESSAGE_CORRUPTED, "the request has no message")
    first = messages[0].topic
    for message in messages[1:]:
        if message.topic != first:
            raise Refusal(Code.MESSAGE_CORRUPTED, "all messages of a request must have the same topic")
    return topic_name(first)


def to_draft(
    message: Any,
    topic: str,
    config: TopicConfig | None,
    born_host: bytes,
    now_ms: int,
    max_ahead_ms: int,
    secret: str = "",
) -> Draft:
    """The draft of a message after all checks. `config` is the topic's, None when there is no such topic; a message may be
    delivered `max_ahead_ms` after now. One that has to wait says so in its properties, and waits when it is sent (`sending/`).

    `secret` is what the id of a transaction that the message begins will prove; only such a message needs one.
    """
    system = message.system_properties
    body: bytes = message.body
    if not body:
        raise Refusal(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(
            Code.MESSAGE_BODY_TOO_LARGE, f"the body has {len(body)} bytes; at most {MAX_BODY_BYTES} are accepted"
        )
    user_properties = message.user_properties
    if len(user_properties) > MAX_USER_PROPERTIES:
        raise Refusal(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{len(user_properties)} user properties; at most {MAX_USER_PROPERTIES} are accepted",
        )
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
    deliver_at_ms = _deliver_at_ms(system, now_ms, max_ahead_ms)
    recovery_s = _recovery_s(system)
    _check_type(system, deliver_at_ms, group, topic, config)
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
    if deliver_at_ms is not None:
        stored.append(f"{names.TIMER_DELIVER_MS}\x01{deliver_at_ms}\x02")
    if system.HasField("priority"):
        stored.append(f"{names.PRIORITY}\x01{system.priority}\x02")
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
    if system.message_type == TRANSACTION:
        # those who publish the topic stand for the producer group
        stored.append(
            f"{names.TRAN_MSG}\x01true\x02{names.PRODUCER_GROUP}\x01{topic}\x02{names.TRAN_SECRET}\x01{secret}\x02"
        )
        if recovery_s:
            stored.append(f"{names.CHECK_IMMUNITY}\x01{recovery_s}\x02")
    return Draft(
        topic,
        _queue_id(system, group, config),
        body,
        "".join(stored).encode(),
        born_ms,
        born_host,
        sys_flag=SYS_COMPRESSED if system.body_encoding == _GZIP else 0,
    )


def _queue_id(system: Any, group: str, config: TopicConfig) -> int:
    """Messages of one group share a queue, and so do those of one priority, the highest of which share the last; -1 = any."""
    if group:
        return queue_of_group(group, config.write_queue_nums)
    return min(system.priority, config.write_queue_nums - 1) if system.HasField("priority") else -1


def _check_properties(user_properties: dict[str, str], tag: str, keys: Sequence[str]) -> None:
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


def _recovery_s(system: Any) -> int:
    """How long the producer of a transaction wants to be left alone, in whole seconds; 0 = it does not say."""
    if not system.HasField("orphaned_transaction_recovery_duration"):
        return 0
    duration = system.orphaned_transaction_recovery_duration
    seconds: int = duration.seconds
    if seconds > MAX_RECOVERY_S:
        raise Refusal(Code.BAD_REQUEST, "orphaned_transaction_recovery_duration may be at most one hour")
    return max(0, seconds + (1 if duration.nanos > 0 else 0))


def _deliver_at_ms(system: Any, now_ms: int, max_ahead_ms: int) -> int | None:
    if not system.HasField("delivery_timestamp"):
        return None
    deliver_at_ms = milliseconds(system.delivery_timestamp)
    if deliver_at_ms > now_ms + max_ahead_ms:
        raise Refusal(Code.ILLEGAL_DELIVERY_TIME, too_far_ahead(deliver_at_ms - now_ms, max_ahead_ms))
    return max(0, deliver_at_ms)


def _check_type(system: Any, deliver_at_ms: int | None, group: str, topic: str, config: TopicConfig | None) -> None:
    """The message's type, as its properties say, must be one that the topic takes."""
    if config is None:
        raise Refusal(
            Code.TOPIC_NOT_FOUND,
            f"topic {topic} does not exist; create it in the console or with manage.py topic create",
        )
    if system.HasField("lite_topic") or system.message_type == LITE:
        _refuse_lite(system.lite_topic)
    if system.message_type == TRANSACTION:
        message_type = TRANSACTION
    elif deliver_at_ms is not None:
        message_type = DELAY
    elif group:
        message_type = FIFO
    elif system.HasField("priority"):
        message_type = PRIORITY
    else:
        message_type = NORMAL
    if TYPE_NAMES[message_type] not in (MIXED_TYPES if config.message_type == "MIXED" else (config.message_type,)):
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message is {TYPE_NAMES[message_type]}, the topic {topic} takes {config.message_type}",
        )
    if system.HasField("priority"):
        _check_priority(system.priority, message_type)
    if deliver_at_ms is not None and group:
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a message has a message group, whose messages are delivered in order, or a delivery time, not both",
        )


def _check_priority(priority: int, message_type: int) -> None:
    if message_type != PRIORITY:
        raise Refusal(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a message has a priority or is {TYPE_NAMES[message_type]}, not both",
        )
    if priority < 0:
        raise Refusal(Code.BAD_REQUEST, f"a priority is not negative, as {priority} is")


def _refuse_lite(name: str) -> None:
    check_lite_topic(name)
    raise Refusal(Code.UNSUPPORTED, "lite topics are not supported by this version; send to a topic of its own")


def check_lite_topic(name: str) -> None:
    """Refuse a name that no lite topic can have."""
    if not name.strip() or len(name) > MAX_LITE_TOPIC or _CONTROL.search(name):
        raise Refusal(
            Code.ILLEGAL_LITE_TOPIC,
            f"a lite topic's name must not be blank, must have at most {MAX_LITE_TOPIC} characters, and no control characters",
        )
