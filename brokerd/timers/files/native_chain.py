"""`chain.Walk` over `brokerd/native/due.c`."""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import replace
from typing import Final

from brokerd.native.library import Library
from brokerd.timers.codes import Key
from brokerd.timers.files.chain import Chain, PythonWalk, Walk
from brokerd.timers.files.layout import (
    MAGIC,
    MAGIC_DELETE,
    MAGIC_ELSEWHERE,
    NO_POSITION,
    RECORD_BYTES,
    DamagedTimerFiles,
    TimerRecord,
    encode_record,
)
from brokerd.timers.native_due_entries import NativeKey


class _Chain(ctypes.Structure):
    _fields_ = (
        ("slot_ms", ctypes.c_int64),
        ("after", NativeKey),
        ("last_kept", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("at", "stop", "before", "visited", "messages")),
    )


class NativeWalk:
    """By the library; Python says what is wrong with a record that it leaves."""

    looks: Final = 8

    def __init__(self, library: Library) -> None:
        self._walk = library.function(
            *("native_due_chain", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64),
            *(ctypes.c_int64, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)),
        )
        self._python = PythonWalk()

    def __call__(self, chain: Chain, block: bytes, position: int, most: int) -> tuple[int, array[int]]:
        native = _Chain(
            *(chain.slot_ms, NativeKey(*chain.after), chain.last_kept, chain.at, chain.stop, chain.before),
            *(chain.visited, chain.messages),
        )
        keys, kept = array("Q", bytes(8 * min(most, len(block) // RECORD_BYTES))), ctypes.c_int64()
        looked = self._walk(
            *(ctypes.addressof(native), block, len(block), position, len(keys)),
            *(keys.buffer_info()[0], ctypes.byref(kept)),
        )
        if not looked:
            return self._python(chain, block, position, most)
        chain.at, chain.before, chain.visited = native.at, native.before, native.visited
        chain.messages = native.messages
        return looked, keys[: kept.value]


def walk_for(library: Library | None) -> Walk:
    """In C where there is a library."""
    return PythonWalk() if library is None else NativeWalk(library)


def walk_agrees(library: Library) -> bool:
    """Whether the library walks along a slot's records as Python does, and leaves what is damaged."""
    records = [
        TimerRecord((n - 1) * RECORD_BYTES if n else NO_POSITION, MAGIC | magic, 1000 + due_ms, 100 * n, 90, 7 + n)
        for n, (magic, due_ms) in enumerate(((0, 1), (MAGIC_DELETE, 1000), (0, 3), (MAGIC_ELSEWHERE, 2), (0, 1000)))
    ]
    block = b"".join(encode_record(each, 500, 3) for each in records)
    last = RECORD_BYTES * (len(records) - 1)
    chain = Chain(1000, Key(1001, 7), at=last)
    outcomes: list[tuple[Walk, object, Chain]] = []
    for walk in (PythonWalk(), NativeWalk(library)):
        for start, most, content in ((chain, 9, block), (chain, 2, block), (replace(chain, slot_ms=2000), 9, block)):
            each = replace(start)
            try:
                outcomes.append((walk, walk(each, content, 0, most), each))
            except DamagedTimerFiles as error:
                outcomes.append((walk, str(error), each))
    half = len(outcomes) // 2
    return [each[1:] for each in outcomes[:half]] == [each[1:] for each in outcomes[half:]]
