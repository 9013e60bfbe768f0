"""Requests that wait for messages: who waits for what, until when, and who is tried when something arrives.

A waiter is parked under (topic, group, queue), queue -1 for any. There is no task and no timer per waiter: one table, one timer
for the earliest deadline, and one turn of the loop that serves whatever was marked as arrived since the last.

Why no wake-up is lost: looking for messages and parking happen in one turn of the loop, and a message becomes readable in some
turn before its arrival is told. So a waiter either saw the message, or is parked when the mark for it is served.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from brokerd.loop.scheduler import Scheduler, Timer

ANY_QUEUE: Final = -1
_SWEEP_SLACK: Final = 64


class Payload(Protocol):
    """What waits."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Hashes of the tags that it waits for, None for any message."""


T = TypeVar("T", bound=Payload)


class Waiter(Generic[T]):
    """One parked request; `pop.requests.Parked`."""

    __slots__ = ("_table", "group", "is_parked", "number", "payload", "queue_id", "topic")

    def __init__(self, table: WaitTable[T], number: int, topic: str, group: str, queue_id: int, payload: T) -> None:
        self._table = table
        self.number = number
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.payload = payload
        self.is_parked = True

    def cancel(self) -> None:
        self._table.remove(self)


class WaitTable(Generic[T]):
    """The parked requests (pure)."""

    def __init__(self, max_per_key: int, max_total: int) -> None:
        self._max_per_key = max_per_key
        self._max_total = max_total
        self._topics: dict[str, dict[int, dict[str, dict[Waiter[T], None]]]] = {}
        # Numbers of waiters by deadline; those that are gone stay in it for a while, and nothing that they held.
        self._deadlines: list[tuple[int, int]] = []
        self._numbered: dict[int, Waiter[T]] = {}
        self._last_number = 0

    @property
    def count(self) -> int:
        return len(self._numbered)

    def park(self, topic: str, group: str, queue_id: int, deadline_ms: int, payload: T) -> Waiter[T] | None:
        """None when too many wait already."""
        if len(self._numbered) >= self._max_total:
            return None
        waiters = self._topics.setdefault(topic, {}).setdefault(queue_id, {}).setdefault(group, {})
        if len(waiters) >= self._max_per_key:
            return None
        number = self._last_number = self._last_number + 1
        waiter = self._numbered[number] = Waiter(self, number, topic, group, queue_id, payload)
        waiters[waiter] = None
        if len(self._deadlines) > 2 * len(self._numbered) + _SWEEP_SLACK:
            self._deadlines = [each for each in self._deadlines if each[1] in self._numbered]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_ms, number))
        return waiter

    def remove(self, waiter: Waiter[T]) -> None:
        """Nothing happens when it does not wait any more."""
        if not waiter.is_parked:
            return
        waiter.is_parked = False
        del self._numbered[waiter.number]
        queues = self._topics[waiter.topic]
        groups = queues[waiter.queue_id]
        waiters = groups[waiter.group]
        del waiters[waiter]
        if not waiters:
            del groups[waiter.group]
            if not groups:
                del queues[waiter.queue_id]
                if not queues:
                    del self._topics[waiter.topic]

    def keys(self, topic: str, queue_id: int) -> list[tuple[str, int]]:
        """(group, queue) of those whom a message in the queue may concern; every queue for ANY_QUEUE."""
        queues = self._topics.get(topic)
        if queues is None:
            return []
        wanted = queues if queue_id == ANY_QUEUE else (ANY_QUEUE, queue_id)
        return [(group, each) for each in wanted for group in queues.get(each, ())]

    def waiters(self, topic: str, group: str, queue_id: int) -> list[Waiter[T]]:
        """Those of one key, longest waiting first."""
        return list(self._topics.get(topic, {}).get(queue_id, {}).get(group, ()))

    def all(self) -> Iterator[Waiter[T]]:
        for queues in list(self._topics.values()):
            for groups in list(queues.values()):
                for waiters in list(groups.values()):
                    yield from list(waiters)

    def next_deadline_ms(self) -> int | None:
        while self._deadlines and self._deadlines[0][1] not in self._numbered:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def take_expired(self, now_ms: int) -> list[Waiter[T]]:
        """Remove and return those whose deadline passed."""
        expired = []
        while (deadline_ms := self.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            waiter = self._numbered[heapq.heappop(self._deadlines)[1]]
            self.remove(waiter)
            expired.append(waiter)
        return expired


class LongPolling(Generic[T]):
    """The table with its timer.

    `try_again(waiter)` answers the waiter if it can now and says whether it did; `timed_out(waiter)` answers one whose deadline
    passed. With `share`, waiters of one key compete for the same messages: when one finds nothing, the others are not tried.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        table: WaitTable[T],
        try_again: Callable[[Waiter[T]], bool],
        timed_out: Callable[[Waiter[T]], None],
        *,
        share: bool,
    ) -> None:
        self.table = table
        self._scheduler = scheduler
        self._try_again = try_again
        self._timed_out = timed_out
        self._share = share
        self._marks: dict[tuple[str, str | None, int], set[int] | None] = {}
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def park(self, topic: str, group: str, queue_id: int, deadline_ms: int, payload: T) -> Waiter[T] | None:
        """None when too many wait already."""
        waiter = self.table.park(topic, group, queue_id, deadline_ms, payload)
        if waiter is not None:
            self._arm()
        return waiter

    def arrived(
        self, topic: str, queue_id: int, tags_codes: Collection[int] | None = None, group: str | None = None
    ) -> None:
        """Something is there for those who wait for the queue (ANY_QUEUE: for any of the topic): serve them in the next turn.

        `tags_codes` None = it may be for any of them; `group` None = for every group.
        """
        if not self.table.keys(topic, queue_id):
            return
        if not self._marks:
            self._scheduler.call_soon(self._serve)
        key = (topic, group, queue_id)
        if tags_codes is None:
            self._marks[key] = None
        else:
            codes = self._marks.setdefault(key, set())
            if codes is not None:
                codes.update(tags_codes)

    def take_all(self) -> Sequence[Waiter[T]]:
        """Remove and return everybody."""
        waiters = list(self.table.all())
        for waiter in waiters:
            self.table.remove(waiter)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiters

    # ---- inside

    def _serve(self) -> None:
        marks, self._marks = self._marks, {}
        for (topic, only_group, queue_id), codes in marks.items():
            for group, key_queue_id in self.table.keys(topic, queue_id):
                if only_group is None or group == only_group:
                    self._serve_key(topic, group, key_queue_id, codes)

    def _serve_key(self, topic: str, group: str, queue_id: int, codes: set[int] | None) -> None:
        for waiter in self.table.waiters(topic, group, queue_id):
            wanted = waiter.payload.tags_codes
            if not waiter.is_parked or (wanted is not None and codes is not None and wanted.isdisjoint(codes)):
                continue
            if self._try_again(waiter):
                self.table.remove(waiter)
            elif self._share:
                return

    def _arm(self) -> None:
        deadline_ms = self.table.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        self._timer = self._scheduler.call_later(max(0.0, deadline_ms / 1000 - self._scheduler.time()), self._deadline)

    def _deadline(self) -> None:
        self._timer = None
        # A timer may fire a fraction of a millisecond early: what is due within this one is due.
        for waiter in self.table.take_expired(int(self._scheduler.time() * 1000) + 1):
            self._timed_out(waiter)
        self._arm()
