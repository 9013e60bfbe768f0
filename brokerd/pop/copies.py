"""What is appended when a message comes back: its copy in the retry topic, or in the dead-letter topic (pure).

Consumers that pop have a retry topic for each topic, those that pull one for all; dead letters look alike. Body, flag, born time
and host, tags, keys and the unique key stay; the reconsume times count the deliveries. A dead letter names where it came from.
A dead letter that is consumed and fails in turn starts a new count, and never leaves the dead-letter topic for another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.delay.levels import DELAY
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC, TIMERS
from brokerd.pop.handles import retry_topic, split_retry_topic
from brokerd.store.draft import Draft
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, dead_letter_topic_of
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import offset_message_id
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties

FIRST_POP_TIME: Final = "1ST_POP_TIME"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"

_MOST_RECONSUME_TIMES: Final = 2**31 - 1  # what the record's field holds; a producer may have written any number there

# Handles of an earlier delivery, and lists of light queues that the first append served already
_NOT_COPIED: Final = ("POP_CK", "POP_CK_OFFSET", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
# What a delayed delivery left behind; a dead letter waits for nothing.
_OF_THE_WAIT: Final = (DELAY, REAL_TOPIC, REAL_QUEUE, *TIMERS)


def base_topic(group: str, topic: str) -> str:
    """The topic that a client asks for to get messages of this stored topic."""
    split = split_retry_topic(topic)
    if split is not None and split[0] == group:
        return split[1]
    older = f"{RETRY_PREFIX}{group}_"
    return topic[len(older) :] if topic.startswith(older) and len(topic) > len(older) else topic


def origin_topic(group: str, topic: str, properties: Mapping[str, str]) -> str:
    """The topic that a message of this stored topic was sent to first, as far as the group is concerned."""
    if topic == f"{RETRY_PREFIX}{group}":
        return properties.get(RETRY_TOPIC, topic)
    return base_topic(group, topic)


def is_dead_letter_topic(group: str, topic: str) -> bool:
    """Whether messages of this stored topic are dead letters (or came back as such)."""
    return base_topic(group, topic).startswith(DEAD_LETTER_PREFIX)


def counts_earlier_deliveries(topic: str) -> bool:
    """Whether the reconsume times of messages in this stored topic are deliveries to the group: not those of dead letters."""
    return not topic.startswith(DEAD_LETTER_PREFIX)


def deliveries_before(topic: str, reconsume_times: int) -> int:
    """How often a stored message was delivered before it was stored here. `topic` is the stored one."""
    return reconsume_times if counts_earlier_deliveries(topic) else 0


def retry_target(group: str, topic: str) -> str:
    """Where a message of this stored topic comes back."""
    base = base_topic(group, topic)
    return base if base.startswith(RETRY_PREFIX) else retry_topic(group, base)


def retry_copy(group: str, topic: str, encoded: bytes, deliveries: int, pop_time_ms: int) -> Draft:
    """The copy for the retry topic; `deliveries` so far, all told."""
    record = decode_record(encoded)
    properties = _kept_properties(record)
    properties.setdefault(FIRST_POP_TIME, str(pop_time_ms))
    return _copy(record, retry_target(group, topic), _fit(properties, record), deliveries)


def sent_back_copy(group: str, encoded: bytes, deliveries: int, level: int) -> Draft:
    """The copy for the retry topic that the group's pulling consumers share; it asks for a delay level."""
    record = decode_record(encoded)
    properties = _kept_properties(record)
    properties[RETRY_TOPIC] = origin_topic(group, record.topic, properties)
    properties.setdefault(ORIGIN_MESSAGE_ID, offset_message_id(record.store_host, record.physical_offset))
    properties[DELAY] = str(level)
    return _copy(record, f"{RETRY_PREFIX}{group}", encode_properties(properties), deliveries)


def dead_letter(group: str, topic: str, encoded: bytes, deliveries: int) -> Draft:
    """The copy for the group's dead-letter topic."""
    record = decode_record(encoded)
    kept = _kept_properties(record)
    properties = {name: value for name, value in kept.items() if name not in _OF_THE_WAIT}
    place = offset_message_id(record.store_host, record.physical_offset)
    properties[DLQ_ORIGIN_TOPIC] = properties[RETRY_TOPIC] = origin_topic(group, topic, properties)
    properties[DLQ_ORIGIN_MESSAGE_ID] = properties.get("UNIQ_KEY") or place
    properties.setdefault(ORIGIN_MESSAGE_ID, place)
    return _copy(record, dead_letter_topic_of(group), _fit(properties, record), deliveries)


def is_copy(record: Record, draft: Draft) -> bool:
    """Whether a stored record is what the draft became."""
    stored = Draft.again(record)
    return stored._replace(queue_id=draft.queue_id, properties=b"") == draft._replace(
        properties=b""
    ) and decode_properties(stored.properties) == decode_properties(draft.properties)


def _kept_properties(record: Record) -> dict[str, str]:
    return {name: value for name, value in record.property_map().items() if name not in _NOT_COPIED}


def _fit(properties: Mapping[str, str], record: Record) -> bytes:
    """The properties; without our additions if they are too long, which is better than no copy at all."""
    encoded = encode_properties(properties)
    return encoded if len(encoded) <= MAX_PROPERTIES_BYTES else encode_properties(_kept_properties(record))


def _copy(record: Record, topic: str, properties: bytes, reconsume_times: int) -> Draft:
    times = min(reconsume_times, _MOST_RECONSUME_TIMES)
    return Draft.again(record)._replace(topic=topic, queue_id=0, properties=properties, reconsume_times=times)
