"""What the next record will finish or change: handles are checked against the ledger and each message is claimed once (pure).

The service collects the calls of one loop turn, claims in the order of the calls, appends the records, and applies them. Until
then the ledger is unchanged, so the claims remember what is spoken for.

To finish what is finished already is no mistake: the answer was lost, or its sender gave up waiting for it. Nothing is recorded
then, but whoever asked has to wait for the record that is there (`has_repeats`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from brokerd.pop import records
from brokerd.pop.batch import Batch, Queue
from brokerd.pop.handles import ReceiptHandle
from brokerd.pop.ledger import PopLedger


class Claims:
    """One use: claim, take the bodies, append and apply them."""

    def __init__(self, ledger: PopLedger, now_ms: int) -> None:
        self._ledger = ledger
        self._now_ms = now_ms
        self._finished: dict[Batch, int] = {}
        self._changed_masks: dict[Batch, int] = {}
        self._changed: list[list[Any]] = []
        self._pop_times: dict[Queue, int] = {}
        self.has_repeats = False

    def locate(self, group: str, topic: str, handle: ReceiptHandle) -> tuple[Batch, int] | None:
        """The unclaimed message of a valid handle."""
        found = self._ledger.find(group, topic, handle, self._now_ms)
        if found is None:
            return None
        batch, place = found
        spoken_for = self._finished.get(batch, 0) | self._changed_masks.get(batch, 0)
        return None if spoken_for >> place & 1 else found

    def finish(self, group: str, topic: str, handle: ReceiptHandle) -> bool:
        """Claim a message as finished; False when the handle is not valid."""
        found = self.locate(group, topic, handle)
        if found is None:
            return False
        batch, place = found
        self._finished[batch] = self._finished.get(batch, 0) | 1 << place
        return True

    def find_batch(self, group: str, topic: str, handle: ReceiptHandle) -> Batch | None:
        """The batch that a handle names, for `finish_offset` and `is_finished`."""
        return self._ledger.find_batch(group, topic, handle)

    def finish_offset(self, batch: Batch, offset: int) -> bool:
        """Claim the message at a queue offset of the batch as finished; False when it is not there to be claimed. True also when
        it is finished already."""
        place = batch.place_of(offset)
        if place < 0:
            return False
        bit = 1 << place
        claimed = self._finished.get(batch, 0)
        if bit & (batch.acked | claimed):
            self.has_repeats = True
            return True
        if not bit & batch.remaining & ~self._changed_masks.get(batch, 0) or batch.is_over(self._now_ms):
            return False
        self._finished[batch] = claimed | bit
        return True

    def is_finished(self, batch: Batch, offset: int) -> bool:
        """Whether a client finished the message at a queue offset of the batch before, be it a moment ago."""
        place = batch.place_of(offset)
        if place < 0 or not (batch.acked | self._finished.get(batch, 0)) >> place & 1:
            return False
        self.has_repeats = True
        return True

    def change(self, group: str, topic: str, handle: ReceiptHandle, invisible_time_ms: int) -> int | None:
        """Claim a message for a new invisible time: the pop time of its new handle; None when the handle is not valid."""
        found = self.locate(group, topic, handle)
        if found is None:
            return None
        batch, place = found
        queue = batch.queue
        pop_time_ms = self.next_pop_time_ms(queue)
        self._changed_masks[batch] = self._changed_masks.get(batch, 0) | 1 << place
        self._changed.append(
            [
                *(queue.group, queue.topic, queue.queue_id, batch.pop_time_ms, place),
                *(pop_time_ms, invisible_time_ms, self._now_ms + invisible_time_ms),
            ]
        )
        return pop_time_ms

    def next_pop_time_ms(self, queue: Queue) -> int:
        """A pop time that nothing of the queue has, nor will have by what is claimed."""
        last = self._pop_times.get(queue, queue.last_pop_time_ms)
        pop_time_ms = self._pop_times[queue] = max(self._now_ms, last + 1)
        return pop_time_ms

    def note_left(self, batch: Batch) -> None:
        """A message of the batch was finished by another record."""
        self._changed_masks.setdefault(batch, 0)

    def ordered_queues(self) -> Collection[Queue]:
        """The queues of ordered batches that are touched: others may be waiting for them."""
        return dict.fromkeys(batch.queue for batch in (*self._finished, *self._changed_masks) if batch.ordered)

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, body) of what is claimed: usually one record of each kind that occurs."""
        finished = [batch.entry(mask) for batch, mask in self._finished.items()]
        for entries in _chunks_for_records(finished):
            yield records.ACKED, records.finished(entries)
        for entries in _chunks_for_records(self._changed):
            yield records.CHANGED, records.changed(entries)


def _chunks_for_records(entries: list[list[Any]]) -> Iterator[list[list[Any]]]:
    """A record is one message of the log, which is bounded."""
    for start in range(0, len(entries), records.MAX_ENTRIES):
        yield entries[start : start + records.MAX_ENTRIES]
