"""All that consumer groups took and did not finish: the pop state of a broker (pure: no clock, no store, no log).

Decisions (`find`, `ordered_plan`, `Claims`, `expire`) change nothing that is replicated. State changes by `apply` of a record
only, which cannot fail, on the master when it appended the record and on a replica when the record reached it; so a new master
continues where the old one's log ends. What is not in the records is timing that only the master keeps: renewed leases,
postponed retries. A broker that becomes master starts it afresh with `resume`.

Cost: taking and finishing are proportional to the messages named; timers are a heap whose outdated entries are dropped when
they surface and swept when they outnumber the live ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.metadata.records import unknown_kind
from brokerd.pop import records
from brokerd.pop.handles import NORMAL_REVIVE_QUEUE_ID, ORDERED_REVIVE_QUEUE_ID, ReceiptHandle
from brokerd.pop.queue_ledger import NEVER_MS, Batch, QueueLedger

_SWEEP_SLACK = 1024


class PopLedger:
    """Changed by the pop service alone."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], dict[int, QueueLedger]] = {}
        self._timers: list[tuple[int, int, Batch]] = []
        self._sequence = 0
        self._leases: dict[str, set[Batch]] = {}
        self._batch_count = 0

    # ---- reading

    def queue(self, group: str, topic: str, queue_id: int) -> QueueLedger | None:
        queues = self._queues.get((group, topic))
        return queues.get(queue_id) if queues is not None else None

    def queues(self) -> Iterator[QueueLedger]:
        for queues in self._queues.values():
            yield from queues.values()

    def queues_of(self, group: str, topic: str) -> Sequence[QueueLedger]:
        queues = self._queues.get((group, topic))
        return list(queues.values()) if queues is not None else ()

    def committed_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Every message of the queue below it is finished; None when the group never popped the queue."""
        queue = self.queue(group, topic, queue_id)
        return queue.committed_offset() if queue is not None else None

    def popped_queues(self, group: str) -> Sequence[tuple[str, int]]:
        """(stored topic, queue) of all that the group ever popped."""
        return [(queue.topic, queue.queue_id) for queue in self.queues() if queue.group == group]

    def in_flight(self, group: str) -> int:
        """How many messages of any topic the group holds."""
        return sum(
            queue.in_flight for (name, _), queues in self._queues.items() if name == group for queue in queues.values()
        )

    def find_batch(self, group: str, topic: str, handle: ReceiptHandle, now_ms: int) -> Batch | None:
        """The batch that a handle names; None when it was never given out, is finished as a whole, or expired.

        `topic` is the one that holds the messages.
        """
        queue = self.queue(group, topic, handle.queue_id)
        if queue is None:
            return None
        batch = queue.batches.get(handle.pop_time_ms)
        if (
            batch is None
            or batch.first != handle.start_offset
            or batch.invisible_time_ms != handle.invisible_time_ms
            or handle.revive_queue_id != (ORDERED_REVIVE_QUEUE_ID if batch.ordered else NORMAL_REVIVE_QUEUE_ID)
            or batch.is_over(now_ms)
        ):
            return None
        return batch

    def find(self, group: str, topic: str, handle: ReceiptHandle, now_ms: int) -> tuple[Batch, int] | None:
        """The batch and place of one message; None also when this message is finished or has a newer handle."""
        batch = self.find_batch(group, topic, handle, now_ms)
        place = batch.place_of(handle.queue_offset) if batch is not None else -1
        return (batch, place) if batch is not None and place >= 0 and batch.remaining >> place & 1 else None

    # ---- timers (on the master only)

    def next_timer_ms(self) -> int:
        """When `expire` has something to do; NEVER_MS when never."""
        return self._timers[0][0] if self._timers else NEVER_MS

    def expire(self, now_ms: int, limit: int) -> list[Batch]:
        """Up to `limit` batches whose timer fired. Each must be renewed, deferred or finished; its timer is off until then."""
        due: list[Batch] = []
        timers = self._timers
        while timers and timers[0][0] <= now_ms and len(due) < limit:
            timer_ms, _, batch = heapq.heappop(timers)
            if batch.remaining and batch.timer_ms == timer_ms:
                batch.timer_ms = NEVER_MS
                due.append(batch)
        return due

    def renew(self, batch: Batch, due_ms: int) -> None:
        """Keep a leased batch hidden until `due_ms`."""
        assert due_ms >= batch.due_ms
        batch.due_ms = due_ms
        self._set_timer(batch, due_ms)

    def defer(self, batch: Batch, timer_ms: int) -> None:
        """Look at a due batch again later; it stays visible to nobody meanwhile, and its handles stay expired."""
        self._set_timer(batch, timer_ms)

    def end_early(self, batch: Batch, due_ms: int) -> None:
        """Make a batch due before its time."""
        if due_ms < batch.due_ms:
            batch.due_ms = due_ms
            self._set_timer(batch, due_ms)

    def end_leases(self, client_id: str, due_ms: int) -> int:
        """The client is gone: what it leased is due at `due_ms` at the latest. Returns how many batches.

        They stay leases, so that a client that only lost its connection and is there again by then keeps them.
        """
        batches = self._leases.get(client_id, ())
        for batch in batches:
            self.end_early(batch, due_ms)
        return len(batches)

    def resume(self, now_ms: int, lease_grace_ms: int, inherited_lease_ms: int) -> None:
        """Start timing afresh on a new master: leases last until their clients had the time to be heard here.

        That a client lives does not say that it has the messages: the answer may have gone down with the old master. So a lease
        from before ends after `inherited_lease_ms`, unless the client acknowledges a message of it until then.

        When a batch is due was written by another machine's clock. Should that have been ahead, the messages would stay hidden
        for so much longer than their consumers asked for: no longer than that from now on is right whatever the clocks say.
        """
        for queue in self.queues():
            for batch in queue.batches.values():
                batch.due_ms = min(batch.due_ms, now_ms + batch.invisible_time_ms)
                if batch.client_id:
                    batch.due_ms = max(batch.due_ms, now_ms + lease_grace_ms)
                    batch.lease_end_ms = now_ms + inherited_lease_ms
                batch.timer_ms = batch.due_ms
        self._sweep_timers()

    # ---- replicated state

    def clear(self) -> None:
        self._queues.clear()
        self._timers.clear()
        self._leases.clear()
        self._batch_count = 0

    def apply(self, kind: str, body: Any, end_offset: int = 0) -> None:
        """Carry out a record. Entries that name nothing known are ignored: what they finished is gone already."""
        if kind == records.TAKEN:
            self._apply_taken(body)
        elif kind in (records.ACKED, records.REVIVED):
            for group, topic, queue_id, pop_time_ms, mask in body["a"]:
                self._finish(group, topic, queue_id, pop_time_ms, mask, acked=kind == records.ACKED)
        elif kind == records.CHANGED:
            for entry in body["c"]:
                self._apply_changed(*entry)
        elif kind == records.RESET:
            queue = self._queue(body["g"], body["t"], body["q"])
            self._forget_batches(queue)
            queue.next_offset = body["o"]
        elif kind == records.DROPPED:
            self._apply_dropped(body["g"], body["t"])
        else:
            raise unknown_kind("pop", kind, end_offset)

    def snapshot_rows(self) -> Iterator[list[Any]]:
        for queue in self.queues():
            key = [queue.group, queue.topic, queue.queue_id]
            yield ["q", *key, queue.next_offset, queue.last_pop_time_ms]
            for batch in queue.batches.values():
                yield ["b", *key, *batch.row()]

    def load_row(self, row: Sequence[Any]) -> None:
        tag, group, topic, queue_id, *rest = row
        queue = self._queue(group, topic, queue_id)
        if tag == "q":
            queue.next_offset, queue.last_pop_time_ms = rest
            return
        pop_time_ms, invisible_time_ms, due_ms, first, shape, remaining, client_id, attempt_id, counts, ordered = rest
        pop = records.Pop(pop_time_ms, invisible_time_ms, due_ms, client_id, attempt_id, ordered)
        batch = Batch(queue, pop, first, shape, counts)
        batch.remaining = remaining
        self._add(queue, batch)

    # ---- inside

    def _queue(self, group: str, topic: str, queue_id: int) -> QueueLedger:
        queues = self._queues.setdefault((group, topic), {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = queues[queue_id] = QueueLedger(group, topic, queue_id)
        return queue

    def _apply_taken(self, body: records.Body) -> None:
        group = body["g"]
        pop = records.Pop(body["pt"], body["inv"], body["due"], body["c"], body["a"], body["o"])
        for topic, queue_id, next_offset, first, shape, counts in body["b"]:
            queue = self._queue(group, topic, queue_id)
            queue.next_offset = max(queue.next_offset, next_offset)
            if not shape:
                continue
            batch = Batch(queue, pop, first, shape, counts)
            if pop.ordered and queue.batches:
                self._release(queue, batch)
            queue.last_pop_time_ms = pop.pop_time_ms
            self._add(queue, batch)

    def _release(self, queue: QueueLedger, taken: Batch) -> None:
        """Let go of the offsets that an ordered batch takes again."""
        for old in list(queue.batches.values()):
            mask = 0
            for place in old.remaining_places():
                if taken.place_of(old.offset_at(place)) >= 0:
                    mask |= 1 << place
            if mask:
                self._finish_batch(queue, old, mask)

    def _apply_changed(
        self,
        group: str,
        topic: str,
        queue_id: int,
        pop_time_ms: int,
        place: int,
        new_pop_time_ms: int,
        new_invisible_time_ms: int,
        due_ms: int,
    ) -> None:
        queue = self.queue(group, topic, queue_id)
        old = queue.batches.get(pop_time_ms) if queue is not None else None
        if queue is None or old is None or not old.remaining >> place & 1:
            return
        counts = [old.counts[place]] if old.counts is not None else None
        pop = records.Pop(new_pop_time_ms, new_invisible_time_ms, due_ms, ordered=old.ordered)
        batch = Batch(queue, pop, old.offset_at(place), 1, counts)
        self._finish_batch(queue, old, 1 << place)
        queue.last_pop_time_ms = new_pop_time_ms
        self._add(queue, batch)

    def _apply_dropped(self, group: str | None, topic: str | None) -> None:
        for key in list(self._queues):
            if group in (None, key[0]) and topic in (None, key[1]):
                for queue in self._queues.pop(key).values():
                    self._forget_batches(queue)

    def _add(self, queue: QueueLedger, batch: Batch) -> None:
        queue.add(batch)
        self._batch_count += 1
        if batch.client_id:
            self._leases.setdefault(batch.client_id, set()).add(batch)
        self._set_timer(batch, batch.due_ms)

    def _finish(self, group: str, topic: str, queue_id: int, pop_time_ms: int, mask: int, *, acked: bool) -> None:
        queue = self.queue(group, topic, queue_id)
        if queue is not None:
            batch = queue.batches.get(pop_time_ms)
            if batch is not None:
                if acked:  # so the client has what came with it, too
                    batch.lease_end_ms = NEVER_MS
                self._finish_batch(queue, batch, mask)

    def _finish_batch(self, queue: QueueLedger, batch: Batch, mask: int) -> None:
        queue.finish(batch, mask)
        if not batch.remaining:
            self._gone(batch)

    def _gone(self, batch: Batch) -> None:
        self._batch_count -= 1
        if batch.client_id:
            leased = self._leases.get(batch.client_id)
            if leased is not None:
                leased.discard(batch)
                if not leased:
                    del self._leases[batch.client_id]

    def _forget_batches(self, queue: QueueLedger) -> None:
        for batch in list(queue.batches.values()):
            self._finish_batch(queue, batch, batch.remaining)

    def _set_timer(self, batch: Batch, timer_ms: int) -> None:
        batch.timer_ms = timer_ms
        if len(self._timers) > 2 * self._batch_count + _SWEEP_SLACK:
            self._sweep_timers()
        self._sequence += 1
        heapq.heappush(self._timers, (timer_ms, self._sequence, batch))

    def _sweep_timers(self) -> None:
        """Keep one entry for each batch whose timer is on."""
        self._timers = [
            (batch.timer_ms, sequence, batch)
            for sequence, batch in enumerate(batch for queue in self.queues() for batch in queue.batches.values())
            if batch.timer_ms != NEVER_MS
        ]
        self._sequence = len(self._timers)
        heapq.heapify(self._timers)
