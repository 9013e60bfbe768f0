"""Fetches from the tier that wait until others end (pure).

Whoever asked may have gone when it is a fetch's turn, and a store that hangs has no turns for as long; so how many stand here is
bounded, of each queue and of all. Queues take turns: who asks for many places of one makes readers of others wait for one fetch.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from remoting import codes
from remoting.errors import RequestError
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment

MOST: Final = 4096  # a few seconds of a store that answers
MOST_OF_QUEUE: Final = 512


class Wanted(NamedTuple):
    """Messages from `first` on that somebody asked for."""

    queue: Queue
    first: int


class Standing(NamedTuple):
    """A fetch: up to which offset, and of what."""

    wanted: Wanted
    end: int
    segment: Segment


class FetchLine:
    """Those of one broker. Of each queue the one that stands there longest comes first."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Queue, OrderedDict[Wanted, Standing]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def end_of(self, wanted: Wanted) -> int | None:
        """Up to where a fetch that stands here goes; None when none does."""
        of_queue = self._queues.get(wanted.queue)
        standing = None if of_queue is None else of_queue.get(wanted)
        return None if standing is None else standing.end

    def add(self, wanted: Wanted, end: int, segment: Segment) -> None:
        """One that does not stand here. Raises RequestError when there is no room."""
        of_queue = self._queues.get(wanted.queue)
        if self._count >= MOST:
            raise _full(MOST, "")
        if of_queue is None:
            of_queue = self._queues[wanted.queue] = OrderedDict()
        elif len(of_queue) >= MOST_OF_QUEUE:
            raise _full(MOST_OF_QUEUE, f" for queue {wanted.queue.queue_id} of {wanted.queue.topic}")
        of_queue[wanted] = Standing(wanted, end, segment)
        self._count += 1

    def take(self) -> Standing:
        """The next one, which is the next queue's."""
        queue, of_queue = self._queues.popitem(last=False)
        _, standing = of_queue.popitem(last=False)
        if of_queue:
            self._queues[queue] = of_queue
        self._count -= 1
        return standing

    def remove(self, wanted: Wanted) -> None:
        """Nothing happens when it does not stand here."""
        of_queue = self._queues.get(wanted.queue)
        if of_queue is None or of_queue.pop(wanted, None) is None:
            return
        self._count -= 1
        if not of_queue:
            del self._queues[wanted.queue]


def _full(most: int, whose: str) -> RequestError:
    return RequestError(
        codes.SYSTEM_BUSY, f"[OVERLOAD]{most} fetches from the tier wait{whose} already; try again later"
    )
