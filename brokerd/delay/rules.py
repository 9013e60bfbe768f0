"""How a message becomes a waiting one, and a waiting one the message that was sent (pure).

Both keep all properties. A delivered message still shows DELAY, REAL_TOPIC and REAL_QID, as clients know it from the original;
they mean nothing any more, because what delivers appends to the topic itself and does not come past `schedule` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from brokerd.delay.levels import DELAY, Delays, parse_level
from brokerd.store.draft import Draft
from remoting import codes
from remoting.errors import RequestError
from remoting.names import SCHEDULE_TOPIC, is_brokers_topic
from remoting.record.codec import Record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties

REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
# Properties that ask for a delivery at any time; a delay level beats all of them.
TIMERS: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DEL_UNIQKEY")

_DELAY: Final = DELAY.encode() + b"\x01"
_MAX_QUEUE: Final = 1 << 20


def check_times(properties: dict[str, str], levels: int) -> None:
    """Take out what a delay level beats. Raises RequestError for one that is no level."""
    level = parse_level(properties.get(DELAY, ""))
    if level is None:
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the property DELAY must be the number of a delay level, from 1 to {levels}, not {properties[DELAY][:32]!r}",
        )
    if level > 0:
        for name in TIMERS:
            properties.pop(name, None)


def asks_for_delay(properties: bytes) -> bool:
    """Whether encoded properties name a delay level."""
    if _DELAY not in properties:
        return False
    level = parse_level(decode_properties(properties).get(DELAY, ""))
    return level is None or level > 0


def schedule(draft: Draft, delays: Delays) -> Draft:
    """The draft as it waits, when it asks for a delay level; else the draft itself. Its queue is chosen already.

    Raises RequestError when there is no room for where it is going.
    """
    if _DELAY not in draft.properties or is_brokers_topic(draft.topic):
        return draft
    properties = decode_properties(draft.properties)
    level = parse_level(properties.get(DELAY, ""))
    if level is None or level <= 0:
        return draft
    level = min(level, len(delays))
    properties |= {DELAY: str(level), REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)}
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the properties of a delayed message take {len(encoded)} bytes; at most {MAX_PROPERTIES_BYTES} are stored",
        )
    return draft._replace(topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=encoded)


class Target(NamedTuple):
    """Where a waiting message belongs."""

    topic: str
    queue_id: int


def target_of(properties: Mapping[str, str]) -> Target | None:
    """Where a waiting message with these properties is to be delivered; None when they do not say."""
    topic, queue = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE, "")
    if not topic or is_brokers_topic(topic) or not (queue.isascii() and queue.isdecimal()) or len(queue) > 10:
        return None
    queue_id = int(queue)
    return Target(topic, queue_id) if queue_id < _MAX_QUEUE else None


def deliver(record: Record, target: Target) -> Draft:
    """The message for its own topic."""
    return Draft.again(record)._replace(topic=target.topic, queue_id=target.queue_id)


def bare(draft: Draft) -> Draft:
    """What is delivered, without what was added for the wait: with a long topic name the whole may be larger than a record can
    be, without it never is."""
    added = (DELAY, REAL_TOPIC, REAL_QUEUE)
    kept = {name: value for name, value in decode_properties(draft.properties).items() if name not in added}
    return draft._replace(properties=encode_properties(kept))
