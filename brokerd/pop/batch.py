"""Messages of one queue that one pop took and that are not finished: the entry of the ledger (pure).

At most 32 messages, so that which of them are unfinished is a bit mask: bit i is the i-th offset, ascending.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, Protocol

from brokerd.pop.records import Shape

MAX_BATCH: Final = 32
NEVER_MS: Final = 1 << 62


class TakenQueue(Protocol):
    """Which queue the messages are of, and for whom: what a batch knows of the `QueueLedger` that holds it."""

    group: str
    topic: str
    queue_id: int
    last_pop_time_ms: int


class Batch:
    """`due_ms` is when the messages become visible again, `timer_ms` when the ledger's timer looks at the batch next."""

    __slots__ = (
        "attempt_id",
        "client_id",
        "count",
        "counts",
        "distances",
        "due_ms",
        "first",
        "invisible_time_ms",
        "ordered",
        "pop_time_ms",
        "queue",
        "remaining",
        "timer_ms",
    )

    def __init__(
        self,
        queue: TakenQueue,
        pop_time_ms: int,
        invisible_time_ms: int,
        due_ms: int,
        first: int,
        shape: Shape,
        *,
        client_id: str = "",
        attempt_id: str = "",
        counts: Sequence[int] | None = None,
        ordered: bool = False,
    ) -> None:
        self.queue = queue
        self.pop_time_ms = pop_time_ms
        self.invisible_time_ms = invisible_time_ms
        self.first = first
        self.distances: list[int] | None
        if isinstance(shape, int):
            self.count = shape
            self.distances = None
        else:
            self.count = len(shape)
            self.distances = shape
        self.remaining = (1 << self.count) - 1
        self.due_ms = due_ms
        self.timer_ms = due_ms
        self.client_id = client_id  # of a lease; empty for a batch that comes back at its time
        self.attempt_id = attempt_id
        self.counts = counts
        self.ordered = ordered

    @property
    def shape(self) -> Shape:
        return self.count if self.distances is None else self.distances

    def offset_at(self, place: int) -> int:
        return self.first + (place if self.distances is None else self.distances[place])

    def place_of(self, offset: int) -> int:
        """The place of a queue offset, -1 when the batch never held it."""
        distance = offset - self.first
        if self.distances is None:
            return distance if 0 <= distance < self.count else -1
        place = bisect_left(self.distances, distance)
        return place if place < self.count and self.distances[place] == distance else -1

    def deliveries(self, place: int) -> int:
        """How often the message was delivered from this queue, this delivery included."""
        return self.counts[place] if self.counts is not None else 1

    def first_remaining(self) -> int:
        """The lowest unfinished offset."""
        lowest_bit = self.remaining & -self.remaining
        return self.offset_at(lowest_bit.bit_length() - 1)

    def last_remaining(self) -> int:
        """The highest unfinished offset."""
        return self.offset_at(self.remaining.bit_length() - 1)

    def remaining_places(self) -> list[int]:
        remaining = self.remaining
        return [place for place in range(self.count) if remaining >> place & 1]

    def remaining_offsets(self) -> list[int]:
        return [self.offset_at(place) for place in self.remaining_places()]

    def row(self) -> list[Any]:
        """The batch in a snapshot, without its queue."""
        return [
            self.pop_time_ms,
            self.invisible_time_ms,
            self.due_ms,
            self.first,
            self.shape,
            self.remaining,
            self.client_id,
            self.attempt_id,
            self.counts,
            self.ordered,
        ]
