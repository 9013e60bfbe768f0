"""What one pop took of one queue: a batch of messages, with what became of each (pure).

A batch holds at most 32 messages, so that which of them are unfinished is a bit mask; bit i is the i-th offset, ascending. What
is not finished in time stays in its batch, over due, until another pop takes it: the record of that pop lets go of the places
here, and its own batch has them with their counts.

There are two kinds: most batches are rows of `blocks`, and what is seen of them is a `packed.PackedBatch`; those that do not fit
into a row are a `LooseBatch` each. Nobody else needs to know which is which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from brokerd.pop.records import OWN_INVISIBLE_MS, Pop, Shape

MAX_BATCH: Final = 32
NEVER_MS: Final = 1 << 62
RETURNED_MS: Final = NEVER_MS + 1  # and above: timers of what waits to be taken again, as `returned` numbers it


class Queue:
    """What a batch knows of its queue. `number` names it among all queues of its ledger, also when it is gone."""

    __slots__ = ("group", "in_flight", "last_pop_time_ms", "next_offset", "number", "queue_id", "returned", "topic")

    batches: Mapping[int, Batch]

    def __init__(self, group: str, topic: str, queue_id: int, number: int) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.number = number
        self.next_offset = 0
        self.last_pop_time_ms = 0
        self.in_flight = 0
        self.returned = 0  # of those in flight: kept by `Returned`, on the master


class Batch(ABC):
    """`due_ms` is when the messages become visible again, `timer_ms` when the ledger's timer looks at the batch next.

    A lease is not renewed beyond `lease_end_ms`. `acked` are the messages that a client finished; `tag` is what handles end with.
    `groups` are the hashes of its messages' groups, None where only the queue has an order.
    What the broker itself takes, because it leaves the queue, has the invisible
    time `OWN_INVISIBLE_MS`, and in the place of an attempt id what `departures` needs to know (`records`).
    """

    __slots__ = ("acked", "due_ms", "lease_end_ms", "remaining", "timer_ms")

    queue: Queue
    pop_time_ms: int
    invisible_time_ms: int
    due_ms: int
    timer_ms: int
    lease_end_ms: int
    client_id: str
    attempt_id: str
    ordered: bool
    tag: int
    first: int
    count: int
    distances: Sequence[int] | None
    counts: Sequence[int] | None
    groups: Sequence[int] | None
    remaining: int
    acked: int

    @property
    def is_leaving(self) -> bool:
        """Whether its messages leave the queue: they are given to nobody."""
        return self.invisible_time_ms == OWN_INVISIBLE_MS

    @property
    def is_passed_over(self) -> bool:
        """Whether its messages were never with a client: something of their groups was before them."""
        return self.counts is not None and not self.counts[0] and not self.is_leaving

    @property
    def is_returned(self) -> bool:
        """Whether its unfinished messages wait to be taken again: no timer looks at it any more."""
        return self.timer_ms >= RETURNED_MS

    def give_back(self) -> None:
        """Its time is over for good: a handle of it is worth nothing."""
        self.timer_ms = RETURNED_MS
        self.lease_end_ms = 0

    @property
    def shape(self) -> Shape:
        return self.count if self.distances is None else list(self.distances)

    @abstractmethod
    def mark(self, tag: int, acked: int) -> None:
        """What a snapshot says of it beside its row."""

    def is_over(self, now_ms: int) -> bool:
        """Whether the consumer had its time. A lease that is due has not ended: it is renewed by a timer, which may be late, and
        whoever was told meanwhile that it is over would give up what stays its own."""
        return self.due_ms <= now_ms and not (self.client_id and now_ms < self.lease_end_ms)

    def may_come_again(self, now_ms: int) -> bool:
        """Whether an ordered pop may take its messages again."""
        return self.is_over(now_ms) and not self.is_leaving

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
        remaining = self.remaining
        return self.offset_at((remaining & -remaining).bit_length() - 1)

    def last_remaining(self) -> int:
        """The highest unfinished offset."""
        return self.offset_at(self.remaining.bit_length() - 1)

    def remaining_places(self) -> list[int]:
        remaining = self.remaining
        if remaining == 1:
            return [0]
        return [place for place in range(remaining.bit_length()) if remaining >> place & 1]

    def remaining_offsets(self) -> list[int]:
        return [self.offset_at(place) for place in self.remaining_places()]

    def entry(self, mask: int) -> list[Any]:
        """Messages of the batch in a record that finishes them."""
        queue = self.queue
        return [queue.group, queue.topic, queue.queue_id, self.pop_time_ms, mask]

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


class Taken(NamedTuple):
    """A batch as a record or a snapshot says it."""

    pop: Pop
    first: int
    shape: Shape
    counts: Sequence[int] | None = None
    groups: Sequence[int] | None = None
    remaining: int = -1  # all

    @property
    def size(self) -> int:
        return self.shape if isinstance(self.shape, int) else len(self.shape)

    def first_remaining(self) -> int:
        """The lowest unfinished offset."""
        place = (self.remaining & -self.remaining).bit_length() - 1
        return self.first + (place if isinstance(self.shape, int) else self.shape[place])


class LooseBatch(Batch):
    """One that does not fit into a row."""

    __slots__ = (
        "attempt_id",
        "client_id",
        "count",
        "counts",
        "distances",
        "first",
        "groups",
        "invisible_time_ms",
        "ordered",
        "pop_time_ms",
        "queue",
        "tag",
    )

    def __init__(self, queue: Queue, taken: Taken) -> None:
        pop = taken.pop
        self.queue = queue
        self.pop_time_ms, self.invisible_time_ms, self.due_ms, self.client_id, self.attempt_id, self.ordered = pop[:6]
        self.tag = pop.tag
        self.acked = 0
        self.first = taken.first
        self.count = taken.size
        self.distances = None if isinstance(taken.shape, int) else taken.shape
        self.counts = taken.counts
        self.groups = taken.groups
        self.remaining = taken.remaining & (1 << self.count) - 1
        self.timer_ms = self.due_ms
        self.lease_end_ms = NEVER_MS

    def mark(self, tag: int, acked: int) -> None:
        self.tag, self.acked = tag, acked


class Older(NamedTuple):
    """A message that was taken before and is to be taken again, in a plan, which knows the topic: where it is in which batch, and
    how often it will have been delivered. Ascending by queue and offset."""

    queue_id: int
    offset: int
    pop_time_ms: int
    place: int
    deliveries: int


class Place(NamedTuple):
    """A message that was taken before. `deliveries` is how often it will have been delivered, the next time included."""

    batch: Batch
    place: int
    deliveries: int = 0

    @property
    def offset(self) -> int:
        return self.batch.offset_at(self.place)

    def as_older(self) -> Older:
        batch = self.batch
        return Older(batch.queue.queue_id, self.offset, batch.pop_time_ms, self.place, self.deliveries)
