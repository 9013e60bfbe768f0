"""What becomes of a message that a consumer could not handle: it comes back later, or it is a dead letter (pure).

There are two ways to say so, with two rules. A message that is sent back by its place in the log is a dead letter when it was
delivered again `>=` the limit times; one that is sent to the retry topic as an ordinary message, which a client does when the
first way failed, carries its next count already and is one when that is `>` the limit. A group whose queues are locked consumes
in order, so what it gives up would come too late in any case: it is a dead letter at once.
"""

from __future__ import annotations

from typing import Final

from brokerd.delay.levels import DELAY
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC, TIMERS
from brokerd.metadata.configs import GroupConfig
from brokerd.pop import copies
from brokerd.store.draft import Draft
from remoting.names import DEAD_LETTER_PREFIX, dead_letter_topic_of
from remoting.record.codec import decode_record
from remoting.record.properties import decode_properties, encode_properties

# Clients of this version and later say how often they want a message (4.x: V3_4_9).
_TELLS_LIMIT: Final = 121
FIRST_LEVEL: Final = 3


def limit_of(group: GroupConfig, asked: int | None, version: int) -> int:
    """How often a message is delivered again before it is a dead letter. `asked`, `version`: of the request."""
    return group.retry_max_times if asked is None or version < _TELLS_LIMIT else asked


def decide_copy(group: str, encoded: bytes, level: int, limit: int) -> Draft | None:
    """What is stored for a message that was sent back: its copy in the group's retry topic, or a dead letter. None for a dead
    letter that fails again: it has its place.

    The copy asks for the delay level `level`, or with 0 for one that grows with the count; below 0 there is no copy.
    """
    record = decode_record(encoded)
    times = copies.deliveries_before(record.topic, record.reconsume_times)
    if level < 0 or times >= limit:
        origin = copies.origin_topic(group, record.topic, record.property_map())
        return (
            None
            if origin.startswith(DEAD_LETTER_PREFIX)
            else copies.dead_letter(group, record.topic, encoded, times + 1)
        )
    return copies.sent_back_copy(group, encoded, times + 1, level or FIRST_LEVEL + times)


def sent_again(draft: Draft, group: str, limit: int, *, is_ordered: bool) -> Draft:
    """The draft that a client sent to the group's retry topic, as it is to be stored: there, or as a dead letter."""
    properties = decode_properties(draft.properties)
    if properties.get("WAIT") == "false":
        del properties["WAIT"]  # the producer's wish; the consumer goes on only when the message is safe
    if draft.reconsume_times > limit or is_ordered:
        for name in (DELAY, REAL_TOPIC, REAL_QUEUE, *TIMERS):
            properties.pop(name, None)
        properties[copies.DLQ_ORIGIN_TOPIC] = copies.origin_topic(group, draft.topic, properties)
        message_id = properties.get("UNIQ_KEY") or properties.get(copies.ORIGIN_MESSAGE_ID, "")
        properties[copies.DLQ_ORIGIN_MESSAGE_ID] = message_id
        draft = draft._replace(topic=dead_letter_topic_of(group), queue_id=0)
    return draft._replace(properties=encode_properties(properties))
