"""What a reader of a queue wants, and what is known of the queue, as the library takes it (`struct wanted` of `pulls.h`)."""

from __future__ import annotations

import ctypes
from typing import Final

# Places of the numbers
FILE: Final = 0
FILE_LENGTH: Final = 1
FILE_BEGIN: Final = 2
UNITS: Final = 3
UNITS_BEGIN: Final = 4
UNITS_END: Final = 5
MIN_OFFSET: Final = 6
MAX_OFFSET: Final = 7
QUEUE_OFFSET: Final = 8
OPAQUE: Final = 9
ROOM: Final = 10
MOST_UNITS: Final = 11
MAX_COUNT: Final = 12
MAX_BYTES: Final = 13
TAGS: Final = 14
TAG_COUNT: Final = 15
GROUP_SYS_FLAG: Final = 16
VERSION: Final = 17
NEXT_BROKER: Final = 18
NEXT_BROKER_WHEN_FAR: Final = 19
FAR_BELOW: Final = 20
DESCRIPTOR: Final = 21
LEAST_CARRIED: Final = 22
BEHIND: Final = 23
MESSAGES: Final = 24
BODY_BYTES: Final = 25
NEXT_OFFSET: Final = 26
LENGTH: Final = 27
_COUNT: Final = 28
_NUMBER_BYTES: Final = 8


class WantedArea:
    """The struct in memory that stays where it is: its numbers, and a pointer to it for calls."""

    __slots__ = ("_area", "numbers", "pointer")

    def __init__(self) -> None:
        self._area = bytearray(_COUNT * _NUMBER_BYTES)
        self.numbers = memoryview(self._area).cast("q")
        self.pointer = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._area)))
