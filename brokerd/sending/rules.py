"""What a message must be to be stored, and how its properties are stamped: the general path of sends (pure).

The kernel handles the common case with the same outcome; a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.metadata.configs import PERM_WRITE, TopicConfig
from brokerd.metadata.names import check_topic_name
from brokerd.store.draft import Draft
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.java_hash import java_hash
from remoting.names import is_brokers_topic
from remoting.record.layout import MAX_BODY_BYTES, MAX_PROPERTIES_BYTES, SYS_INNER_BATCH, SYS_NEED_UNWRAP
from remoting.record.properties import decode_properties, encode_properties, tags_code

DROPPED: Final = ("POP_CK", "__CRC32#", "MSG_REGION", "TRACE_ON")
STAMP_PROPERTIES: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
STAMP: Final = encode_properties(STAMP_PROPERTIES)

# Properties that change what the broker must do, or that it must not store as they came. Unanchored, which is faster: what it
# finds by accident is looked at again, name by name.
_SPECIAL: Final = re.compile(
    rb"POP_CK|TRAN_MSG|DELAY|TIMER_|INNER_|__CRC32#|MSG_REGION|TRACE_ON|REPLY_TO_CLIENT|WAIT\x01false|\x01\x02|\x00"
)
_UNIQUE_KEY: Final = re.compile(rb"(?:^|\x02)UNIQ_KEY\x01([0-9A-Za-z]+)(?=\x02)")
# The properties that most messages have and no others: one match says that nothing is special, and finds the key and the tag
_COMMON: Final = re.compile(
    rb"(?:(?:UNIQ_KEY\x01([0-9A-Za-z]+)|WAIT\x01true|TAGS\x01([^\x00-\x02]+)|KEYS\x01[^\x00-\x02]+)\x02)+"
)

# Takes out of the properties of a message for a topic what has no effect; raises RequestError for a time that cannot be kept
CheckTimes = Callable[[dict[str, str], str], None]


def check_destination(topic: str) -> None:
    """Raise RequestError when clients cannot send to a topic of this name."""
    check_topic_name(topic)
    if is_brokers_topic(topic):
        raise RequestError(codes.NO_PERMISSION, f"topic {topic} belongs to the system; clients cannot send to it")


def choose_queue(draft: Draft, topic: TopicConfig | None, choose: Callable[[int], int]) -> Draft:
    """The draft with its queue chosen; `choose` picks one of n queues. Its properties were not looked at yet.

    Raises RequestError with the protocol's code and the rule when the message cannot be stored.
    """
    check_destination(draft.topic)
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
    if draft.sys_flag & (SYS_INNER_BATCH | SYS_NEED_UNWRAP):
        raise RequestError(codes.MESSAGE_ILLEGAL, "batches kept as one unit are not accepted")
    queues = topic.write_queue_nums
    if queues < 1:
        raise RequestError(codes.NO_PERMISSION, f"topic {draft.topic} has no queue to write to")
    if draft.queue_id >= max(queues, topic.read_queue_nums):
        raise InvalidParameter(
            f"queueId {draft.queue_id} must be below {queues}, the number of queues of {draft.topic}"
        )
    return draft if draft.queue_id >= 0 else draft._replace(queue_id=choose(queues))


def complete(draft: Draft, unique_id: Callable[[], str], cluster: str, check_times: CheckTimes) -> Draft:
    """The draft with its properties stamped; requests are told in which cluster to answer them.

    `unique_id` names a message whose client did not. Raises RequestError as `choose_queue` does.
    """
    ordinary = (
        _find_unique_key(draft.properties) is not None and len(draft.properties) + len(STAMP) <= MAX_PROPERTIES_BYTES
    )
    properties = draft.properties + STAMP if ordinary else _complete_properties(draft, unique_id, cluster, check_times)
    return draft._replace(properties=properties)


def unique_key(draft: Draft) -> str:
    """The name of a prepared message."""
    found = _last_key(draft.properties)
    return found[1].decode() if found is not None else decode_properties(draft.properties).get("UNIQ_KEY", "")


def waits_for_store(properties: bytes) -> bool:
    """Whether the producer wants its answer after the message is stored everywhere (WAIT absent or not false)."""
    return b"WAIT\x01false" not in properties or decode_properties(properties).get("WAIT") != "false"


def is_common(name: str, value: str) -> bool:
    """Whether a property is one of those that most messages have, which have no meaning for the broker."""
    return name in ("UNIQ_KEY", "TAGS", "KEYS") or (name == "WAIT" and value == "true")


def is_ordinary(properties: bytes) -> bool:
    """Whether properties may be stored as they came, with the stamp behind them."""
    return _find_unique_key(properties) is not None


def asks_for_more(properties: bytes) -> bool:
    """A quick look: whether something in properties changes what the broker must do. It may be found by accident."""
    return _SPECIAL.search(properties) is not None


def asks_for_time(properties: bytes) -> bool:
    """A quick look: whether properties may ask for a delay level or a moment."""
    return b"DELAY" in properties or b"TIMER_" in properties


def _find_unique_key(properties: bytes) -> re.Match[bytes] | None:
    """The unique key in properties that may be stored as they came, with the stamp behind them; None for all others.

    A special name that is the value of a common property says nothing, so that all paths store the same.
    """
    is_plain = _COMMON.fullmatch(properties) or (properties.endswith(b"\x02") and not _SPECIAL.search(properties))
    return _last_key(properties) if is_plain else None


def _last_key(properties: bytes) -> re.Match[bytes] | None:
    """The last of a name counts, as for who reads them."""
    found = None
    for found in _UNIQUE_KEY.finditer(properties):  # noqa: B007
        pass
    return found


def may_be_completed(properties: bytes) -> bool:
    """A quick look: False when it is for something else that properties may not be stored as they came."""
    return not properties.endswith(b"\x02") or b"UNIQ_KEY\x01" not in properties


def completed(properties: bytes, next_name: str) -> bytes | None:
    """Properties that may be stored as they are with the stamp behind them, made of such as lack only their last separator, or a
    name; `next_name` is what they get then. None when more than that is needed."""
    if not properties:
        return b"UNIQ_KEY\x01%b\x02" % next_name.encode()
    closed = properties if properties.endswith(b"\x02") else properties + b"\x02"
    if asks_for_more(closed):
        return None
    found = decode_properties(closed)
    if encode_properties(found) != closed:
        return None
    return closed if "UNIQ_KEY" in found else closed + b"UNIQ_KEY\x01%b\x02" % next_name.encode()


# Longer properties are looked at each time: what one message of each of many topics was like would take much memory.
MAX_KEPT_BYTES: Final = 2048


class Pattern(NamedTuple):
    """Properties that may be stored as they came, with a hole for the unique key: `head`, letters and digits, `rest`.

    Messages of one producer mostly differ in that key alone, so one look at the first speaks for the others.
    """

    head: bytes
    key_at: int
    key_end: int
    rest: bytes
    tags_code: int

    def is_of_all(self, every: Sequence[bytes]) -> bool:
        """Whether all these properties follow it, with keys of one length."""
        key_at, key_end = self.key_at, self.key_end
        return (
            {text[:key_at] for text in every} == {self.head}
            and {text[key_end:] for text in every} == {self.rest}
            and b"".join([text[key_at:key_end] for text in every]).isalnum()
        )


def pattern_of(properties: bytes) -> Pattern | None:
    """The pattern that properties follow; None when the general path must see them."""
    common = _COMMON.fullmatch(properties)
    if common is not None:
        key_at, key_end = common.span(1)
        if key_at < 0:
            return None
        tag = common[2]
        code = 0 if tag is None else java_hash(tag.decode("utf-8", "replace"))
    else:
        key = _find_unique_key(properties)
        if key is None:
            return None
        key_at, key_end = key.span(1)
        code = tags_code(properties)
    return Pattern(properties[:key_at], key_at, key_end, properties[key_end:], code)


def _complete_properties(draft: Draft, unique_id: Callable[[], str], cluster: str, check_times: CheckTimes) -> bytes:
    if b"\0" in draft.properties:
        raise RequestError(codes.MESSAGE_ILLEGAL, "a property holds a NUL character; send it in the body or encode it")
    properties = decode_properties(draft.properties)
    check_times(properties, draft.topic)
    for name in DROPPED:
        properties.pop(name, None)
    if "UNIQ_KEY" not in properties:
        properties["UNIQ_KEY"] = unique_id()
    if "REPLY_TO_CLIENT" in properties:
        properties["CLUSTER"] = cluster
    stamped = encode_properties({**properties, **STAMP_PROPERTIES})
    if len(stamped) > MAX_PROPERTIES_BYTES:
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the properties take {len(stamped)} bytes; at most {MAX_PROPERTIES_BYTES} are stored",
        )
    return stamped
