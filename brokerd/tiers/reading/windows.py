"""How far to read ahead of somebody who reads a queue of the tier on and on (pure).

A reader is known by where he goes on: who reads from where another read ended is the same one, so each group that reads a queue
has a window of its own without being named. It begins with what the first read asked for, grows by what a read asked for when
what was fetched was read to its end, and is halved when something was dropped unread (storage.md 4.7): additive increase,
multiplicative decrease.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from remoting.tier.contents import Queue

LEAST: Final = 32
MOST: Final = 8192

_MANY_READERS: Final = 10_000


class Windows:
    """Messages to be fetched for the next read of each reader."""

    def __init__(self, readers: int = _MANY_READERS) -> None:
        """Of so many readers the windows are remembered; the others begin anew."""
        self._readers = readers
        self._windows: OrderedDict[tuple[Queue, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._windows)

    def at(self, queue: Queue, offset: int) -> int:
        """For who reads on from there."""
        return self._windows.get((queue, offset), LEAST)

    def is_known(self, queue: Queue, offset: int) -> bool:
        """Whether somebody reads on from there, or what was fetched for him was dropped."""
        return (queue, offset) in self._windows

    def read(self, queue: Queue, first: int, end: int, asked: int, *, was_last: bool) -> None:
        """A reader got `[first, end)`; `was_last`: that is where what was fetched for him ends."""
        asked = max(asked, LEAST)
        window = self._windows.pop((queue, first), min(MOST, asked))
        if was_last and window + asked <= MOST:  # so its parts stay as long as an answer
            window += asked
        self._set(queue, end, window)

    def dropped(self, queue: Queue, offset: int) -> None:
        """What was fetched for who goes on there was not read in time."""
        self._set(queue, offset, max(LEAST, self.at(queue, offset) // 2))

    def _set(self, queue: Queue, offset: int, window: int) -> None:
        self._windows[queue, offset] = window
        if len(self._windows) > self._readers:
            self._windows.popitem(last=False)
