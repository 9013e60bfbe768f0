"""Connections that nothing is known of, or nothing is done for: how many there may be, and which one goes for the next (pure).

Strangers can open as many as there is memory or file descriptors for. So those that have not come to the point yet are kept in
the order in which they began to wait, and beyond a number the oldest goes: whoever means it says something soon.
"""

from __future__ import annotations

from typing import Final, Protocol

MOST_STRANGERS: Final = 4096
"""How many connections may be open to one port where requests are signed, of which none was let in yet."""


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
        """It waits, from now on. When there are too many the oldest goes."""
        self._waiters.pop(waiter, None)
        self._waiters[waiter] = None
        if len(self._waiters) > self._most:
            self.make_room()

    def end(self, waiter: Waiter) -> None:
        """It waits no more."""
        self._waiters.pop(waiter, None)

    def make_room(self) -> bool:
        """The oldest goes; False when none waits."""
        oldest = next(iter(self._waiters), None)
        if oldest is None:
            return False
        self.end(oldest)
        oldest.give_way()
        return True
