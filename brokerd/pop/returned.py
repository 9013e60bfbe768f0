"""Which batches have messages that wait to be taken again, by group and stored topic, longest waiting first (pure).

Kept by the ledger, on the master only: a batch enters when its time is over and nothing else becomes of its messages, and goes
with the last of them. A pop takes from the front, so it costs what it takes, however many wait.

Each has a ticket, which its batch keeps in the place of its timer: an entry whose batch has another one, or is done, is passed
over, and dropped when it is at the front.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from brokerd.pop.batch import NEVER_MS, RETURNED_MS, Batch, LooseBatch, Older, Queue
from brokerd.pop.blocks import DueRow
from brokerd.pop.queue_ledger import QueueLedger
from brokerd.pop.timers import DueRows

_SLACK: Final = 1024
_ENTRY: Final = 3  # ticket, queue number, pop time
# So many are looked at together: more each time, as nobody says how many are wanted.
_FIRST_LOOK: Final = 8
_LARGEST_LOOK: Final = 256


class _Waiting:
    """Of one group and topic. `entries` begin at `head`; `batches` of them wait, with `count` messages."""

    __slots__ = ("batches", "count", "entries", "head")

    def __init__(self) -> None:
        self.batches = 0
        self.count = 0
        self.entries = array("q")
        self.head = 0


class Returned:
    """Counts messages. `queue_of` finds the queue of a number, if it is still there."""

    def __init__(self, queue_of: Callable[[int], QueueLedger | None]) -> None:
        self._queue_of = queue_of
        self._waiting: dict[tuple[str, str], _Waiting] = {}
        self._ticket = RETURNED_MS

    def batches(self, group: str, topic: str) -> Iterator[Batch]:
        waiting = self._waiting.get((group, topic))
        if waiting is None:
            return
        entries = waiting.entries
        for at in range(waiting.head, len(entries), _ENTRY):
            batch = self._ticketed(*entries[at : at + _ENTRY])
            if batch is not None:
                yield batch
            elif at == waiting.head:
                waiting.head = at + _ENTRY

    def places(self, group: str, topic: str) -> Iterator[Older]:
        """Their messages."""
        waiting = self._waiting.get((group, topic))
        if waiting is None:
            return
        entries = waiting.entries
        begin, most = waiting.head, _FIRST_LOOK
        while begin < len(entries):
            end = begin + _ENTRY * most
            most = min(2 * most, _LARGEST_LOOK)
            for number, same in groupby(entries[begin + 1 : end : _ENTRY]):
                behind = begin + _ENTRY * sum(1 for _ in same)
                queue = self._queue_of(number)
                found: Sequence[DueRow | LooseBatch | None] = ()
                if queue is not None:
                    tickets, pop_times = entries[begin:behind:_ENTRY], entries[begin + 2 : behind : _ENTRY]
                    found = queue.batches.waiting(tickets, pop_times)
                if begin == waiting.head:
                    there = next((place for place, each in enumerate(found) if each is not None), None)
                    waiting.head = behind if there is None else begin + _ENTRY * there
                if queue is not None:
                    yield from _places(queue.queue_id, found)
                begin = behind

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
            if self._ticketed(*entries[at : at + _ENTRY]) is not None:
                kept.extend(entries[at : at + _ENTRY])
        waiting.entries, waiting.head = kept, 0

    def _ticketed(self, ticket: int, queue_number: int, pop_time_ms: int) -> Batch | None:
        """The batch of an entry, if it still waits with that ticket."""
        queue = self._queue_of(queue_number)
        return queue.batches.returned(pop_time_ms, ticket) if queue is not None else None


def _places(queue_id: int, found: Iterable[DueRow | LooseBatch | None]) -> Iterator[Older]:
    for each in found:
        if each is None:
            continue
        if isinstance(each, LooseBatch):
            for place in each.remaining_places():
                yield Older(queue_id, each.offset_at(place), each.pop_time_ms, place, each.deliveries(place) + 1)
            continue
        pop_time_ms, first, remaining, deliveries = each
        if remaining == 1:
            yield Older(queue_id, first, pop_time_ms, 0, deliveries + 1)
            continue
        for place in range(remaining.bit_length()):
            if remaining >> place & 1:
                yield Older(queue_id, first + place, pop_time_ms, place, deliveries + 1)
