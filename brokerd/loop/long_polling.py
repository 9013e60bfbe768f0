"""Requests that wait for messages: who waits for what, until when, and who is tried when something arrives.

A waiter is parked under (topic, group, queue), queue -1 for any. There is no task and no timer per waiter: one table, one timer
for the earliest deadline, and one turn of the loop that serves whatever was marked as arrived since the last.

Why no wake-up is lost: looking for messages and parking happen in one turn of the loop, and a message becomes readable in some
turn before its arrival is told. So a waiter either saw the message, or is parked when the mark for it is served.

Of those who compete, clients are served in turns, whoever was served last at last; each client's longest waiting comes first. A
client that waits very often gets no more by that, and when the table is full, no more places than another one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from brokerd.loop.scheduler import Scheduler, Timer

ANY_QUEUE: Final = -1
_SWEEP_SLACK: Final = 64
_MOST_AT_ONCE: Final = 64
# that are tried alone in one turn: each may look through many messages, and one message may concern everybody who waits
_TRIED_AT_ONCE: Final = 16


class Payload(Protocol):
    """What waits."""

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """Hashes of the tags that it waits for, None for any message."""

    @property
    def client(self) -> str:
        """Whose it is."""


T = TypeVar("T", bound=Payload)
Stand = Callable[[T, Callable[[], None], Callable[[], bool]], bool]


class Waiter(Generic[T]):
    """One parked request."""

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


class _Clients(Generic[T]):
    """Waiters by client: those who wait longest first in each, and the client of which one went last behind the others."""

    __slots__ = ("by_client",)

    def __init__(self) -> None:
        self.by_client: dict[str, dict[Waiter[T], None]] = {}

    def add(self, waiter: Waiter[T]) -> int:
        """How many the client has now."""
        client = waiter.payload.client
        own = self.by_client.get(client)
        if own is None:
            self.by_client[client] = {waiter: None}
            return 1
        own[waiter] = None
        return len(own)

    def remove(self, waiter: Waiter[T]) -> int:
        """How many the client has now."""
        client = waiter.payload.client
        own = self.by_client.pop(client)
        del own[waiter]
        if own:
            self.by_client[client] = own
        return len(own)

    def in_turns(self) -> Iterator[Waiter[T]]:
        """Nothing may change meanwhile."""
        left: Iterable[Iterator[Waiter[T]]] = map(iter, self.by_client.values())  # who wants a few looks at so many
        while left:
            again = []
            for own in left:
                waiter = next(own, None)
                if waiter is not None:
                    yield waiter
                    again.append(own)
            left = again


class WaitTable(Generic[T]):
    """The parked requests (pure), so many of one client and in all."""

    def __init__(self, max_per_client: int, max_total: int) -> None:
        self._max_per_client = max_per_client
        self._max_total = max_total
        self._clients: _Clients[T] = _Clients()
        self._sized: dict[int, dict[str, None]] = {}  # the clients that have so many
        self.most_of_one_client = 0
        self._topics: dict[str, dict[int, dict[str, _Clients[T]]]] = {}
        # Numbers of waiters by deadline; those that are gone stay in it for a while, and nothing that they held.
        self._deadlines: list[tuple[int, int]] = []
        self._numbered: dict[int, Waiter[T]] = {}
        self._last_number = 0

    @property
    def count(self) -> int:
        return len(self._numbered)

    def park(
        self, topic: str, group: str, queue_id: int, deadline_ms: int, payload: T
    ) -> tuple[Waiter[T] | None, Waiter[T] | None]:
        """The new waiter, None when too many wait already; and who has to go for it: where the table is full, the newest of the
        client that has most, for one that has less than its share."""
        displaced = None
        own = len(self._clients.by_client.get(payload.client, ()))
        if own >= self._max_per_client:
            return None, None
        if len(self._numbered) >= self._max_total:
            share = self._max_total // (len(self._clients.by_client) + (own == 0))
            if own >= share or self.most_of_one_client <= share:
                return None, None
            greediest = next(iter(self._sized[self.most_of_one_client]))
            displaced = next(reversed(self._clients.by_client[greediest]))
            self.remove(displaced)
        number = self._last_number = self._last_number + 1
        waiter = self._numbered[number] = Waiter(self, number, topic, group, queue_id, payload)
        self._count(payload.client, own, self._clients.add(waiter))
        groups = self._topics.setdefault(topic, {}).setdefault(queue_id, {})
        clients = groups.get(group)
        if clients is None:
            clients = groups[group] = _Clients()
        clients.add(waiter)
        if len(self._deadlines) > 2 * len(self._numbered) + _SWEEP_SLACK:
            self._deadlines = [each for each in self._deadlines if each[1] in self._numbered]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (deadline_ms, number))
        return waiter, displaced

    def remove(self, waiter: Waiter[T]) -> None:
        """Nothing happens when it does not wait any more."""
        if not waiter.is_parked:
            return
        waiter.is_parked = False
        del self._numbered[waiter.number]
        left = self._clients.remove(waiter)
        self._count(waiter.payload.client, left + 1, left)
        queues = self._topics[waiter.topic]
        groups = queues[waiter.queue_id]
        clients = groups[waiter.group]
        clients.remove(waiter)
        if not clients.by_client:
            del groups[waiter.group]
            if not groups:
                del queues[waiter.queue_id]
                if not queues:
                    del self._topics[waiter.topic]

    def is_awaited(self, topic: str) -> bool:
        """Whether somebody waits for any queue of the topic."""
        return topic in self._topics

    def keys(self, topic: str, queue_id: int) -> list[tuple[str, int]]:
        """(group, queue) of those whom a message in the queue may concern; every queue for ANY_QUEUE."""
        queues = self._topics.get(topic)
        if queues is None:
            return []
        wanted = queues if queue_id == ANY_QUEUE else (ANY_QUEUE, queue_id)
        return [(group, each) for each in wanted for group in queues.get(each, ())]

    def waiters(self, topic: str, group: str, queue_id: int) -> Iterator[Waiter[T]]:
        """Those of one key, in turns between clients. Nothing may change meanwhile."""
        clients = self._topics.get(topic, {}).get(queue_id, {}).get(group)
        return clients.in_turns() if clients is not None else iter(())

    def all(self) -> Iterator[Waiter[T]]:
        yield from list(self._numbered.values())

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

    def _count(self, client: str, before: int, now: int) -> None:
        """A client has one more or one less than before."""
        if before:
            same = self._sized[before]
            del same[client]
            if not same:
                del self._sized[before]
        if now:
            self._sized.setdefault(now, {})[client] = None
        if now > self.most_of_one_client:
            self.most_of_one_client = now
        elif self.most_of_one_client and self.most_of_one_client not in self._sized:
            self.most_of_one_client -= 1


class LongPolling(Generic[T]):
    """The table with its timer.

    `try_again(waiters)` answers those that it can now, from the first on, and says how many; `timed_out(waiter)` answers one
    whose deadline passed. With `share`, waiters of one key compete for the same messages: they are tried some at a time, and when
    one finds nothing, those behind it are not tried. Without, each is tried alone, so many in a turn and the others in the next;
    or with `stand` in a line, whose turn it calls when the other call says that he still waits. False: there is no room.
    `trying` is told who is tried alone in one turn.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        table: WaitTable[T],
        try_again: Callable[[Sequence[Waiter[T]]], int],
        timed_out: Callable[[Waiter[T]], None],
        *,
        share: bool,
        stand: Stand[T] | None = None,
    ) -> None:
        self.table = table
        self.trying: Callable[[Sequence[Waiter[T]]], None] | None = None
        self.is_awaited = table.is_awaited
        self._stand = stand
        self._scheduler = scheduler
        self._try_again = try_again
        self._timed_out = timed_out
        self._share = share
        self._marks: dict[tuple[str, str | None, int], set[int] | None] = {}
        self._enough: dict[tuple[str, str | None, int], int] = {}
        self._to_try: dict[Waiter[T], None] = {}  # alone, in this order, or each in its place in a line
        self._goes_on = False  # with them, in the next turn
        self._timer: Timer | None = None
        self._timer_at_ms = 0

    def park(self, topic: str, group: str, queue_id: int, deadline_ms: int, payload: T) -> Waiter[T] | None:
        """None when too many wait already. One that has to go for it is told that its time is over."""
        waiter, displaced = self.table.park(topic, group, queue_id, deadline_ms, payload)
        if displaced is not None:
            self._scheduler.call_soon(self._timed_out, displaced)
        if waiter is not None:
            self._arm()
        return waiter

    def arrived(
        self,
        topic: str,
        queue_id: int,
        tags_codes: Collection[int] | None = None,
        group: str | None = None,
        enough_for: int = 1,
    ) -> None:
        """Something is there for those who wait for the queue (ANY_QUEUE: for any of the topic): serve them in the next turn.

        `tags_codes` None = it may be for any of them; `group` None = for every group. `enough_for` so many of those who share it,
        at least: they are tried together.
        """
        if not self.table.keys(topic, queue_id):
            return
        if not self._marks:
            self._scheduler.call_soon(self.serve)
        key = (topic, group, queue_id)
        if enough_for > 1:
            self._enough[key] = enough_for
        if tags_codes is None:
            self._marks[key] = None
        else:
            codes = self._marks.setdefault(key, set())
            if codes is not None:
                codes.update(tags_codes)

    def take_all(self) -> Sequence[Waiter[T]]:
        """Remove and return everybody."""
        waiters = list(self.table.all())
        self._to_try.clear()
        for waiter in waiters:
            self.table.remove(waiter)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return waiters

    def serve(self) -> None:
        """Serve now whatever is marked; those who come newly are served behind those who wait."""
        marks, self._marks = self._marks, {}
        enough, self._enough = self._enough, {}
        for mark, codes in marks.items():
            topic, only_group, queue_id = mark
            first = min(enough.get(mark, 1), _MOST_AT_ONCE)
            for group, key_queue_id in self.table.keys(topic, queue_id):
                if only_group is None or group == only_group:
                    self._serve_key(topic, group, key_queue_id, codes, first)
        if not self._goes_on and self._stand is None:
            self._try_some()

    # ---- inside

    def _serve_key(self, topic: str, group: str, queue_id: int, codes: set[int] | None, first: int) -> None:
        """`first`: so many are tried at once."""
        if self._stand is not None:
            for waiter in self._wanting(topic, group, queue_id, codes):
                if waiter in self._to_try:
                    continue
                if self._stand(waiter.payload, partial(self._try_one, waiter), partial(self._still_waits, waiter)):
                    self._to_try[waiter] = None
            return
        if not self._share:
            self._to_try.update(dict.fromkeys(self._wanting(topic, group, queue_id, codes)))
            return
        most = first
        while some := list(islice(self._wanting(topic, group, queue_id, codes), most)):
            answered = self._try_again(some)
            for waiter in some[:answered]:
                self.table.remove(waiter)
            if answered < len(some):
                return
            most = min(2 * most, _MOST_AT_ONCE)  # one message is for one of them, a burst for many

    def _try_some(self) -> None:
        some = list(islice(self._to_try, _TRIED_AT_ONCE))
        for waiter in some:
            del self._to_try[waiter]
        self._goes_on = bool(self._to_try)
        if self._goes_on:
            self._scheduler.call_soon(self._try_some)
        if self.trying is not None:
            self.trying(some)
        for waiter in some:
            if waiter.is_parked and self._try_again([waiter]):
                self.table.remove(waiter)

    def _still_waits(self, waiter: Waiter[T]) -> bool:
        self._to_try.pop(waiter, None)
        return waiter.is_parked

    def _try_one(self, waiter: Waiter[T]) -> None:
        if self._try_again([waiter]):
            self.table.remove(waiter)

    def _wanting(self, topic: str, group: str, queue_id: int, codes: set[int] | None) -> Iterator[Waiter[T]]:
        waiters = self.table.waiters(topic, group, queue_id)
        return waiters if codes is None else (waiter for waiter in waiters if _wants(waiter, codes))

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


def _wants(waiter: Waiter[Any], codes: Collection[int]) -> bool:
    wanted = waiter.payload.tags_codes
    return wanted is None or not wanted.isdisjoint(codes)
