"""The layout of the timer log and of the timer wheel, RocketMQ's (pure).

The timer log has a record of 52 bytes for each timer, in the order of the timer topic's queue:

    0 size(4) = 52  4 prevPos(8)  12 magic(4)  16 writeTime(8)  24 delay(4)  28 phyOffset(8)  36 phySize(4)  40 topicHash(4)
    44 reserved(8)

`prevPos` is the position in the timer log of the record that the slot had before, -1 without one. `writeTime + delay` (ms) lies
in the record's slot; ours is the last millisecond before the timer is due, so a record alone says when that is. The reserved
bytes, which the original writes as zeros and never reads, hold the offset of the record's entry in the timer topic's queue. Two
kinds of records are there for the original alone, marked by a bit that it does not use (`pending.py`). A file ends with 16 bytes
that say so, `{remaining(4), 0(8), 0xCBD43194(4)}`, and no record crosses files.

The wheel is an array of slots of 32 bytes:

    0 time(8), in units of the precision  8 firstPos(8)  16 lastPos(8)  24 num(4)  28 magic(4) = 0

A time's slot is at index `time % slots`; one that holds another time is empty. Records of a slot are linked from the last to the
first. `num` counts those of them that are messages, not delete markers.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from brokerd.timers.codes import SLOT_MS, Key, slot_of
from remoting.errors import CorruptedFile
from remoting.record.layout import MAGIC_BLANK

LOG_DIRECTORY: Final = "timerlog"
WHEEL_PATH: Final = "timerwheel"

RECORD: Final = struct.Struct(">iqiqiqiiq")
RECORD_BYTES: Final = RECORD.size
SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = SLOT.size
BLANK: Final = struct.Struct(">iqI")
BLANK_MAGIC: Final = MAGIC_BLANK  # as in the commitlog
NO_POSITION: Final = -1

# Bits of a record's magic.
MAGIC: Final = 1
MAGIC_ROLL: Final = 2  # to be appended again at its time, not delivered
MAGIC_DELETE: Final = 4  # a delete marker
MAGIC_ELSEWHERE: Final = (
    8  # for the original alone, which has no such bit: our record of the entry is another one, or none is needed
)

_MAX_DELAY_MS: Final = 0x7FFFFFFF


class DamagedTimerFiles(CorruptedFile):
    """The timer files contradict themselves or the queue that they are made of; they are to be made again."""


def slot_for(due_ms: int) -> int:
    """The wheel's slot (ms) of what is due then; the first one takes all that is due earlier."""
    return max(SLOT_MS, slot_of(due_ms))


class TimerRecord(NamedTuple):
    """A record of the timer log; positions are the timer log's."""

    previous: int
    magic: int
    due_ms: int
    physical_offset: int
    size: int
    queue_offset: int

    @property
    def key(self) -> Key:
        return Key(self.due_ms, self.queue_offset)

    @property
    def slot_ms(self) -> int:
        return slot_for(self.due_ms)

    @property
    def is_message(self) -> bool:
        """Whether it counts in its slot."""
        return not self.magic & (MAGIC_DELETE | MAGIC_ELSEWHERE)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is for the original alone."""
        return bool(self.magic & MAGIC_ELSEWHERE)


class Slot(NamedTuple):
    """A slot that has records."""

    first: int
    last: int
    messages: int


EMPTY: Final = Slot(NO_POSITION, NO_POSITION, 0)


class Shape(NamedTuple):
    """How large the files are. `slots` is the length of the whole array, twice the days that the original counts in it."""

    slots: int = 2 * 7 * 86400
    file_bytes: int = 100 << 20

    @property
    def file_records(self) -> int:
        """How many records a file has room for: 2 016 492."""
        return (self.file_bytes - BLANK.size) // RECORD_BYTES

    def position_of(self, number: int) -> int:
        """Where the record with that number, from the log's beginning, stands."""
        file, inside = divmod(number, self.file_records)
        return file * self.file_bytes + inside * RECORD_BYTES

    def number_at(self, position: int) -> int | None:
        """The number of the record that stands there; None when none can."""
        file, inside = divmod(position, self.file_bytes)
        number, rest = divmod(inside, RECORD_BYTES)
        return None if position < 0 or rest or number >= self.file_records else file * self.file_records + number

    def index_of(self, slot_ms: int) -> int:
        """Where in the wheel the slot of that time is."""
        return slot_ms // SLOT_MS % self.slots


def encode_record(record: TimerRecord, write_ms: int, topic_hash: int) -> bytes:
    """`write_ms` is when the message was stored. The difference to it must fit 32 bits, so for a timer that is farther away
    than 24.8 days it is the nearest time from which it does."""
    at_ms = record.due_ms - 1
    write_ms = max(at_ms - _MAX_DELAY_MS, min(write_ms, at_ms + _MAX_DELAY_MS))
    previous, magic, _, physical_offset, size, queue_offset = record
    delay_ms = at_ms - write_ms
    return RECORD.pack(
        RECORD_BYTES, previous, magic, write_ms, delay_ms, physical_offset, size, topic_hash, queue_offset
    )


def decode_record(encoded: bytes) -> TimerRecord | None:
    """None when these bytes are no record."""
    if len(encoded) != RECORD_BYTES:
        return None
    size, previous, magic, write_ms, delay_ms, physical_offset, physical_size, _, queue_offset = RECORD.unpack(encoded)
    if size != RECORD_BYTES or not magic & MAGIC or magic & ~0xF or previous < NO_POSITION:
        return None
    return TimerRecord(previous, magic, write_ms + delay_ms + 1, physical_offset, physical_size, queue_offset)


def blank_of(shape: Shape) -> bytes:
    """What ends a full file."""
    remaining = shape.file_bytes - shape.file_records * RECORD_BYTES
    return BLANK.pack(remaining, 0, BLANK_MAGIC)
