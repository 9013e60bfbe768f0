"""Which batches have messages that wait to be taken again, by group and stored topic, longest waiting first (pure).

Kept by the ledger, on the master only: a batch enters when its time is over and nothing else becomes of its messages, and goes
with the last of them. A pop takes from the front, so it costs what it takes, however many wait.

Each has a ticket, which its batch keeps in the place of its timer: an entry whose batch has another one, or is done, is passed
over, and dropped when it is at the front.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from brokerd.pop.batch import NEVER_MS, RETURNED_MS, Batch
from brokerd.pop.leases import Named

_SLACK: Final = 1024
_ENTRY: Final = 3  # ticket, queue number, pop time


class _Waiting:
    """Of one group and topic. `entries` begin at `head`; `batches` of them wait, with `count` messages."""

    __slots__ = ("batches", "count", "entries", "head")

    def __init__(self) -> None:
        self.batches = 0
        self.count = 0
        self.entries = array("q")
        self.head = 0


class Returned:
    """Counts messages. `named` finds the batches of its entries."""

    def __init__(self, named: Named) -> None:
        self._named = named
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._ticket = RETURNED_MS

    def batches(self, group: str, topic: str) -> Iterator[Batch]:
        waiting = self._waiting.get((group, topic))
        if waiting is None:
            return
        entries = waiting.entries
        for at in range(waiting.head, len(entries), _ENTRY):
            batch = self._named(entries[at + 1], entries[at + 2])
            if batch is not None and batch.timer_ms == entries[at]:
                yield batch
            elif at == waiting.head:
                waiting.head = at + _ENTRY

    def count(self, group: str, topic: str) -> int:
        waiting = self._waiting.get((group, topic))
        return waiting.count if waiting is not None else 0

    def add(self, batch: Batch) -> None:
        queue = batch.queue
        waiting = self._waiting.get((queue.group, queue.topic))
        if waiting is None:
            waiting = self._waiting[queue.group, queue.topic] = _Waiting()
        self._ticket += 1
        batch.timer_ms = self._ticket
        if len(waiting.entries) > _ENTRY * (2 * waiting.batches + _SLACK):
            self._tighten(waiting)
        waiting.entries.extend((self._ticket, queue.number, batch.pop_time_ms))
        waiting.batches += 1
        self._count(waiting, batch, batch.remaining.bit_count())

    def finish(self, batch: Batch, mask: int) -> None:
        """Messages of a batch are about to be finished or taken again; with the last of them it goes."""
        if batch.remaining & ~mask:
            waiting = self._waiting[batch.queue.group, batch.queue.topic]
            self._count(waiting, batch, -(mask & batch.remaining).bit_count())
        else:
            self.remove(batch)

    def remove(self, batch: Batch) -> None:
        key = (batch.queue.group, batch.queue.topic)
        waiting = self._waiting[key]
        batch.timer_ms = NEVER_MS
        waiting.batches -= 1
        self._count(waiting, batch, -batch.remaining.bit_count())
        if not waiting.batches:
            del self._waiting[key]

    def clear(self) -> None:
        """Forget all, with their queues."""
        self._waiting.clear()

    def _tighten(self, waiting: _Waiting) -> None:
        """Drop the entries that are passed over."""
        entries, kept = waiting.entries, array("q")
        for at in range(waiting.head, len(entries), _ENTRY):
            batch = self._named(entries[at + 1], entries[at + 2])
            if batch is not None and batch.timer_ms == entries[at]:
                kept.extend(entries[at : at + _ENTRY])
        waiting.entries, waiting.head = kept, 0

    @staticmethod
    def _count(waiting: _Waiting, batch: Batch, messages: int) -> None:
        waiting.count += messages
        batch.queue.returned += messages
