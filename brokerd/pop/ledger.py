"""All that consumer groups took and did not finish: the pop state of a broker (pure: no clock, no store, no log).

Decisions (`find`, `ordered_plan`, `Claims`, `expire`) change nothing that is replicated. State changes by `apply` of a record
only, which cannot fail, on the master when it appended the record and on a replica when the record reached it; so a new master
continues where the old one's log ends. What is not in the records is timing that only the master keeps: renewed leases,
what waits to be taken again since when. A broker that becomes master starts it afresh with `resume`.

An ack that is asked again is told from one that is late or made up: a batch says which messages were acked as long as one of
it is left, and so do the last `REMEMBERED` batches that had any, wherever they were (some 5 MB). Snapshots hold this of open
batches.

Cost: taking and finishing are proportional to the messages named. In memory a batch is usually a row (`blocks`), and what names
one is its queue's number and its pop time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, count, groupby
from operator import itemgetter
from typing import Any, Final

from brokerd.metadata.records import unknown_kind
from brokerd.pop import records
from brokerd.pop.batch import NEVER_MS, Batch, Older, Taken
from brokerd.pop.batches import Common
from brokerd.pop.blocks import Block, Resumed
from brokerd.pop.handles import NORMAL_REVIVE_QUEUE_ID, ORDERED_REVIVE_QUEUE_ID, ReceiptHandle, proves
from brokerd.pop.leases import Leases
from brokerd.pop.order.group_order import decode_hashes
from brokerd.pop.queue_ledger import QueueLedger
from brokerd.pop.returned import Returned
from brokerd.pop.snapshots import Frozen, rows_of
from brokerd.pop.timers import Due, DueRows, Timers

REMEMBERED: Final = 16_384
_LAST_TWO: Final = itemgetter(-2, -1)


class PopLedger:
    """Changed by the pop service alone."""

    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], dict[int, QueueLedger]] = {}
        self._by_number: dict[int, QueueLedger] = {}
        self._numbers = count()
        self._timers = Timers(self._named)
        self._leases = Leases(self._named)
        self._common = Common(self._leases)
        self._in_flight: dict[str, int] = {}
        self._closed: deque[tuple[QueueLedger, int]] = (
            deque()
        )  # what queues remember, in the order in which it was done
        self._returned = Returned(self._by_number.get)
        self._frozen: Frozen | None = None

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
        return self._in_flight.get(group, 0)

    def find_batch(self, group: str, topic: str, handle: ReceiptHandle) -> Batch | None:
        """The batch that a handle names, whether its time is over or it is done and remembered; None when it was never given out,
        or is forgotten.

        `topic` is the one that holds the messages.
        """
        queue = self.queue(group, topic, handle.queue_id)
        if queue is None:
            return None
        batch = queue.batches.known(handle.pop_time_ms)
        if (
            batch is None
            or batch.first != handle.start_offset
            or batch.invisible_time_ms != handle.invisible_time_ms
            or handle.revive_queue_id != (ORDERED_REVIVE_QUEUE_ID if batch.ordered else NORMAL_REVIVE_QUEUE_ID)
            or not proves(handle.proof, batch.tag)
        ):
            return None
        return batch

    def find(self, group: str, topic: str, handle: ReceiptHandle, now_ms: int) -> tuple[Batch, int] | None:
        """The batch and place of one message; None also when its time is over, it is finished, or it has a newer handle."""
        batch = self.find_batch(group, topic, handle)
        if batch is None or batch.is_over(now_ms):
            return None
        place = batch.place_of(handle.queue_offset)
        return (batch, place) if place >= 0 and batch.remaining >> place & 1 else None

    def returned(self, group: str, topic: str) -> Iterator[Batch]:
        """The batches whose unfinished messages wait to be taken again, longest waiting first. Nothing may change meanwhile."""
        return self._returned.batches(group, topic)

    def returned_places(self, group: str, topic: str) -> Iterator[Older]:
        """Their messages, with how often they will have been delivered. Nothing may change meanwhile."""
        return self._returned.places(group, topic)

    def returned_count(self, group: str, topic: str) -> int:
        """How many messages wait to be taken again."""
        return self._returned.count(group, topic)

    # ---- timers (on the master only)

    def next_timer_ms(self) -> int:
        """When `expire` has something to do; NEVER_MS when never."""
        return self._timers.next_ms()

    def expire(self, now_ms: int, limit: int) -> Due:
        """Batches whose timer fired, with `limit` messages or a few more. Each must be renewed, deferred, given back or finished;
        its timer is off until then. There may be none, and yet more to do at once."""
        return self._timers.expire(now_ms, limit)

    def queue_of(self, due: DueRows) -> QueueLedger:
        """The queue of rows that are due, as long as nothing else has changed."""
        return self._by_number[due.block.queue_number]

    def batches_of(self, due: DueRows) -> list[Batch]:
        """The same rows as batches, for what is to be done with each alone."""
        queue = self.queue_of(due)
        return [queue.batches[pop_time_ms] for pop_time_ms, *_ in due.rows]

    def renew(self, batch: Batch, due_ms: int) -> None:
        """Keep a leased batch hidden until `due_ms`."""
        assert due_ms >= batch.due_ms
        batch.due_ms = due_ms
        self._timers.set(batch, due_ms)

    def defer(self, batch: Batch, timer_ms: int) -> None:
        """Look at a due batch again later; it stays visible to nobody meanwhile, and its handles stay expired."""
        if batch.is_returned:
            self._returned.remove(batch)
        self._timers.set(batch, timer_ms)

    def give_back(self, batch: Batch) -> None:
        """Let the unfinished messages of a due batch be taken again."""
        batch.give_back()
        self._returned.add(batch)
        self._by_number[batch.queue.number].came_back(batch)

    def give_back_rows(self, due: DueRows) -> int:
        """The same for rows, all of them; how many messages they are."""
        return self._returned.add_rows(self.queue_of(due), due)

    def end_early(self, batch: Batch, due_ms: int) -> None:
        """Make a batch due before its time."""
        if due_ms < batch.due_ms:
            batch.due_ms = due_ms
            self._timers.set(batch, due_ms)

    def take_back(self, batch: Batch, now_ms: int) -> None:
        """Nobody got its messages: it is due, whoever asked for them and lives."""
        batch.lease_end_ms = min(batch.lease_end_ms, now_ms)
        self.end_early(batch, now_ms)

    def end_leases(self, client_id: str, due_ms: int) -> int:
        """The client is gone: what it leased is due at `due_ms` at the latest. Returns how many batches.

        They stay leases, so that a client that only lost its connection and is there again by then keeps them.
        """
        batches = self._leases.of(client_id)
        for batch in batches:
            self.end_early(batch, due_ms)
        return len(batches)

    def resume(self, now_ms: int, lease_grace_ms: int, inherited_lease_ms: int) -> None:
        """Start timing afresh on a new master: leases last until their clients had the time to be heard here.

        That a client lives does not say that it has the messages: the answer may have gone down with the old master. So a lease
        from before ends after `inherited_lease_ms`, unless the client acknowledges a message of it until then.

        When a batch is due was written by another machine's clock. Should that have been ahead, the messages would stay hidden
        for so much longer than their consumers asked for: no longer than that from now on is right whatever the clocks say.

        Blocks of rows are begun afresh when somebody looks at them, the timers at the latest, which begin at once.

        What waited to be taken again when this broker was the master before is due, and waits again when its timer says so.
        """
        self._returned.clear()
        self._common.resumed = resumed = Resumed(now_ms, lease_grace_ms, inherited_lease_ms)
        for queue in self.queues():
            for batch in queue.batches.loose.values():
                is_lease = bool(batch.client_id)
                times = resumed.times(batch.due_ms, batch.invisible_time_ms, batch.lease_end_ms, is_lease=is_lease)
                batch.due_ms, batch.lease_end_ms = times
                batch.timer_ms = batch.due_ms
        self._timers.restart(resumed, self._holders())

    # ---- replicated state

    def clear(self) -> None:
        if self._frozen is not None:
            self._frozen.close()
            self._frozen = None
        self._queues.clear()
        self._by_number.clear()
        self._timers.clear()
        self._leases.clear()
        self._in_flight.clear()
        self._closed.clear()
        self._returned.clear()

    def begin_again(self) -> tuple[PopLedger, Callable[[], None]]:
        """An empty ledger to be filled, and what makes this one the same."""
        fresh = PopLedger()
        return fresh, partial(self._become, fresh)

    def apply(self, kind: str, body: Any, end_offset: int = 0) -> None:
        """Carry out a record. Entries that name nothing known are ignored: what they finished is gone already."""
        if kind == records.TAKEN:
            self._apply_taken(body)
        elif kind in (records.ACKED, records.REVIVED):
            for (group, topic, queue_id), entries in groupby(body["a"], itemgetter(0, 1, 2)):
                self._finish_all(self.queue(group, topic, queue_id), entries, acked=kind == records.ACKED)
        elif kind == records.CHANGED:
            for entry in body["c"]:
                self._apply_changed(*entry)
        elif kind == records.RESET:
            queue = self._queue(body["g"], body["t"], body["q"])
            self._forget_batches(queue)
            queue.batches.forget_all()
            self._common.queue_changes(queue)
            queue.next_offset = body["o"]
        elif kind == records.DROPPED:
            self._apply_dropped(body["g"], body["t"])
        else:
            raise unknown_kind("pop", kind, end_offset)

    def snapshot_rows(self) -> Iterator[list[Any]]:
        """Nothing may change meanwhile; else `freeze`."""
        return rows_of(self.queues(), self._leases)

    def freeze(self) -> Frozen:
        """The same rows for who reads them in many turns: as of now, whatever changes. The one before, if there is one, ends."""
        if self._frozen is not None:
            self._frozen.close()
        self._frozen = Frozen(self.queues(), self._common)
        return self._frozen

    def load_row(self, row: Sequence[Any]) -> None:
        tag, group, topic, queue_id, *rest = row
        queue = self._queue(group, topic, queue_id)
        if tag == "q":
            queue.next_offset, queue.last_pop_time_ms = rest
            return
        if tag == "t":
            for pop_time_ms, text, acked in rest[0]:
                batch = queue.batches[pop_time_ms]
                batch.mark(records.tag_of(text), acked)
            return
        if tag == "h":
            for pop_time_ms, text in rest[0]:
                moved = queue.know_groups(queue.batches[pop_time_ms], decode_hashes(text))
                if moved is not None:
                    self._timers.note(moved, pop_time_ms, moved.timer_ms)
            return
        pop_time_ms, invisible_time_ms, due_ms, first, shape, remaining, client_id, attempt_id, counts, ordered = rest
        pop = records.Pop(pop_time_ms, invisible_time_ms, due_ms, client_id, attempt_id, ordered)
        self._add(queue, Taken(pop, first, shape, counts, remaining=remaining))

    # ---- inside

    def _become(self, fresh: PopLedger) -> None:
        """Its parts know one another, and nobody else has them."""
        self.clear()
        self.__dict__.update(fresh.__dict__)

    def _queue(self, group: str, topic: str, queue_id: int) -> QueueLedger:
        queues = self._queues.setdefault((group, topic), {})
        queue = queues.get(queue_id)
        if queue is None:
            queue = queues[queue_id] = QueueLedger(group, topic, queue_id, next(self._numbers), self._common)
            self._by_number[queue.number] = queue
        return queue

    def _named(self, queue_number: int, pop_time_ms: int) -> Batch | None:
        """The open batch of that name."""
        queue = self._by_number.get(queue_number)
        return queue.batches.get(pop_time_ms) if queue is not None else None

    def _holders(self) -> Iterable[Block | Batch]:
        """Whatever has open batches."""
        return chain.from_iterable(chain(queue.batches.blocks, queue.batches.loose.values()) for queue in self.queues())

    def _apply_taken(self, body: records.Body) -> None:
        group = body["g"]
        pop = records.pop_of(body)
        released = body.get("r")
        by_client = pop.invisible_time_ms == records.OWN_INVISIBLE_MS and pop.attempt_id.startswith(records.FORWARDED)
        for (topic, queue_id), entries in groupby(released or (), itemgetter(0, 1)):
            self._finish_all(self.queue(group, topic, queue_id), entries, acked=by_client)
        groups = body.get("h")
        for number, (topic, queue_id, next_offset, first, shape, counts) in enumerate(body["b"]):
            queue = self._queue(group, topic, queue_id)
            self._common.queue_changes(queue)
            queue.next_offset = max(queue.next_offset, next_offset)
            if not shape:
                continue
            taken = Taken(pop, first, shape, counts, decode_hashes(groups[number]) if groups else None)
            if pop.ordered and released is None and groups is None and queue.batches:
                self._release(queue, taken)
            queue.last_pop_time_ms = max(queue.last_pop_time_ms, pop.pop_time_ms)
            self._add(queue, taken)

    def _release(self, queue: QueueLedger, taken: Taken) -> None:
        """Let go of the offsets that an ordered batch takes again, for a record of an earlier version, which does not name
        them."""
        distances = range(taken.shape) if isinstance(taken.shape, int) else taken.shape
        again = {taken.first + distance for distance in distances}
        for old in list(queue.batches.values()):
            mask = 0
            for place in old.remaining_places():
                if old.offset_at(place) in again:
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
        pop = records.Pop(new_pop_time_ms, new_invisible_time_ms, due_ms, ordered=old.ordered, tag=old.tag)
        groups = [old.groups[place]] if old.groups is not None else None
        taken = Taken(pop, old.offset_at(place), 1, counts, groups)
        self._finish_batch(queue, old, 1 << place)
        queue.last_pop_time_ms = max(queue.last_pop_time_ms, new_pop_time_ms)
        self._add(queue, taken)

    def _apply_dropped(self, group: str | None, topic: str | None) -> None:
        for key in list(self._queues):
            if group in (None, key[0]) and topic in (None, key[1]):
                for queue in self._queues.pop(key).values():
                    self._forget_batches(queue)
                    queue.batches.forget_all()
                    del self._by_number[queue.number]

    def _add(self, queue: QueueLedger, taken: Taken) -> None:
        before = queue.in_flight
        holder = queue.add(taken)
        self._in_flight[queue.group] = self._in_flight.get(queue.group, 0) + queue.in_flight - before
        self._timers.note(holder, taken.pop.pop_time_ms, taken.pop.due_ms)

    def _finish_all(self, queue: QueueLedger | None, entries: Iterable[Sequence[Any]], *, acked: bool) -> None:
        """Finish messages of batches of one queue; the last two of each entry are a pop time and a mask."""
        if queue is None:
            return
        finished = queue.finish_rows(map(_LAST_TWO, entries), acked=acked)
        for pop_time_ms in finished.remembered:
            self._remember(queue, pop_time_ms)
        for pop_time_ms, mask in finished.others:
            self._finish_other(queue, pop_time_ms, mask, acked=acked)
        if finished.messages:
            self._in_flight[queue.group] -= finished.messages
        if finished.returned:
            self._returned.finished(queue, finished.returned, finished.returned_batches)

    def _finish_other(self, queue: QueueLedger, pop_time_ms: int, mask: int, *, acked: bool) -> None:
        """The same for a batch that is not only a row; nothing happens when it is not known."""
        batch = queue.batches.get(pop_time_ms)
        if batch is not None:
            if acked:  # so the client has what came with it, too
                queue.batches.loose_changes(batch)
                batch.lease_end_ms = NEVER_MS
                batch.acked |= mask & batch.remaining
            self._finish_batch(queue, batch, mask)

    def _finish_batch(self, queue: QueueLedger, batch: Batch, mask: int) -> None:
        if batch.is_returned:
            self._returned.finish(batch, mask)
        before = queue.in_flight
        queue.finish(batch, mask)
        self._in_flight[queue.group] -= before - queue.in_flight
        if not batch.remaining:
            pop_time_ms, is_remembered = batch.pop_time_ms, bool(batch.acked)
            queue.end(batch, is_remembered=is_remembered)
            if is_remembered:
                self._remember(queue, pop_time_ms)

    def _remember(self, queue: QueueLedger, pop_time_ms: int) -> None:
        """A batch is done of which a client finished something. The oldest such one may be forgotten, and where it was tidied up:
        so what was to be noted of this one is."""
        self._closed.append((queue, pop_time_ms))
        if len(self._closed) > REMEMBERED:
            oldest, oldest_ms = self._closed.popleft()
            oldest.batches.forget(oldest_ms)

    def _forget_batches(self, queue: QueueLedger) -> None:
        for batch in list(queue.batches.values()):
            self._finish_batch(queue, batch, batch.remaining)
