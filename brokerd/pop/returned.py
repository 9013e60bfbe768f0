"""Which batches have messages that wait to be taken again, by group and stored topic, longest waiting first (pure).

Kept by the ledger, on the master only: a batch enters when its time is over and nothing else becomes of its messages, and goes
with the last of them. A pop takes from the front, so it costs what it takes, however many wait.

Each has a ticket, which its batch keeps in the place of its timer: an entry whose batch has another one, or is done, is passed
over, and dropped when it is at the front.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Final

from brokerd.pop.batch import NEVER_MS, RETURNED_MS, Batch, Queue
from brokerd.pop.timers import DueRows

Ticketed = Callable[[int, int, int], Batch | None]  # the open batch of a queue number, a pop time and a ticket

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
    """Counts messages. `ticketed` finds the batches of its entries."""

    def __init__(self, ticketed: Ticketed) -> None:
        self._ticketed = ticketed
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._ticket = RETURNED_MS

    def batches(self, group: str, topic: str) -> Iterator[Batch]:
        waiting = self._waiting.get((group, topic))
        if waiting is None:
            return
        entries = waiting.entries
        for at in range(waiting.head, len(entries), _ENTRY):
            batch = self._ticketed(entries[at + 1], entries[at + 2], entries[at])
            if batch is not None:
                yield batch
            elif at == waiting.head:
                waiting.head = at + _ENTRY

    def count(self, group: str, topic: str) -> int:
        waiting = self._waiting.get((group, topic))
        return waiting.count if waiting is not None else 0

    def add(self, batch: Batch) -> None:
        queue = batch.queue
        self._ticket += 1
        batch.timer_ms = self._ticket
        self._enter(queue, [self._ticket, queue.number, batch.pop_time_ms], batch.remaining.bit_count())

    def add_rows(self, queue: Queue, due: DueRows) -> int:
        """The same for rows of a block; how many messages they are."""
        first = self._ticket + 1
        self._ticket += len(due.rows)
        due.block.number_timers(due.rows, first)
        entries: list[int] = []
        messages = 0
        for ticket, (pop_time_ms, _, remaining, _) in enumerate(due.rows, first):
            entries += (ticket, queue.number, pop_time_ms)
            messages += remaining.bit_count()
        self._enter(queue, entries, messages)
        return messages

    def finish(self, batch: Batch, mask: int) -> None:
        """Messages of a batch are about to be finished or taken again; with the last of them it goes."""
        if batch.remaining & ~mask:
            self.finished(batch.queue, (mask & batch.remaining).bit_count(), 0)
        else:
            self.remove(batch)

    def remove(self, batch: Batch) -> None:
        batch.timer_ms = NEVER_MS
        self.finished(batch.queue, batch.remaining.bit_count(), 1)

    def finished(self, queue: Queue, messages: int, batches: int) -> None:
        """So many messages do not wait any more; they were the last ones of so many batches that do."""
        key = queue.group, queue.topic
        waiting = self._waiting[key]
        waiting.count -= messages
        queue.returned -= messages
        waiting.batches -= batches
        if not waiting.batches:
            del self._waiting[key]

    def clear(self) -> None:
        """Forget all, with their queues."""
        self._waiting.clear()

    def _enter(self, queue: Queue, entries: list[int], messages: int) -> None:
        key = queue.group, queue.topic
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Waiting()
        if len(waiting.entries) > _ENTRY * (2 * waiting.batches + _SLACK):
            self._tighten(waiting)
        waiting.entries.extend(entries)
        waiting.batches += len(entries) // _ENTRY
        waiting.count += messages
        queue.returned += messages

    def _tighten(self, waiting: _Waiting) -> None:
        """Drop the entries that are passed over."""
        entries, kept = waiting.entries, array("q")
        for at in range(waiting.head, len(entries), _ENTRY):
            if self._ticketed(entries[at + 1], entries[at + 2], entries[at]) is not None:
                kept.extend(entries[at : at + _ENTRY])
        waiting.entries, waiting.head = kept, 0
