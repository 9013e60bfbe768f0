"""The unit of a consume queue: 20 bytes that say where in the log a message is (pure).

    0 physicalOffset(8)  8 size(4)  12 tagsCode(8)          unit n of a queue is at byte n * 20

A blank unit stands where a message was removed before the queue's first known one, `{0, 0x7FFFFFFF, 0}`, as in the original.
"""

from __future__ import annotations

import struct
from typing import Final

UNIT: Final = struct.Struct(">qiq")
UNIT_BYTES: Final = 20
BLANK_SIZE: Final = 0x7FFFFFFF
BLANK_UNIT: Final = UNIT.pack(0, BLANK_SIZE, 0)

Unit = tuple[int, int, int]  # physical offset, size, code
