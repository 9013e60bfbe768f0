"""What a reader of a queue wants, and what is known of the queue, as the library takes it (`struct wanted` of `pulls.h`)."""

from __future__ import annotations

import ctypes
from typing import Final

# Places of the numbers
FILE: Final = 0
FILE_LENGTH: Final = 1
FILE_BEGIN: Final = 2
FILE_DESCRIPTOR: Final = 3
UNITS: Final = 4
UNITS_BEGIN: Final = 5
UNITS_END: Final = 6
MIN_OFFSET: Final = 7
MAX_OFFSET: Final = 8
QUEUE_OFFSET: Final = 9
OPAQUE: Final = 10
ROOM: Final = 11
MOST_UNITS: Final = 12
MAX_COUNT: Final = 13
MAX_BYTES: Final = 14
TAGS: Final = 15
TAG_COUNT: Final = 16
GROUP_SYS_FLAG: Final = 17
VERSION: Final = 18
NEXT_BROKER: Final = 19
NEXT_BROKER_WHEN_FAR: Final = 20
FAR_BELOW: Final = 21
NEXT_BROKER_WHEN_NONE: Final = 22
DESCRIPTOR: Final = 23
LEAST_CARRIED: Final = 24
BEHIND: Final = 25
_COUNT: Final = 32
MESSAGES, BODY_BYTES, NEXT_OFFSET, LENGTH, IS_SHORT, LATER = range(BEHIND + 1, _COUNT)  # what came of it
_NUMBER_BYTES: Final = 8


class WantedArea:
    """The struct in memory that stays where it is: its numbers, where it is, and that as a pointer for calls."""

    __slots__ = ("_area", "at", "numbers", "pointer")

    def __init__(self) -> None:
        self._area = bytearray(_COUNT * _NUMBER_BYTES)
        self.numbers = memoryview(self._area).cast("q")
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(self._area))
        self.pointer = ctypes.c_void_p(self.at)
