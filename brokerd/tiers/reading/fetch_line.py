"""Fetches from the tier that wait until others end (pure).

A store that hangs has no turns for anybody, so how many stand here is bounded, of each queue and of all; and whoever asked may
have gone when it is a fetch's turn, so one that nobody asked for of late is forsaken. Queues take turns: who asks for many places
of one makes readers of others wait for one fetch.
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
# No pull waits longer before it is answered, and asks again if it is still there; who waits longer looks again when he is told.
ASKED_S: Final = 25.0


class Wanted(NamedTuple):
    """Messages from `first` on that somebody asked for."""

    queue: Queue
    first: int


class Standing(NamedTuple):
    """A fetch: up to which offset, and of what. `asked_s` is when somebody asked for it last."""

    wanted: Wanted
    end: int
    segment: Segment
    asked_s: float

    def is_forsaken(self, now_s: float) -> bool:
        """Whether nobody can be waiting for it who would not ask again when he is told."""
        return now_s - self.asked_s > ASKED_S


class FetchLine:
    """Those of one broker. Of each queue the one that stands there longest comes first."""

    def __init__(self) -> None:
        self._queues: OrderedDict[Queue, OrderedDict[Wanted, Standing]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def ask(self, wanted: Wanted, now_s: float) -> int | None:
        """Somebody wants it: up to where a fetch that stands here goes, in its place; None when none does."""
        of_queue = self._queues.get(wanted.queue)
        standing = None if of_queue is None else of_queue.get(wanted)
        if of_queue is None or standing is None:
            return None
        of_queue[wanted] = standing._replace(asked_s=now_s)
        return standing.end

    def add(self, wanted: Wanted, end: int, segment: Segment, now_s: float) -> None:
        """One that does not stand here. Raises RequestError when there is no room."""
        of_queue = self._queues.get(wanted.queue)
        if self._count >= MOST:
            raise _full(MOST, "")
        if of_queue is None:
            of_queue = self._queues[wanted.queue] = OrderedDict()
        elif len(of_queue) >= MOST_OF_QUEUE:
            raise _full(MOST_OF_QUEUE, f" for queue {wanted.queue.queue_id} of {wanted.queue.topic}")
        of_queue[wanted] = Standing(wanted, end, segment, now_s)
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
