"""What the records of timers say that wait since they were sent, many at once, for who follows the timer topic's queue (pure).

Most timers are such, and are looked at in C where the broker has its library (`native_said.py`). It ends before the first one
that is not, which whoever asks looks at himself, as all of them without the library.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from brokerd.store.unit import Unit
from brokerd.timers.codes import MESSAGE, added_of, due_of, kind_of
from brokerd.timers.counts import minute_of
from brokerd.timers.done import Done
from remoting.record.fields import properties_of, store_timestamp_of

# The numbers of a row: of its entry the code, and where the record is; which of the topics; the slot, when it is due, when it was
# stored, and whether it has a leg; and as what it is counted.
CODE, OFFSET, SIZE, TOPIC, SLOT_MS, DUE_MS, STORED_MS, HAS_LEG, COUNTED = range(9)
ROW: Final = 9
MOST_TOPICS: Final = 64


class Said(NamedTuple):
    """`ROW` numbers for each timer, one behind the other, and the topics that they were sent to, encoded."""

    rows: array[int]
    topics: Sequence[bytes]

    @property
    def timers(self) -> int:
        return len(self.rows) // ROW

    def column(self, number: int) -> array[int]:
        """One of the numbers, of all rows."""
        return self.rows[number::ROW]


NOTHING: Final = Said(array("q"), ())
# Of the entries from a queue offset on, as many at most, those due behind a time; fewer, or none, where one is not like that.
Saying = Callable[[int, int, int], Said]


def latest_ms(done: Done) -> int:
    """What is due later is not done with, unless it was moved."""
    return max((done.cursor.due_ms, *(fence.key.due_ms for fence in done.fences)))


class Counted(NamedTuple):
    """A timer is of a topic, by its number, and due in a minute (`counts.minute_of`), or appended again on its way."""

    topic: int
    minute: int
    is_on_the_way: bool


def counted_as(counted: Counted) -> int:
    """One number for it."""
    return (counted.minute * MOST_TOPICS + counted.topic) * 2 + counted.is_on_the_way


def counted_of(number: int) -> Counted:
    """What `counted_as` made the number of."""
    minute, topic = divmod(number >> 1, MOST_TOPICS)
    return Counted(topic, minute, bool(number & 1))


def said_of(records: Sequence[bytes], units: Sequence[Unit], least_ms: int) -> Said:
    """In Python, of intact records."""
    rows, topics = array("q"), list[bytes]()
    for record, (offset, size, code) in zip(records, units, strict=True):
        added = added_of(properties_of(record))
        if added is None or kind_of(code) != MESSAGE or due_of(code) <= least_ms:
            break
        if added.topic not in topics:
            if len(topics) == MOST_TOPICS:
                break
            topics.append(added.topic)
        topic, due_ms = topics.index(added.topic), max(added.due_ms, added.slot_ms + 1)
        rows.extend((code, offset, size, topic, added.slot_ms, added.due_ms))
        rows.extend((store_timestamp_of(record), int(added.has_leg)))
        rows.append(counted_as(Counted(topic, minute_of(due_ms), due_ms > due_of(code))))
    return Said(rows, topics)
