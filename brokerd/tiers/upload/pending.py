"""Which queues have messages that are not in the tier yet, since when, and which are due (pure).

A queue is due when its oldest such message has waited for `commit_interval_ms`, or when there are many (storage.md 4.3). Many are
as many as fill a batch, by the size of those that the queue uploaded last. Queues that are due are taken in the order in which
they began to wait, so that none is passed over for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from remoting.tier.contents import Queue
from remoting.tier.segments import QueueSegments

_UNKNOWN_MANY: Final = 4096  # of a queue that uploaded nothing yet
_MOST_MANY: Final = 16_384  # however small they are: they are looked at one by one


class Waiting(NamedTuple):
    """Queue offsets `[first, end)` are to be uploaded; the first of these messages begins at `position` of the log and was heard
    of at `since_ms`."""

    first: int
    end: int
    position: int
    since_ms: int


class Pending:
    """All that wait, in the order in which they began to."""

    def __init__(self) -> None:
        self._waiting: dict[Queue, Waiting] = {}
        self._ends: dict[tuple[str, int], int] = {}  # of those: how far they have grown since
        self._full_from: dict[tuple[str, int], int] = {}  # the end with which they have many
        self._full: dict[Queue, None] = {}
        self._taken: set[Queue] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, queue: tuple[str, int]) -> bool:
        return queue in self._ends

    @property
    def messages(self) -> int:
        return sum(self._ends.values()) - sum(each.first for each in self._waiting.values())

    @property
    def oldest_ms(self) -> int | None:
        """When the one was heard of that has waited longest."""
        return min((each.since_ms for each in self._waiting.values()), default=None)

    def queues(self) -> Iterable[Queue]:
        return self._waiting.keys()

    def of(self, queue: Queue) -> Waiting | None:
        waiting = self._waiting.get(queue)
        return None if waiting is None else waiting._replace(end=self._ends[queue])

    def put(self, queue: Queue, waiting: Waiting, many: int) -> None:
        """The queue has this to upload; at the end of the line. `many` of its messages do not wait for their time."""
        self.remove(queue)
        self._waiting[queue] = waiting
        self._ends[queue] = waiting.end
        self._full_from[queue] = waiting.first + many
        self.grown(queue, waiting.end)

    def grown(self, queue: tuple[str, int], end: int) -> bool:
        """The queue, which waits, ends there now; whether it is due because of that."""
        if end > self._ends[queue]:
            self._ends[queue] = end
        if end < self._full_from[queue] or queue in self._full:
            return False
        self._full[Queue(*queue)] = None
        return queue not in self._taken

    def remove(self, queue: Queue) -> None:
        """It has nothing to upload, or is not to be uploaded any more."""
        if self._waiting.pop(queue, None) is not None:
            del self._ends[queue], self._full_from[queue]
            self._full.pop(queue, None)

    def clear(self) -> None:
        for each in (self._waiting, self._ends, self._full_from, self._full):
            each.clear()
        self._taken.clear()

    def take(self, now_ms: int, interval_ms: int, most: int) -> Sequence[Queue]:
        """Up to `most` queues that are due and were not taken; `give_back` them."""
        due = [queue for queue in self._full if queue not in self._taken][:most]
        for queue, waiting in self._waiting.items():
            if len(due) >= most or waiting.since_ms > now_ms - interval_ms:
                break
            if queue not in self._full and queue not in self._taken:
                due.append(queue)
        self._taken.update(due)
        return due

    def give_back(self, queue: Queue) -> None:
        """It is uploaded, as far as was tried, or that failed."""
        self._taken.discard(queue)

    def next_due_ms(self, interval_ms: int) -> int | None:
        """When the first one is due that is not taken; None when there is none."""
        if not self._taken.issuperset(self._full):
            return 0
        return next(
            (each.since_ms + interval_ms for queue, each in self._waiting.items() if queue not in self._taken), None
        )

    def held_offset(self) -> int | None:
        """The first byte of the log that is still to be uploaded."""
        return min((each.position for each in self._waiting.values()), default=None)


def many_of(segments: QueueSegments, batch_bytes: int) -> int:
    """How many messages of a queue, which has this in the tier, fill a batch of so many bytes."""
    if not len(segments):
        return _UNKNOWN_MANY
    last = segments.last
    return min(_MOST_MANY, max(1, batch_bytes * last.messages // max(1, last.message_bytes)))
