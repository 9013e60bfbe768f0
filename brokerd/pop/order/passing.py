"""Which new messages of a queue are passed over, where a group keeps order in each message group (pure).

Made for one look at one queue; see `order/taking.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from brokerd.pop.batch import Place
from brokerd.pop.order.group_order import MAX_PASSED_OVER, hash_of_group
from brokerd.pop.queue_ledger import QueueLedger
from remoting.record.fields import properties_of


class New(NamedTuple):
    """New messages of one queue, ascending: what the plan takes and what it passes over, with their message groups."""

    topic: str
    queue_id: int
    next_offset: int
    offsets: list[int]
    groups: list[int]


class Passing:
    """Which new messages of a queue are passed over: those whose message group has something before them that is not taken with
    them. `taken` is what the plan takes or lets go of, of what was taken or passed over earlier; the groups `waiting` have
    something before them in another queue."""

    def __init__(self, queue: QueueLedger | None, taken: Iterable[Place], waiting: Iterable[int]) -> None:
        self._queue = queue
        self._taken = Counter(each.batch.groups[each.place] for each in taken if each.batch.groups is not None)
        self._groups: dict[int, int] = {}  # of what is chosen and is passed over, by offset
        self._waiting = set(waiting)
        self._left = MAX_PASSED_OVER - (queue.passed_over if queue is not None else 0)
        self.offsets: list[int] = []

    def choose(
        self, offsets: Sequence[int], records: Sequence[bytes], next_offset: int, most: int
    ) -> tuple[list[int], list[bytes], int]:
        """Of messages that were read, those to take, `most` of them, and where to read on; the others are passed over."""
        chosen: list[int] = []
        found: list[bytes] = []
        for offset, record in zip(offsets, records, strict=True):
            group = hash_of_group(properties_of(record))
            if len(chosen) == most:
                return chosen, found, offset
            if group and self._is_waiting(group):
                if self._left <= 0:
                    return chosen, found, offset
                self._left -= 1
                self._waiting.add(group)
                self.offsets.append(offset)
            else:
                chosen.append(offset)
                found.append(record)
            self._groups[offset] = group
        return chosen, found, next_offset

    def all_of(self, chosen: Sequence[int]) -> tuple[list[int], list[int]]:
        """What is chosen and what is passed over, and their groups."""
        offsets = sorted([*chosen, *self.offsets])
        return offsets, [self._groups[offset] for offset in offsets]

    def _is_waiting(self, group: int) -> bool:
        if group in self._waiting:
            return True
        return self._queue is not None and self._queue.order.count(group) > self._taken[group]
