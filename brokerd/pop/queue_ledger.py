"""What one consumer group took of one queue and did not finish: next offset, batches, and what may be taken next (pure).

Invariants: pop times of a queue strictly increase, so a pop time names a batch; an offset is unfinished in at most one batch;
every offset below `next_offset` is finished, unfinished in a batch, or was skipped by a filter.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from brokerd.pop.batch import Batch


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

    def finish(self, batch: Batch, mask: int) -> int:
        """Finish messages of a batch; return how many were unfinished until now."""
        mask &= batch.remaining
        batch.remaining ^= mask
        finished = mask.bit_count()
        self.in_flight -= finished
        if not batch.remaining:
            self.batches.pop(batch.pop_time_ms, None)
        return finished

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
