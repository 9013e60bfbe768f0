"""What a reader asks for again and again, as the library takes it: then only an offset and an opaque are new."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from brokerd.consuming.read_place import MASTER
from brokerd.native.wanted import (
    BODY_BYTES,
    FAR_BELOW,
    GROUP_SYS_FLAG,
    LATER,
    MAX_BYTES,
    MAX_COUNT,
    MAX_OFFSET,
    MESSAGES,
    MIN_OFFSET,
    MOST_UNITS,
    NEXT_BROKER,
    NEXT_BROKER_WHEN_FAR,
    NEXT_BROKER_WHEN_NONE,
    NEXT_OFFSET,
    QUEUE_OFFSET,
    TAG_COUNT,
    TAGS,
    UNITS_BEGIN,
    UNITS_END,
    VERSION,
    WantedArea,
)
from brokerd.native.wanted import ROOM as ROOM_FOR_ALL
from brokerd.store.sight import Sight
from remoting import codes
from remoting.transport.taking import WORTH_WHILE

MOST_BYTES: Final = 256 * 1024  # of the records of an answer
ROOM: Final = MOST_BYTES + 512  # and of what precedes them
MASTERS: Final = (MASTER, MASTER, 0, MASTER)


class Given(NamedTuple):
    """An answer that was given, or prepared: how many messages and bytes. None: none of those up to `next_offset` is wanted."""

    messages: int
    body_bytes: int
    next_offset: int
    min_offset: int
    max_offset: int


class Standing:
    """Of one reader and queue; with what he saw of it."""

    __slots__ = ("_tags", "area", "brokers", "sight")

    def __init__(self) -> None:
        self.area = WantedArea()
        self.sight = Sight(self.area)
        self._tags: array[int] | None = None
        self.brokers = MASTERS
        numbers = self.area.numbers
        numbers[VERSION], numbers[ROOM_FOR_ALL] = codes.VERSION, ROOM

    def ask(
        self, most_units: int, max_count: int, max_bytes: int, tags: array[int] | None, group_sys_flag: int
    ) -> None:
        """Look at so many units, and take so many messages and bytes at most; of these tags (codes in order), None for all."""
        numbers = self.area.numbers
        self._tags = tags  # which stay where they are as long as they are
        numbers[TAGS], numbers[TAG_COUNT] = (0, -1) if tags is None else tags.buffer_info()
        numbers[MOST_UNITS], numbers[MAX_COUNT], numbers[MAX_BYTES] = most_units, max_count, max_bytes
        numbers[GROUP_SYS_FLAG] = group_sys_flag

    def suggest(self, brokers: tuple[int, int, int, int]) -> None:
        """Where to read the next; where, if what is read ends below a position of the log; and that; where, if none is wanted."""
        self.brokers = brokers
        numbers = self.area.numbers
        numbers[NEXT_BROKER], numbers[NEXT_BROKER_WHEN_FAR], numbers[FAR_BELOW] = brokers[:3]
        numbers[NEXT_BROKER_WHEN_NONE] = brokers[3]

    def see(self, begin: int, count: int, min_offset: int, max_offset: int) -> None:
        """There are so many units, from that offset of the queue on."""
        numbers = self.area.numbers
        numbers[UNITS_BEGIN], numbers[UNITS_END] = begin, begin + count
        numbers[MIN_OFFSET], numbers[MAX_OFFSET] = min_offset, max_offset

    @property
    def next_offset(self) -> int:
        """Where what was given ends."""
        return self.area.numbers[NEXT_OFFSET]

    @property
    def advance(self) -> int:
        """How many units were looked at for what was given."""
        return self.area.numbers[NEXT_OFFSET] - self.area.numbers[QUEUE_OFFSET]

    @property
    def has_more(self) -> bool:
        """Whether what is seen of the queue and the log is enough for several more, each of which goes as far as this one."""
        numbers = self.area.numbers
        return numbers[LATER] < 0 and numbers[NEXT_OFFSET] + WORTH_WHILE * self.advance <= numbers[UNITS_END]

    @property
    def kept(self) -> tuple[object, ...]:
        """What the area refers to, but for the file."""
        return self._tags, self.sight.units

    @property
    def given(self) -> Given:
        """What was given, or looked at."""
        numbers = self.area.numbers
        found = numbers[MESSAGES], numbers[BODY_BYTES], numbers[NEXT_OFFSET]
        return Given(*found, numbers[MIN_OFFSET], numbers[MAX_OFFSET])
