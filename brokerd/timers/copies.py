"""What is stored when a timer's turn comes: the message for its own topic, or once more the timer; and delete markers (pure).

All properties are kept, and TIMER_PLACE says where the message waited first. What delivers appends to the topic itself, so the
others mean nothing any more, and clients know them from the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC, Target
from brokerd.store.draft import Draft
from brokerd.timers.codes import (
    DELETE_KEY,
    DEQUEUE_MS,
    DUE_MS,
    ENQUEUE_MS,
    LEG_MS,
    MOVED,
    OUT_MS,
    PLACE,
    RECALLED_BY,
    ROLL_TIMES,
    ROLLED,
    number_of,
    slot_of,
)
from brokerd.timers.interface import Recalled
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties

UNIQUE_KEY: Final = "UNIQ_KEY"
RECALL_TAG: Final = "_RECALL_TAG_"
# What a timer with a leg leaves free of the room for properties: TIMER_PLACE and TIMER_ROLL_TIMES come to it.
ROLL_ROOM_BYTES: Final = 64

_ADDED: Final = (REAL_TOPIC, REAL_QUEUE, OUT_MS, DUE_MS, LEG_MS, ROLL_TIMES, MOVED)


def name_of(properties: Mapping[str, str]) -> str:
    """What a client's delete marker names a message by."""
    return f"{properties.get(REAL_TOPIC, '')}+{properties.get(UNIQUE_KEY, '')}"


def place_of(kind: int, properties: Mapping[str, str], offset: int) -> int:
    """Where the message of a record of that kind at that queue offset waited first."""
    place = number_of(properties, PLACE) if kind == ROLLED else None
    return offset if place is None else place


def delivered(record: Record, target: Target, place: int) -> Draft:
    """The message for its own topic; without what was added for the wait when there is no room for that."""
    draft = Draft.again(record)
    properties = draft.properties
    if not {LEG_MS, ROLL_TIMES}.isdisjoint(record.property_map()):
        properties = _changed(properties, {LEG_MS: None, MOVED: None, PLACE: str(place)})
    else:
        properties = b"%b%b\x01%d\x02" % (_ended(properties), PLACE.encode(), place)
    draft = draft._replace(topic=target.topic, queue_id=target.queue_id, properties=properties)
    return draft if len(properties) <= MAX_PROPERTIES_BYTES else bare(draft)


def bare(draft: Draft) -> Draft:
    """What is delivered, without what was added for the wait: with a long topic name the whole may be larger than a record can
    be, without it never is."""
    return draft._replace(properties=_changed(draft.properties, dict.fromkeys(_ADDED)))


def rolled(
    record: Record, place: int, due_ms: int, leg_ms: int | None, *, is_cut: bool = False, moved: int = 1
) -> Draft:
    """The timer once more; `leg_ms` when it is appended again after that, None when it waits there until it is due. `is_cut`: it
    would have waited until then where it was, too; what comes from the tier says where the entries ended that had `moved` when it
    went there."""
    times = number_of(record.property_map(), ROLL_TIMES) or 0
    changes = {
        PLACE: str(place),
        ROLL_TIMES: str(times + 1),
        DUE_MS: str(due_ms),
        LEG_MS: None if leg_ms is None else str(leg_ms),
        MOVED: str(moved) if is_cut else None,
        DEQUEUE_MS: None,  # of the original, which ended the leg before
        ENQUEUE_MS: None,
    }
    draft = Draft.again(record)
    return draft._replace(properties=_changed(draft.properties, changes))


def marker(timer: Recalled, due_ms: int, now_ms: int, host: bytes) -> Draft:
    """The delete marker for a timer: what takes it back for a broker of the original that opens this log."""
    properties = {
        "TAGS": RECALL_TAG,
        UNIQUE_KEY: timer.unique_key,
        DELETE_KEY: f"{timer.topic}+{timer.unique_key}",
        REAL_TOPIC: timer.topic,
        REAL_QUEUE: "0",
        OUT_MS: str(slot_of(timer.due_ms)),
        DUE_MS: str(due_ms),
        PLACE: str(timer.place),
    }
    if timer.by:
        properties[RECALLED_BY] = timer.by
    return Draft(TIMER_TOPIC, 0, b"0", encode_properties(properties), now_ms, host)


def _changed(encoded: bytes, changes: Mapping[str, str | None]) -> bytes:
    """The properties with others for these; None takes one out."""
    properties = decode_properties(encoded)
    for name, value in changes.items():
        if value is None:
            properties.pop(name, None)
        else:
            properties[name] = value
    return encode_properties(properties)


def _ended(encoded: bytes) -> bytes:
    return encoded if not encoded or encoded.endswith(b"\x02") else encoded + b"\x02"
