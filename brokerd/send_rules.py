"""What a message must be to be stored, and how its properties are stamped: the general path of sends (pure).

The kernel handles the common case with the same outcome; a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from brokerd.services import Draft, TopicConfig
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.message import (
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_RETRY_TOPIC_BYTES,
    MAX_TOPIC_BYTES,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_TRANSACTION_MASK,
    decode_properties,
    encode_properties,
)

PERM_WRITE: Final = 2

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_PROTECTED: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_SYSTEM_PREFIX: Final = "rmq_sys_"
_DROPPED: Final = ("POP_CK", "__CRC32#", "MSG_REGION", "TRACE_ON")
_TIMED: Final = ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY")
_STAMP: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def check_topic_name(topic: str) -> None:
    """Raise RequestError when the name cannot be a topic that clients send to."""
    if not topic or _NAME.fullmatch(topic) is None:
        raise InvalidParameter(f"topic {topic!r} is not a name: use letters, digits, and the characters % | _ -")
    limit = MAX_RETRY_TOPIC_BYTES if topic.startswith(("%RETRY%", "%DLQ%")) else MAX_TOPIC_BYTES
    if len(topic) > limit:
        raise InvalidParameter(f"a topic name has at most {limit} characters; this one has {len(topic)}")
    if topic in _PROTECTED or topic.startswith(_SYSTEM_PREFIX):
        raise RequestError(codes.NO_PERMISSION, f"topic {topic} belongs to the system; clients cannot send to it")


def prepare(
    draft: Draft, topic: TopicConfig | None, choose_queue: Callable[[int], int], unique_id: Callable[[], str]
) -> Draft:
    """The draft as it is stored: its queue chosen, its properties stamped.

    `choose_queue` picks one of n queues; `unique_id` names a message whose client did not. Raises RequestError with the
    protocol's code and the rule when the message cannot be stored.
    """
    check_topic_name(draft.topic)
    if topic is None:
        raise RequestError(
            codes.TOPIC_NOT_EXIST,
            f"topic {draft.topic} does not exist; create it in the console or with manage.py topic create",
        )
    if not topic.perm & PERM_WRITE:
        raise RequestError(
            codes.NO_PERMISSION, f"topic {draft.topic} does not accept messages (its permission has no write)"
        )
    if not len(draft.body):
        raise RequestError(codes.MESSAGE_ILLEGAL, "the message has no body")
    if len(draft.body) > MAX_BODY_BYTES:
        raise RequestError(
            codes.MESSAGE_ILLEGAL, f"the body has {len(draft.body)} bytes; at most {MAX_BODY_BYTES} are stored"
        )
    if draft.sys_flag & SYS_TRANSACTION_MASK or draft.sys_flag & (SYS_INNER_BATCH | SYS_NEED_UNWRAP):
        raise RequestError(
            codes.MESSAGE_ILLEGAL, "transactional messages and batches kept as one unit are not accepted"
        )
    queues = topic.write_queue_nums
    if queues < 1:
        raise RequestError(codes.NO_PERMISSION, f"topic {draft.topic} has no queue to write to")
    if draft.queue_id >= max(queues, topic.read_queue_nums):
        raise InvalidParameter(
            f"queueId {draft.queue_id} must be below {queues}, the number of queues of {draft.topic}"
        )
    queue_id = draft.queue_id if draft.queue_id >= 0 else choose_queue(queues)
    properties = _stamp(draft.properties, unique_id)
    return replace(draft, queue_id=queue_id, properties=properties)


def waits_for_store(properties: bytes) -> bool:
    """Whether the producer wants its answer after the message is stored everywhere (WAIT absent or not false)."""
    return b"WAIT\x01false" not in properties or decode_properties(properties).get("WAIT") != "false"


def _stamp(encoded: bytes, unique_id: Callable[[], str]) -> bytes:
    if b"\0" in encoded:
        raise RequestError(codes.MESSAGE_ILLEGAL, "a property holds a NUL character; send it in the body or encode it")
    properties = decode_properties(encoded)
    if properties.get("TRAN_MSG") == "true":
        raise RequestError(codes.MESSAGE_ILLEGAL, "transactional messages are not accepted by this broker")
    for name in _TIMED:
        if properties.get(name, "0") != "0":
            raise RequestError(
                codes.MESSAGE_ILLEGAL,
                f"delayed delivery (property {name}) is not accepted by this broker; send without it",
            )
    for name in _DROPPED:
        properties.pop(name, None)
    if "UNIQ_KEY" not in properties:
        properties["UNIQ_KEY"] = unique_id()
    stamped = encode_properties({**properties, **_STAMP})
    if len(stamped) > MAX_PROPERTIES_BYTES:
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the properties take {len(stamped)} bytes; at most {MAX_PROPERTIES_BYTES} are stored",
        )
    return stamped
