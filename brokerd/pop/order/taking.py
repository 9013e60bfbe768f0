"""What an ordered pop takes of each queue: the earliest unfinished message decides, of the queue or of each message group.

Where the group keeps order in each message group, new messages whose group waits are passed over (`queue_ledger`): the plan names
them, and a pop that follows it remembers them, whether it takes anything else or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.passed import Passed
from brokerd.pop.order.passing import Passing
from brokerd.pop.picking import Picking
from brokerd.pop.plan import Source, Work
from brokerd.pop.queue_ledger import Again, Fresh
from brokerd.pop.visits import Visits

_NONE: Final[frozenset[int]] = frozenset()


class OrderedTaking:
    """Used by `Taker` for groups that keep order."""

    def __init__(self, ledger: PopLedger, visits: Visits, picking: Picking, passed: Passed) -> None:
        self._ledger = ledger
        self._visits = visits
        self._picking = picking
        self._passed = passed

    def take(self, work: Work, copied: Sequence[Source], asked: Source) -> None:
        """From the retry topics first: what moved there comes before what stayed, of the queue or of its message group."""
        request = work.request
        for source in copied:
            self._take(work, source)
        waiting: frozenset[int] | None = _NONE
        if copied and self._passed.has_copies(request.group, asked.topic, request.init_mode):
            keeps_groups = work.taking.keeps_groups
            waiting = self._passed.groups_with_copies(request.group, asked.topic) if keeps_groups else None
        if waiting is not None:
            self._take(work, asked, waiting)

    # ---- inside

    def _take(self, work: Work, source: Source, waiting: frozenset[int] = _NONE) -> None:
        """Of the message groups `waiting` nothing is free: something of them is in another queue."""
        request, taking = work.request, work.taking
        for queue_id in self._queue_ids(work, source):
            if taking.is_full:
                return
            queue = self._ledger.queue(request.group, source.topic, queue_id)
            if taking.keeps_groups and (queue is None or queue.keeps_groups):
                self._take_in_groups(work, source, queue_id, waiting)
                continue
            if waiting:
                continue  # what is unfinished here has the order of the queue
            plan = queue.ordered_plan(request.attempt_id, work.now_ms, taking.messages_left) if queue else Fresh()
            if isinstance(plan, Again):
                if (
                    not self._picking.again(work, source.topic, [place.as_older() for place in plan.places])
                    and taking.dropped
                ):
                    taking.more = True
            elif isinstance(plan, Fresh) and queue_id < source.queues:
                self._picking.of_queue(work, source, queue_id)

    def _take_in_groups(self, work: Work, source: Source, queue_id: int, waiting: frozenset[int]) -> None:
        """What waits and is free, and behind it what is new and whose message group does not wait."""
        request, taking = work.request, work.taking
        queue = self._ledger.queue(request.group, source.topic, queue_id)
        places = queue.free_places(request.attempt_id, work.now_ms, taking.messages_left, waiting) if queue else ()
        dropped = len(taking.dropped)
        older = [place.as_older() for place in places]
        if older and not self._picking.again(work, source.topic, older) and len(taking.dropped) > dropped:
            taking.more = True
        if queue_id < source.queues and not taking.is_full:
            taken = {each for each, _ in work.again.get((source.topic, queue_id), ())}
            taken.update(each for _, each in taking.dropped[dropped:])
            passing = Passing(
                queue, [place for place, each in zip(places, older, strict=True) if each in taken], waiting
            )
            self._picking.of_queue(work, source, queue_id, passing)

    def _queue_ids(self, work: Work, source: Source) -> Sequence[int]:
        """First what was taken of queues that are not read any more; a repeated attempt looks first where its batch is."""
        queues = self._ledger.queues_of(work.request.group, source.topic)
        left = sorted(queue.queue_id for queue in queues if queue.queue_id >= source.queues and queue.batches)
        queue_ids = [*left, *self._visits.queue_ids(work, source)]
        attempt_id = work.request.attempt_id
        if not attempt_id or len(queue_ids) == 1:
            return queue_ids
        own = {queue.queue_id for queue in queues if queue.has_attempt(attempt_id)}
        return sorted(queue_ids, key=lambda queue_id: queue_id not in own) if own else queue_ids
