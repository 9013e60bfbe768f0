"""What the records of timers say, of many at once, for who follows the timer topic's queue (pure).

It runs in C where the broker has its library (`native_said.py`); Python says what is right. A record is left when it is not as
brokers write them, or not what was stored: whoever asks decodes that one alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from brokerd.delay.rules import REAL_TOPIC
from brokerd.store.unit import Unit
from brokerd.timers.codes import DEQUEUE_MS, DUE_MS, LEG_MS, MOVED, OUT_MS, PLACE
from remoting.errors import ProtocolError
from remoting.record.checksum import is_intact
from remoting.record.fields import properties_of, store_timestamp_of, topic_of
from remoting.record.layout import BORDER, MAGIC_V1, RECORD_OVERHEAD_BYTES, Field, heads

LEFT: Final = -1  # in the place of a topic's number: the record is left
COLUMNS: Final = ("topic", "due_ms", "slot_ms", "stored_ms", "place", "moved", "has_leg")

_NAMES: Final = frozenset(map(str.encode, (REAL_TOPIC, DUE_MS, OUT_MS, LEG_MS, PLACE, MOVED, DEQUEUE_MS)))
_NEEDED: Final = frozenset(map(str.encode, (REAL_TOPIC, DUE_MS, OUT_MS)))
_MAX_DIGITS: Final = 16
_OFFSET: Final = heads(Field.PHYSICAL_OFFSET)[0]


class Said:
    """Columns with a value for each record. Those of a record that is left say nothing but that."""

    __slots__ = ("topics", *COLUMNS)

    def __init__(self, count: int) -> None:
        self.topics: Sequence[bytes] = ()  # encoded; one may be there twice
        self.topic = array("q", bytes(8 * count))  # its number among these, or LEFT
        self.due_ms = self.topic[:]  # behind the begin of its slot
        self.slot_ms = self.topic[:]
        self.stored_ms = self.topic[:]
        self.place = self.topic[:]  # -1 without
        self.moved = self.topic[:]  # 0 without
        self.has_leg = self.topic[:]  # 1: it is to be appended again at its time


class Reading(Protocol):
    """How records are looked at."""

    def __call__(self, content: bytes, units: Sequence[Unit]) -> Said:
        """Look at the records of the units, which lie one behind the other in the content. Any bytes will do."""


class _Row(NamedTuple):
    due_ms: int
    slot_ms: int
    stored_ms: int
    place: int
    moved: int
    has_leg: bool


class PythonReading:
    """In Python."""

    def __call__(self, content: bytes, units: Sequence[Unit]) -> Said:
        said, topics, at = Said(len(units)), dict[bytes, int](), 0
        for n, (offset, size, _) in enumerate(units):
            end = at + size if 0 <= size <= len(content) - at else len(content)
            found = _look_at(content[at:end], offset, size)
            at = end
            if found is None:
                said.topic[n] = LEFT
                continue
            topic, row = found
            said.topic[n] = topics.setdefault(topic, len(topics))
            for name, value in row._asdict().items():
                getattr(said, name)[n] = value
        said.topics = list(topics)
        return said


def _look_at(record: bytes, offset: int, size: int) -> tuple[bytes, _Row] | None:
    """None of a record that is left."""
    if len(record) != size or size < RECORD_OVERHEAD_BYTES:
        return None
    if BORDER.unpack_from(record) != (size, MAGIC_V1) or _OFFSET.unpack_from(record) != (offset,):
        return None
    try:
        topic, properties = topic_of(record), properties_of(record)
    except ProtocolError:
        return None
    if (
        not topic or "\0" in topic or b"\0" in properties or not is_intact(record)
    ):  # zeros: a sector that was not written
        return None
    values = _values(properties)
    if not values.keys() >= _NEEDED:
        return None
    topic_name = values.pop(REAL_TOPIC.encode())
    is_over = values.pop(DEQUEUE_MS.encode(), None) is not None
    if not all(len(value) <= _MAX_DIGITS and value.isdigit() for value in values.values()):
        return None
    numbers = {str(name, "ascii"): int(value) for name, value in values.items()}
    slot_ms, has_leg = numbers[OUT_MS], LEG_MS in numbers and not is_over
    due_ms, place, moved = max(numbers[DUE_MS], slot_ms + 1), numbers.get(PLACE, -1), numbers.get(MOVED, 0)
    return topic_name, _Row(due_ms, slot_ms, store_timestamp_of(record), place, moved, has_leg)


def _values(properties: bytes) -> dict[bytes, bytes]:
    """What they say that is looked for: the last of a name counts, and one without a value does not."""
    values: dict[bytes, bytes] = {}
    for each in properties.split(b"\x02"):
        name, _, value = each.partition(b"\x01")
        if value and name in _NAMES:
            values[name] = value
    return values
