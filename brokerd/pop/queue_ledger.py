"""What one consumer group took of one queue and did not finish: next offset, batches, and what may be taken next (pure).

Invariants: pop times of a queue strictly increase, so a pop time names a batch; an offset is unfinished in at most one batch;
every offset below `next_offset` is finished, unfinished in a batch, or was skipped by a filter.

Order is kept for the whole queue, or for each message group of it (`group_order`). In the second case a batch knows the groups of
its messages, and new messages whose group waits are passed over: they are batches as well, delivered to nobody and free to be
taken as soon as nothing of their group is before them. Batches that do not know their groups, from before the order was so, keep
the whole queue in order until they are finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from brokerd.pop.batch import MAX_BATCH, Batch, LooseBatch, Place, Queue, Taken
from brokerd.pop.batches import Batches, Common, Finished
from brokerd.pop.blocks import Block
from brokerd.pop.floor import Floor
from brokerd.pop.order.group_order import MAX_PASSED_OVER, GroupOrder
from brokerd.pop.records import OWN_INVISIBLE_MS


class Fresh(NamedTuple):
    """An ordered pop may read on from the queue's next offset."""


class WaitingGroup(NamedTuple):
    """A message group that waits, for a message that is with a client until `until_ms` unless it is finished earlier. `offset` is
    of the group's first message in this queue, `waiting` are the messages that were passed over."""

    offset: int
    until_ms: int
    waiting: int


class Again(NamedTuple):
    """An ordered pop must take these before anything else: they were delivered and came back. Ascending."""

    places: Sequence[Place]


class Blocked(NamedTuple):
    """An ordered pop gets nothing of this queue: its earliest unfinished message is with a client, or waits for its time."""


OrderedPlan = Fresh | Again | Blocked


