"""A timer for parts of a millisecond: event loops count their timers in whole ones."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_NANOSECONDS: Final = 1_000_000_000


class _Spec(ctypes.Structure):
    """`struct itimerspec`: how often again, and in how long."""

    _fields_ = (
        ("again_s", ctypes.c_long),
        ("again_ns", ctypes.c_long),
        ("in_s", ctypes.c_long),
        ("in_ns", ctypes.c_long),
    )


class ShortTimer:
    """One of a broker's loop (Linux's `timerfd`): it waits for one thing at a time, and sockets are looked at meanwhile."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callback: Callable[[], None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises OSError when the process may open no more files."""
        # the flags are those of files
        descriptor = _LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            raise _error()
        self._descriptor, self._loop = descriptor, loop
        loop.add_reader(descriptor, self._heard)

    def close(self) -> None:
        """What it waits for does not come, and nothing that it is asked for later."""
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._loop = self._callback = None

    def call(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run the callback in so many seconds, and nothing that this was asked for before."""
        if self._loop is None:
            return
        self._callback = callback
        whole_s, part_s = divmod(delay_s, 1)
        # none at all would stop it
        spec = _Spec(0, 0, int(whole_s), max(1, int(part_s * _NANOSECONDS)))
        if _LIBC.timerfd_settime(self._descriptor, 0, ctypes.byref(spec), None):
            raise _error()

    def _heard(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # it was set anew since the loop saw that it was over
            return
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
