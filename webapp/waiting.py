"""Connections of the console's server that nothing is done for: how many there may be, and which one goes for the next.

A connection waits while nothing came of it, while a handshake or a request is on its way, between two requests, and while it is
closing. Each has its time, but in it strangers can open so many that memory or file descriptors run out; who has a request
served, or a websocket, is none of them.
"""

from __future__ import annotations

import resource
from typing import Final, Protocol

MOST_WAITING: Final = 1024  # of which a handshake holds some 80 KiB at the worst


class Waiter(Protocol):
    """One connection."""

    def give_way(self) -> None:
        """It goes at once: others come. `Waiting` has forgotten it."""


class Waiting:
    """Those of one server, in the order in which they began to wait."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiters: dict[Waiter, None] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def begin(self, waiter: Waiter) -> None:
        """It waits, from now on. When there are too many the oldest goes: whoever means it says something soon."""
        self._waiters.pop(waiter, None)
        self._waiters[waiter] = None
        if len(self._waiters) > self._most:
            oldest = next(iter(self._waiters))
            self.end(oldest)
            oldest.give_way()

    def end(self, waiter: Waiter) -> None:
        """It waits no more."""
        self._waiters.pop(waiter, None)


def most_waiting() -> int:
    """How many there may be in this process, which leaves half of its file descriptors to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_WAITING if soft == resource.RLIM_INFINITY else min(MOST_WAITING, soft // 2)
