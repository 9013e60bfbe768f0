"""What one consumer group took of one queue and did not finish: next offset, batches, and what may be taken next (pure).

A batch is what one pop took: at most 32 messages, so that which of them are unfinished is a bit mask; bit i is the i-th offset,
ascending.

Invariants: pop times of a queue strictly increase, so a pop time names a batch; an offset is unfinished in at most one batch;
every offset below `next_offset` is finished, unfinished in a batch, or was skipped by a filter.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from brokerd.pop.records import Pop, Shape

MAX_BATCH: Final = 32
NEVER_MS: Final = 1 << 62


class Batch:
    """`due_ms` is when the messages become visible again, `timer_ms` when the ledger's timer looks at the batch next.

    A lease is not renewed beyond `lease_end_ms`.
    """

    __slots__ = (
        "attempt_id",
        "client_id",
        "count",
        "counts",
        "distances",
        "due_ms",
        "first",
        "invisible_time_ms",
        "lease_end_ms",
        "ordered",
        "pop_time_ms",
        "queue",
        "remaining",
        "timer_ms",
    )

    def __init__(
        self, queue: QueueLedger, pop: Pop, first: int, shape: Shape, counts: Sequence[int] | None = None
    ) -> None:
        self.queue = queue
        self.pop_time_ms, self.invisible_time_ms, self.due_ms, self.client_id, self.attempt_id, self.ordered = pop
        self.first = first
        self.count = shape if isinstance(shape, int) else len(shape)
        self.distances = None if isinstance(shape, int) else shape
        self.counts = counts
        self.remaining = (1 << self.count) - 1
        self.timer_ms = self.due_ms
        self.lease_end_ms = NEVER_MS

    @property
    def shape(self) -> Shape:
        return self.count if self.distances is None else self.distances

    def is_over(self, now_ms: int) -> bool:
        """Whether the consumer had its time. A lease that is due has not ended: it is renewed by a timer, which may be late, and
        whoever was told meanwhile that it is over would give up what stays its own."""
        return self.due_ms <= now_ms and not (self.client_id and now_ms < self.lease_end_ms)

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


class Fresh(NamedTuple):
    """An ordered pop may read on from the queue's next offset."""


class Again(NamedTuple):
    """An ordered pop must take these offsets before anything else: they were delivered and came back.

    `counts` is how often each will have been delivered, this time included.
    """

    offsets: Sequence[int]
    counts: Sequence[int]


class Blocked(NamedTuple):
    """An ordered pop gets nothing of this queue: a batch is with a client."""


OrderedPlan = Fresh | Again | Blocked


class QueueLedger:
    """Changed by `PopLedger` only."""

    __slots__ = ("_floor", "batches", "group", "in_flight", "last_pop_time_ms", "next_offset", "queue_id", "topic")

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.next_offset = 0
        self.last_pop_time_ms = 0
        self.in_flight = 0
        self.batches: dict[int, Batch] = {}
        self._floor: list[tuple[int, int]] = []  # (first unfinished offset, pop time) of batches; may lag behind

    def add(self, batch: Batch) -> None:
        assert batch.pop_time_ms not in self.batches
        self.batches[batch.pop_time_ms] = batch
        self.in_flight += batch.remaining.bit_count()
        if len(self._floor) > 2 * len(self.batches) + 64:
            self._floor = [(each.first_remaining(), each.pop_time_ms) for each in self.batches.values()]
            heapq.heapify(self._floor)
        else:
            heapq.heappush(self._floor, (batch.first_remaining(), batch.pop_time_ms))

    def finish(self, batch: Batch, mask: int) -> None:
        """Finish messages of a batch, as far as they were unfinished until now."""
        mask &= batch.remaining
        batch.remaining ^= mask
        self.in_flight -= mask.bit_count()
        if not batch.remaining:
            self.batches.pop(batch.pop_time_ms, None)

    def committed_offset(self) -> int:
        """Every offset below it is finished."""
        floor = self._floor
        while floor:
            offset, pop_time_ms = floor[0]
            batch = self.batches.get(pop_time_ms)
            if batch is None:
                heapq.heappop(floor)
                continue
            actual = batch.first_remaining()
            if actual == offset:
                return min(offset, self.next_offset)
            heapq.heapreplace(floor, (actual, pop_time_ms))
        return self.next_offset

    def ordered_plan(self, attempt_id: str, now_ms: int) -> OrderedPlan:
        """What an ordered pop may take now.

        A repeated attempt (a client that lost the answer asks again with the same id) gets its own batch again, uncounted.
        """
        if not self.batches:
            return Fresh()
        hidden = [batch for batch in self.batches.values() if batch.due_ms > now_ms]
        if hidden:
            if not attempt_id or any(batch.attempt_id != attempt_id for batch in hidden):
                return Blocked()
            return _again(hidden, 0)
        if not all(batch.ordered for batch in self.batches.values()):
            return Blocked()  # taken before the group was ordered: they leave through the retry topic
        return _again(list(self.batches.values()), 1)


def _again(batches: Sequence[Batch], added: int) -> Again:
    messages = sorted(
        (batch.offset_at(place), batch.deliveries(place) + added)
        for batch in batches
        for place in batch.remaining_places()
    )
    return Again([offset for offset, _ in messages], [count for _, count in messages])
