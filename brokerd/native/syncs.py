"""Syncs of one file, over and over, by a thread that does not hold the interpreter's lock meanwhile (`syncs.c`).

The loop wants positions durable, and looks how far that is when the event is set. So does who appends beside the loop (`lane.c`),
of whose records the loop knows later. One thread serves, whenever it can, and returns when it is asked to leave, by any thread,
or when there is something to do beside syncs.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from brokerd.native.library import Library

NOTE_AFTER_MS: Final = 50  # after the first sync that nobody left word of
_ANSWERED, _DONE_COMPLETE, _COUNT, _DURATIONS = range(4)


class Ending(IntEnum):
    """Why serving ended; syncs.c has the same."""

    LEFT = 0
    PAST_FILE = 1
    TO_NOTE = 2


class NativeSyncs:
    """The memory that loop and thread share, and the calls. Positions are offsets of the log; requests have numbers that grow."""

    def __init__(self, library: Library) -> None:
        """Raises OSError when the system has no room for it."""
        area, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        size: int = library.function("native_syncs_bytes", number)()
        self._memory = bytearray(size)
        self._numbers = memoryview(self._memory).cast("q")
        self._at = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._want = library.function("native_syncs_want", None, area, number, number, number)
        self._set_back = library.function("native_syncs_set_back", None, area, number)
        self._done = library.function("native_syncs_done", number, area)
        self._serves = library.function("native_syncs_serves", small, area, number)
        self._leave = library.function("native_syncs_leave", None, area, small)
        self._serve = library.function("native_syncs_serve", small, area, small, number, number, number)
        self._close = library.function("native_syncs_close", None, area)
        self.event, self._beside = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        if not library.function("native_syncs_begin", small, area, small, small)(self._at, self.event, self._beside):
            raise OSError("the system has no room for a semaphore")

    # -- on the loop

    @property
    def at(self) -> int:
        """Where the memory is, for who wants beside the loop."""
        return self._at

    def want(self, number: int, end: int, complete: int) -> None:
        """Have all before `end` synced, of which what is before `complete` are whole records."""
        self._want(self._at, number, end, complete)

    def set_back(self, end: int) -> None:
        """The log was cut, and ends there, while nobody served."""
        self._set_back(self._at, end)

    def hear(self) -> int:
        """How far all is durable. The event is not set any more."""
        os.eventfd_read(self.event)
        return self.done

    @property
    def done(self) -> int:
        """How far all is durable."""
        durable: int = self._done(self._at)
        return durable

    def serves(self, begin: int) -> bool:
        """Whether somebody serves the file that begins there, and stays."""
        return bool(self._serves(self._at, begin))

    def close(self) -> None:
        """Nobody serves any more, or wants beside the loop."""
        self._close(self._at)
        os.close(self.event)
        os.close(self._beside)

    # -- any thread

    def leave(self) -> None:
        """Have who serves return soon, and nobody serve until somebody says `stay`."""
        self._leave(self._at, 1)

    # -- the thread that serves

    def stay(self) -> None:
        """Who serves stays from now on."""
        self._leave(self._at, 0)

    def serve(self, answered: int, descriptor: int, begin: int, limit: int) -> Ending:
        """Sync the file, which has what is from `begin` on and before `limit`, whenever more is wanted than what had the number
        `answered`. Raises OSError when the system refused a sync."""
        self._numbers[_ANSWERED] = answered
        ending: int = self._serve(self._at, descriptor, begin, limit, NOTE_AFTER_MS * 1_000_000)
        if ending < 0:
            raise OSError(-ending, os.strerror(-ending))
        return Ending(ending)

    @property
    def answered(self) -> int:
        """The number up to which all is durable, since somebody serves."""
        return self._numbers[_ANSWERED]

    @property
    def durable(self) -> tuple[int, int]:
        """What the last sync covered: the end, and that of the whole records."""
        return self.done, self._numbers[_DONE_COMPLETE]

    @property
    def durations_ns(self) -> Sequence[int]:
        """How long each sync took since `serve` was called."""
        return self._numbers[_DURATIONS : _DURATIONS + self._numbers[_COUNT]].tolist()
