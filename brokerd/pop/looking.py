"""Looking without taking: whether a group would get messages, now or as soon as some come, and which ones.

Nothing here is recorded or changes what a pop gets. A notice that there are messages is a hint: others may take them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.pop.admission import admit
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import Again, Blocked
from brokerd.pop.requests import Parked, PopRequest
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.taking import read_offsets, returned_queues
from remoting import codes
from remoting.errors import NotMaster, RequestError, as_request_error
from remoting.names import RETRY_PREFIX


class Notice(NamedTuple):
    """The answer to a wait for messages. `is_full`: too many wait already, so this one does not."""

    has_messages: bool = False
    is_full: bool = False
    error: RequestError | None = None


class Peeked(NamedTuple):
    """Stored records that a pop would get now, and how many more there are."""

    records: list[bytes]
    rest_count: int


Noticed = Callable[[Notice], None]


class _Waiting(NamedTuple):
    request: PopRequest
    done: Noticed
    tags_codes: frozenset[int] | None = None


class PopLooking:
    """Owned by the pop service, which calls `arrived` for whatever may let a pop succeed."""

    def __init__(self, around: Surroundings, ledger: PopLedger, is_serving: Callable[[], bool]) -> None:
        self._around = around
        self._ledger = ledger
        self._is_serving = is_serving
        self._polling: LongPolling[_Waiting] = LongPolling(
            around.scheduler,
            WaitTable(around.settings.max_waiting_per_queue, around.settings.max_waiting),
            self._try_again,
            lambda waiter: waiter.payload.done(Notice()),
            share=False,
        )
        self.arrived = self._polling.arrived

    # ---- requests

    def peek(self, request: PopRequest) -> Peeked:
        """What a pop would get now. Raises RequestError when that pop would be refused."""
        self._admit(request)
        records: list[bytes] = []
        rest_count = 0
        room = self._around.settings.max_batch_bytes
        for topic, queue_id in self._queues(request):
            offset = self._next_offset(request, topic, queue_id)
            if offset is None:
                continue
            left = request.max_count - len(records)
            if left > 0 and room > 0:
                found = self._again(request, queue_id, left)
                if found is None:
                    result = self._around.reads.read_messages(topic, queue_id, offset, left, room)
                    found, offset = result.records, max(offset, result.next_offset)
                records += found
                room -= sum(map(len, found))
            rest_count += max(0, self._around.reads.max_offset(topic, queue_id) - offset)
        return Peeked(records, rest_count)

    def notify(self, request: PopRequest, done: Noticed) -> Parked | None:
        """Tell when a pop would get something, `deadline_ms` of the request at the latest; None = told at once."""
        try:
            self._admit(request)
        except RequestError as error:
            done(Notice(error=as_request_error(error)))
            return None
        if self._has_messages(request):
            done(Notice(has_messages=True))
            return None
        if request.deadline_ms <= int(self._around.scheduler.time() * 1000) + 1:
            done(Notice())
            return None
        waiter = self._polling.park(
            request.topic, request.group, request.queue_id, request.deadline_ms, _Waiting(request, done)
        )
        if waiter is None:
            done(Notice(is_full=True))
        return waiter

    def end(self, error: RequestError, group: str | None = None, topic: str | None = None) -> None:
        """Nobody of the group, or for the topic, gets anything here any more: whoever waits is told why."""
        for waiter in list(self._polling.table.all()):
            if group in (None, waiter.group) and topic in (None, waiter.topic):
                waiter.cancel()
                waiter.payload.done(Notice(error=as_request_error(error)))

    @property
    def waiting_count(self) -> int:
        """How many wait to be told."""
        return self._polling.table.count

    # ---- inside

    def _admit(self, request: PopRequest) -> None:
        if not self._is_serving():
            raise NotMaster
        admit(request, self._around.metadata, self._around.settings)

    def _try_again(self, waiter: Waiter[_Waiting]) -> bool:
        request = waiter.payload.request
        if self._around.metadata.is_forbidden(request.group, request.topic):
            error = RequestError(
                codes.NO_PERMISSION, f"consumer group {request.group} is forbidden to read {request.topic}"
            )
            waiter.payload.done(Notice(error=as_request_error(error)))
            return True
        if not self._has_messages(request):
            return False
        waiter.payload.done(Notice(has_messages=True))
        return True

    def _has_messages(self, request: PopRequest) -> bool:
        for topic, queue_id in self._queues(request):
            offset = self._next_offset(request, topic, queue_id)
            if offset is not None and (
                offset < self._around.reads.max_offset(topic, queue_id) or self._again(request, queue_id, 1)
            ):
                return True
        return False

    def _queues(self, request: PopRequest) -> Iterator[tuple[str, int]]:
        """Where a pop looks: what came back, unless it is ordered, then the topic's queues."""
        if not request.fifo and not request.topic.startswith(RETRY_PREFIX):
            for name, _, queue_id in returned_queues(self._around.metadata, request):
                yield name, queue_id
        config = self._around.metadata.topic(request.topic)
        every = range(config.read_queue_nums if config is not None else 0)
        for queue_id in (request.queue_id,) if request.queue_id >= 0 else every:
            yield request.topic, queue_id

    def _next_offset(self, request: PopRequest, topic: str, queue_id: int) -> int | None:
        """Where a pop reads on, for a group that never did at the first message; None = an ordered queue is blocked."""
        queue = self._ledger.queue(request.group, topic, queue_id)
        committed = self._around.metadata.consumer_offset(request.group, topic, queue_id) or 0
        if queue is not None:
            if request.fifo and isinstance(queue.ordered_plan(request.attempt_id, self._around.now_ms()), Blocked):
                return None
            committed = max(committed, queue.next_offset)
        return max(committed, self._around.reads.min_offset(topic, queue_id))

    def _again(self, request: PopRequest, queue_id: int, count: int) -> list[bytes] | None:
        """What an ordered queue gives again before anything else; None when it goes on."""
        queue = self._ledger.queue(request.group, request.topic, queue_id) if request.fifo else None
        plan = queue.ordered_plan(request.attempt_id, self._around.now_ms()) if queue is not None else None
        if not isinstance(plan, Again):
            return None
        found = read_offsets(self._around.reads, request.topic, queue_id, plan.offsets[:count])
        return [found[offset] for offset in sorted(found)]