class QueueLedger(Queue):
    """Changed by `PopLedger` only."""

    __slots__ = ("_attempts", "_floor", "_free", "_ungrouped", "batches", "order", "passed_over")

    batches: Batches

    def __init__(self, group: str, topic: str, queue_id: int, number: int, common: Common) -> None:
        super().__init__(group, topic, queue_id, number)
        self.batches = Batches(self, common)
        self._floor = Floor(self.batches)
        self._attempts: dict[str, dict[int, None]] = {}  # pop times
        self.order = GroupOrder()
        self.passed_over = 0  # messages
        self._ungrouped = 0  # batches that do not know their groups
        self._free: list[
            tuple[int, int]
        ] = []  # (offset, pop time) of what came back and is first of its group; or was so

    def add(self, taken: Taken) -> Block | LooseBatch:
        """One more batch; returns what holds it, for the timers."""
        pop = taken.pop
        holder = self.batches.add(taken)
        self.in_flight += (taken.remaining & (1 << taken.size) - 1).bit_count()
        self._floor.add(holder, taken.first_remaining())
        if pop.attempt_id and pop.invisible_time_ms != OWN_INVISIBLE_MS:
            self._attempts.setdefault(pop.attempt_id, {})[pop.pop_time_ms] = None
        self._ungrouped += 1
        if taken.groups is not None:
            self._enter_groups(self.batches[pop.pop_time_ms], taken.groups)
        return holder

    def know_groups(self, batch: Batch, groups: Sequence[int]) -> LooseBatch | None:
        """From now on the batch keeps order in its message groups alone; returns it where it is held in another way now."""
        loose = self.batches.know_groups(batch, groups)
        if loose is not None:
            self._floor.add(loose, loose.first_remaining())
        self._enter_groups(loose or batch, groups)
        return loose

    def finish(self, batch: Batch, mask: int) -> None:
        """Finish messages of a batch, as far as they were unfinished until now. With the last of them it is for `end`."""
        remaining = batch.remaining
        mask &= remaining
        self.batches.loose_changes(batch)
        batch.remaining = remaining ^ mask
        self.in_flight -= mask.bit_count()
        if batch.groups is not None:
            self._finish_in_groups(batch, batch.groups, mask)

    def end(self, batch: Batch, *, is_remembered: bool) -> None:
        """Nothing of the batch is unfinished any more."""
        self._ungrouped -= batch.groups is None
        attempts = self._attempts.get(batch.attempt_id)
        if attempts is not None and batch.pop_time_ms in attempts:
            del attempts[batch.pop_time_ms]
            if not attempts:
                del self._attempts[batch.attempt_id]
        self.batches.end(batch, is_remembered=is_remembered)

    def finish_rows(self, entries: Iterable[tuple[int, int]], *, acked: bool) -> Finished:
        """Both at once for most batches, as `Batches.finish_rows` says."""
        finished = self.batches.finish_rows(entries, acked=acked)
        self.in_flight -= finished.messages
        self._ungrouped -= finished.batches
        return finished

    def came_back(self, batch: Batch) -> None:
        """Its messages wait to be taken again."""
        if batch.groups is None:
            return
        if len(self._free) > 2 * self.in_flight + 64:
            self._free = [each for each in set(self._free) if self._is_free(*each)]
            heapq.heapify(self._free)
        for place in batch.remaining_places():
            if self.order.is_first(batch.groups[place], batch.offset_at(place)):
                heapq.heappush(self._free, (batch.offset_at(place), batch.pop_time_ms))

    def committed_offset(self) -> int:
        """Every offset below it is finished."""
        lowest = self._floor.lowest()
        return self.next_offset if lowest is None else min(lowest, self.next_offset)

    def oldest_pop_time_ms(self) -> int | None:
        """When the messages that clients have longest were taken; None without any."""
        return None if self.in_flight == self.returned else self.batches.first_held()

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When an ordered queue that gives nothing, because a client has messages of it, gives them again unless they are
        finished earlier; None = it is not blocked."""
        first = next(iter(self.batches.values()), None)
        if first is not None and first.ordered and self.keeps_groups:
            if self.passed_over < MAX_PASSED_OVER or self.free_places("", now_ms, 1):
                return None
            # none at all where a new master has not looked yet at what was passed over
            until_ms = min((each.due_ms for each in self.batches.values() if not each.is_passed_over), default=None)
            return None if until_ms is None else max(now_ms, until_ms)
        if first is None or not first.ordered or not isinstance(self.ordered_plan("", now_ms), Blocked):
            return None
        ((head, _),) = self._floor.unfinished(1, lambda _: True)
        return max(now_ms, head.due_ms)

    def has_attempt(self, attempt_id: str) -> bool:
        """Whether something is with the client of this attempt."""
        return attempt_id in self._attempts

    # ---- order of message groups

    @property
    def keeps_groups(self) -> bool:
        """Whether all that is unfinished knows its message groups."""
        return not self._ungrouped

    def waiting_groups(self, now_ms: int, earlier: Sequence[QueueLedger] = ()) -> Iterator[WaitingGroup]:
        """The message groups that have messages which were passed over, and one before them that is with a client; `earlier` are
        the queues of what moved away from before them. The offset is one of a message of the group here."""
        if not self.keeps_groups:
            return
        for group, waiting in self.order.passed_over.items():
            first = self.order.at(group, 0)
            assert first is not None
            until = (each.held_until_ms(group, now_ms) for each in (*earlier, self))
            until_ms = next((each for each in until if each is not None), None)
            if until_ms is not None:
                yield WaitingGroup(first[0], until_ms, waiting)

    def held_until_ms(self, group: int, now_ms: int) -> int | None:
        """Until when a client has the first unfinished message of a message group; None when none has it."""
        first = self.order.at(group, 0)
        batch = self.batches[first[1]] if first is not None else None
        if batch is None or batch.is_returned or batch.is_passed_over:
            return None
        return max(now_ms, batch.due_ms)

    def free_places(self, attempt_id: str, now_ms: int, count: int, waiting: Collection[int] = ()) -> list[Place]:
        """What came back or was passed over and may be taken now, `count` messages at most, ascending: nothing of its message
        group is before it but what is taken with it. A repeated attempt gets its own messages again, uncounted. Of the groups
        `waiting` nothing may be taken, not even its own: something of them is in another queue, before all that is here.

        Costs what it gives, and those groups, whatever waits.
        """
        own = {each for each in self._attempts.get(attempt_id, ()) if not self.batches[each].is_over(now_ms)}
        heads = [(place.offset, place.batch.pop_time_ms) for place in self._first_of(own, waiting)]
        heapq.heapify(heads)
        free, walked = self._free, []
        found: dict[int, Place] = {}  # by offset
        taken: dict[int, int] = {}  # messages of each group
        while len(found) < count:
            while free and (not heads or free[0] <= heads[0]):
                entry = heapq.heappop(free)
                if self._is_free(*entry):
                    walked.append(entry)
                    if not waiting or self._group_at(*entry) not in waiting:
                        heapq.heappush(heads, entry)
            if not heads:
                break
            offset, pop_time_ms = heapq.heappop(heads)
            if offset in found:
                continue
            batch = self.batches[pop_time_ms]
            place = batch.place_of(offset)
            found[offset] = Place(batch, place, batch.deliveries(place) + (pop_time_ms not in own))
            group = batch.groups[place] if batch.groups is not None else 0
            taken[group] = taken.get(group, 0) + 1
            following = self.order.at(group, taken[group]) if group else None
            if following is not None and (following[1] in own or self.batches[following[1]].is_returned):
                heapq.heappush(heads, following)
        for entry in set(walked):
            heapq.heappush(free, entry)
        return list(found.values())

    def _first_of(self, pop_times: Iterable[int], waiting: Collection[int]) -> Iterator[Place]:
        """Of these batches what nothing of its group is before, here or, as of the groups `waiting`, in another queue."""
        for pop_time_ms in pop_times:
            batch = self.batches[pop_time_ms]
            for place in batch.remaining_places():
                group = batch.groups[place] if batch.groups is not None else 0
                if group not in waiting and self.order.is_first(group, batch.offset_at(place)):
                    yield Place(batch, place)

    def _is_free(self, offset: int, pop_time_ms: int) -> bool:
        """Whether a message waits to be taken again, and is the first of its group."""
        batch = self.batches.get(pop_time_ms)
        if batch is None or batch.groups is None or not batch.is_returned:
            return False
        place = batch.place_of(offset)
        is_there = place >= 0 and bool(batch.remaining >> place & 1)
        return is_there and self.order.is_first(batch.groups[place], offset)

    def _group_at(self, offset: int, pop_time_ms: int) -> int:
        """The message group of an unfinished message."""
        batch = self.batches[pop_time_ms]
        assert batch.groups is not None
        return batch.groups[batch.place_of(offset)]

    def _enter_groups(self, batch: Batch, groups: Sequence[int]) -> None:
        self._ungrouped -= 1
        is_passed_over = batch.is_passed_over
        for place in batch.remaining_places():
            self.passed_over += is_passed_over
            if groups[place]:
                offset = batch.offset_at(place)
                self.order.add(groups[place], offset, batch.pop_time_ms, is_passed_over=is_passed_over)

    def _finish_in_groups(self, batch: Batch, groups: Sequence[int], mask: int) -> None:
        is_passed_over = batch.is_passed_over
        for place in range(batch.count):
            if not mask >> place & 1:
                continue
            self.passed_over -= is_passed_over
            if groups[place]:
                first = self.order.remove(groups[place], batch.offset_at(place), is_passed_over=is_passed_over)
                if first is not None and self.batches[first[1]].is_returned:
                    heapq.heappush(self._free, first)

    # ---- order of the queue

    def unfinished(self, count: int, wanted: Callable[[Batch], bool]) -> list[tuple[Batch, int]]:
        """The lowest unfinished offsets, as (batch, place), up to the first one of a batch that is not wanted."""
        return self._floor.unfinished(count, wanted)

    def ordered_plan(self, attempt_id: str, now_ms: int, count: int = MAX_BATCH) -> OrderedPlan:
        """What an ordered pop may take now, `count` messages at most. The earliest unfinished message decides.

        What came back is given again as far as nothing before it is with a client; how it was taken, in order or not, does not
        matter. A repeated attempt (a client that lost the answer asks again with the same id) gets its own batch again,
        uncounted.
        """
        if not self.batches:
            return Fresh()

        def is_own(batch: Batch) -> bool:
            return batch.due_ms > now_ms and bool(attempt_id) and batch.attempt_id == attempt_id

        found = self.unfinished(count, lambda batch: batch.may_come_again(now_ms) or is_own(batch))
        if not found:
            return Blocked()
        return Again([Place(batch, place, batch.deliveries(place) + (not is_own(batch))) for batch, place in found])
