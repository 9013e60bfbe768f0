"""Whether the native library makes the codes of timers' entries as `codes.timer_code` does."""

from __future__ import annotations

import ctypes
from itertools import permutations
from typing import Final

from brokerd.native.library import Library
from brokerd.timers.codes import DELETE_KEY, DEQUEUE_MS, DUE_MS, LEG_MS, OUT_MS, PLACE, TIMER_RULE, timer_code

_VALUES: Final = ("1700000000123", "0", "12345678901234567", "x", "")


def codes_agree(library: Library) -> bool:
    """It is asked about each of the properties, alone and with each other one."""
    native = library.function(TIMER_RULE.native_name, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)
    pieces = [
        f"{name}\x01{value}\x02"
        for name in (DUE_MS, LEG_MS, OUT_MS, PLACE, DELETE_KEY, DEQUEUE_MS)
        for value in _VALUES
    ]
    texts = ["", *pieces, *map("".join, permutations(pieces, 2))]
    return all(
        native(text, len(text), stamp) == timer_code(text, stamp)
        for text in map(str.encode, texts)
        for stamp in (-1, 1_700_000_000_456)
    )
