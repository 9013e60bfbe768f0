"""What the consume-queue entries of the timer topic say, and the properties of its records (pure).

Timers of any due time wait as records of one topic, in queue 0. An entry carries, in place of the tags code, when its timer is
due and what it is: `due_ms << 2 | kind`. So whoever looks for due timers reads no record, and every replica, and every rebuilding
of the queue, derives the same from the log.

A timer's key is when it is due, then its queue offset. Keys say in which order timers are delivered, and a cursor among them what
was delivered (`done.Done`); so what is appended has to be due behind the cursor (`interface.Timers.least_due_ms`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from brokerd.store.log.derive import CodeRules, TwinRule
from remoting.names import TIMER_TOPIC
from remoting.timer_names import DELETE_KEY as DELETE_KEY
from remoting.timer_names import DEQUEUE_MS as DEQUEUE_MS
from remoting.timer_names import DUE_MS as DUE_MS
from remoting.timer_names import ENQUEUE_MS as ENQUEUE_MS
from remoting.timer_names import LEG_MS as LEG_MS
from remoting.timer_names import MOVED as MOVED
from remoting.timer_names import OUT_MS as OUT_MS
from remoting.timer_names import PLACE as PLACE
from remoting.timer_names import RECALLED_BY as RECALLED_BY
from remoting.timer_names import ROLL_TIMES as ROLL_TIMES
from remoting.timer_names import SLOT_MS as SLOT_MS

# Kinds of records.
MESSAGE: Final = 0  # it waits since it was sent
RECALL: Final = 1  # a delete marker: it takes others back, and is never delivered
ROLLED: Final = 2  # a message that was appended again meanwhile: TIMER_PLACE says where it waited first

MAX_DUE_MS: Final = 1 << 52
DAY_MS: Final = 86_400_000

_KIND_BITS: Final = 2
_KIND_MASK: Final = (1 << _KIND_BITS) - 1
_MAX_DIGITS: Final = 16
_LAST_OFFSET: Final = 1 << 62
# The properties that an entry is made of, in an encoded property string: a sender of timers pays for each that is decoded.
_OWN: Final = re.compile(
    rb"(?:^|\x02)(TIMER_DUE_MS|TIMER_LEG_MS|TIMER_OUT_MS|TIMER_PLACE|TIMER_DEL_UNIQKEY|TIMER_DEQUEUE_MS)\x01([^\x02]+)"
)
# How the properties of a message end that waits since it was sent: with what was added for that, and a checksum
_ADDED: Final = re.compile(
    rb"\x02REAL_TOPIC\x01([^\x02]+)\x02REAL_QID\x01[^\x02]+\x02TIMER_OUT_MS\x01([0-9]{1,16})"
    rb"\x02TIMER_DUE_MS\x01([0-9]{1,16})\x02(TIMER_LEG_MS\x01[0-9]{1,16}\x02)?(?:__CRC32#\x01[0-9]+\x02?)?\Z"
)


class Key(NamedTuple):
    """Where a timer stands in the order of delivery."""

    due_ms: int
    offset: int  # in the timer topic's queue


START: Final = Key(0, -1)  # before all timers


def last_of(due_ms: int) -> Key:
    """Behind all timers that are due then."""
    return Key(due_ms, _LAST_OFFSET)


def encode_code(due_ms: int, kind: int) -> int:
    """The code of an entry. A time beyond any calendar is the last one."""
    return max(0, min(due_ms, MAX_DUE_MS)) << _KIND_BITS | kind


def due_of(code: int) -> int:
    """When the timer with that code is due, or appended again (ms)."""
    return code >> _KIND_BITS


def kind_of(code: int) -> int:
    """MESSAGE, RECALL or ROLLED."""
    return code & _KIND_MASK


def key_of(code: int, offset: int) -> Key:
    """Of the entry with that code at that queue offset."""
    return Key(code >> _KIND_BITS, offset)


def slot_of(due_ms: int) -> int:
    """The original's slot (its TIMER_OUT_MS) for what is due then."""
    return due_ms - 1 - (due_ms - 1) % SLOT_MS


def day_of(due_ms: int) -> int:
    """The day (since 1970) of what is due then, by its slot."""
    return slot_of(due_ms) // DAY_MS


def number_of(properties: Mapping[str, str], name: str) -> int | None:
    """A property that is a time, a count or an offset; None when it is missing or none of these."""
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def due_by(properties: Mapping[str, str]) -> int | None:
    """When a message with those properties is to be delivered; None when they do not say.

    Records that the original stored say their slot only, which is over a second after it began.
    """
    due_ms = number_of(properties, DUE_MS)
    if due_ms is None and (slot_ms := number_of(properties, OUT_MS)) is not None:
        return slot_ms if DELETE_KEY in properties else slot_ms + SLOT_MS
    return due_ms


def leg_of(properties: Mapping[str, str]) -> int | None:
    """When a message with those properties is to be appended again; None when it waits where it is until it is due.

    The original keeps what we wrote when it appends a timer again: that leg is over.
    """
    return None if DEQUEUE_MS in properties else number_of(properties, LEG_MS)


def timer_code(properties: bytes, store_timestamp_ms: int) -> int:
    """What the entry of a record in the timer topic carries. One that does not say when it is due is so at once."""
    decoded = {str(name, "ascii"): str(value, "utf-8", "replace") for name, value in _OWN.findall(properties)}
    leg_ms = leg_of(decoded)
    due_ms = leg_ms if leg_ms is not None else due_by(decoded)
    kind = RECALL if DELETE_KEY in decoded else ROLLED if PLACE in decoded else MESSAGE
    return encode_code(store_timestamp_ms if due_ms is None else due_ms, kind)


class Added(NamedTuple):
    """What `rules.added_for` added to the properties of a message that waits: the topic that it was sent to, encoded, its slot,
    when it is due, and whether it has a leg."""

    topic: bytes
    slot_ms: int
    due_ms: int
    has_leg: bool


def added_of(properties: bytes) -> Added | None:
    """Of encoded properties that end with it, as those of what is sent for later mostly do: found at once, where each property of
    the others has to be looked at (None)."""
    found = _ADDED.search(properties)
    if found is None or b"TIMER_DEQUEUE_MS" in properties:
        return None
    topic, slot, due, leg = found.groups()
    if leg is None and b"TIMER_LEG_MS" in properties:
        return None
    return Added(topic, int(slot), int(due), leg is not None)


TIMER_RULE: Final = TwinRule(timer_code, "native_timer_code")
CODE_RULES: Final[CodeRules] = {TIMER_TOPIC: TIMER_RULE}
