"""Pops that are not answered yet: those of this turn of the loop, and those that are parked because nothing was there.

The pops of a turn are looked at together at its end, those of one group and topic in their order. Whoever gets nothing is parked,
tried again when something arrives, and answered at its deadline. Parked pops of one group compete for the same messages, so they
are tried in turns between their clients until one finds nothing, and before those that come newly. These are not tried where a
look for the same has found nothing, and nothing arrived since (`known_empty`).

Where there is much for many, a turn gives so much, and at least one pop of each kind something; the others are served in the next
turns, in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, groupby
from typing import Final

from brokerd.filters.message_filter import ALL, MessageFilter
from brokerd.loop.long_polling import ANY_QUEUE, LongPolling, Waiter, WaitTable
from brokerd.loop.scheduler import Scheduler
from brokerd.pop.counters import PopCounters
from brokerd.pop.giving import Given, OpenPop
from brokerd.pop.known_empty import KnownEmpty
from brokerd.pop.requests import Parked, PopDone, PopOutcome, PopRequest, PopStatus
from brokerd.pop.settings import PopSettings
from remoting.errors import RequestError, as_request_error

_LONG_EXPRESSION: Final = 128  # characters
# that the pops which are answered in one turn of the loop may have asked for: some milliseconds
_MESSAGES_AT_ONCE: Final = 512
_MANY: Final = 64  # more than are tried at once

Question = tuple[object, ...]
Give = Callable[[Sequence[OpenPop]], Given]  # `Giving.give`


class _Pop(OpenPop):
    """It may be parked."""

    __slots__ = ("tags_codes", "waiter")

    def __init__(self, request: PopRequest, message_filter: MessageFilter, done: PopDone) -> None:
        # The filter has what the expression says, and is shared with others; a long text of one's own need not wait with it.
        is_long = len(request.expression) > _LONG_EXPRESSION
        super().__init__(request._replace(expression=ALL) if is_long else request, message_filter, done)
        self.tags_codes = message_filter.tags_codes
        self.waiter: Waiter[_Pop] | None = None

    @property
    def client(self) -> str:
        return self.request.client_id

    @property
    def question(self) -> Question:
        """Equal for pops that one look at the queues serves."""
        request = self.request
        place = request.group, request.topic, request.queue_id
        attempt_id = request.attempt_id if request.fifo else ""
        return *place, request.init_mode, request.fifo, attempt_id, id(self.message_filter)

    def close(self) -> None:
        super().close()
        waiter, self.waiter = self.waiter, None  # which knows this pop: together they would be freed late
        if waiter is not None:
            waiter.cancel()


class PopWaiting:
    """Owned by the pop service. `version` is another number when the metadata has changed."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: PopSettings,
        counters: PopCounters,
        give: Give,
        version: Callable[[], int],
    ) -> None:
        self._scheduler = scheduler
        self._counters = counters
        self._give = give
        self._new: dict[Question, deque[_Pop]] = {}
        self._room = _MESSAGES_AT_ONCE
        self._held_up: set[tuple[str, str]] = (
            set()
        )  # groups and topics of those who wait and had no room in the last turn
        self._empty = KnownEmpty(version)
        self._polling: LongPolling[_Pop] = LongPolling(
            scheduler,
            WaitTable(settings.max_waiting_per_client, settings.max_waiting),
            self._try_again,
            self._timed_out,
            share=True,
        )

    @property
    def count(self) -> int:
        """How many are parked."""
        return self._polling.table.count

    def count_of(self, request: PopRequest) -> int:
        """How many are parked for exactly the request's topic, group and queue."""
        return sum(1 for _ in self._polling.table.waiters(request.topic, request.group, request.queue_id))

    def add(self, request: PopRequest, message_filter: MessageFilter, done: PopDone) -> Parked:
        """Give messages at the end of this turn of the loop, or as soon as some arrive."""
        pop = _Pop(request, message_filter, done)
        if not self._new:
            self._scheduler.call_soon(self._serve_new)
        self._new.setdefault(pop.question, deque()).append(pop)
        return pop

    def arrived(
        self,
        topic: str,
        queue_id: int,
        tags_codes: Collection[int] | None = None,
        group: str | None = None,
        enough_for: int = 1,
    ) -> None:
        """As `LongPolling.arrived`."""
        self._empty.arrived(topic)
        self._polling.arrived(topic, queue_id, tags_codes, group, enough_for)

    def is_awaited(self, topic: str) -> bool:
        """Whether `arrived` would change anything for some queue of the topic."""
        return self._empty.is_known(topic) or self._polling.is_awaited(topic)

    def serve_now(self, topic: str, queue_id: int, group: str) -> None:
        """As `arrived` for one group, in this turn."""
        self.arrived(topic, queue_id, None, group)
        self._polling.serve()

    def end(self, error: RequestError, group: str | None = None, topic: str | None = None) -> None:
        """Nobody of the group, or for the topic, gets anything here any more: whoever waits is told why."""
        parked = [waiter.payload for waiter in self._polling.table.all()]
        for pop in (*chain.from_iterable(self._new.values()), *parked):
            if pop.is_open and group in (None, pop.request.group) and topic in (None, pop.request.topic):
                pop.answer(PopOutcome(PopStatus.REFUSED, error=as_request_error(error)))

    def stop(self, error: RequestError) -> None:
        """The same for everybody."""
        self.end(error)
        self._polling.take_all()
        self._empty.forget()

    # ---- inside

    def _serve_new(self) -> None:
        self._held_up.clear()
        self._polling.serve()
        new, self._new = self._new, {}
        later: dict[Question, deque[_Pop]] = {}
        for question, pops in new.items():
            request = pops[0].request
            if (request.group, request.topic) not in self._held_up:
                self._serve(question, pops)
            if pops:
                later[question] = pops
        if later:
            if not self._new:
                self._scheduler.call_soon(self._serve_new)
            for question, pops in self._new.items():  # of those who asked again when they were answered
                later.setdefault(question, deque()).extend(pops)
            self._new = later

    def _serve(self, question: Question, pops: deque[_Pop]) -> None:
        """What is left in `pops` has no room in this turn."""
        request, message_filter = pops[0].request, pops[0].message_filter
        if self._empty.knows(request.topic, question, message_filter):
            self._park_all(pops)
            pops.clear()
            return
        some = self._with_room(pops)
        answered, more, is_empty = self._give_some(some)
        if answered == len(some):
            return
        if is_empty:
            self._empty.note(request.topic, question, message_filter)
        self._park_all(some[answered:])
        self._park_all(pops)
        pops.clear()
        if more:
            self._scan_on(request)

    def _with_room(self, pops: deque[_Pop]) -> list[_Pop]:
        """Takes as many of them, from the first on, as this turn has room for: one at least."""
        some: list[_Pop] = []
        room = self._room
        while pops and (not some or pops[0].request.max_count <= room):
            pop = pops.popleft()
            if pop.is_open:
                some.append(pop)
                room -= pop.request.max_count
        return some

    def _give_some(self, pops: Sequence[_Pop]) -> Given:
        given = self._give(pops) if pops else Given(0, more=False, is_empty=False)
        if given.answered:
            if self._room == _MESSAGES_AT_ONCE:
                self._scheduler.call_soon(self._begin_turn)
            self._room -= sum(pop.request.max_count for pop in pops[: given.answered])
        return given

    def _begin_turn(self) -> None:
        self._room = _MESSAGES_AT_ONCE

    def _park_all(self, pops: Iterable[_Pop]) -> None:
        for pop in pops:
            if pop.is_open:
                self._park(pop)

    def _park(self, pop: _Pop) -> None:
        """Let it wait, if it has time, and there is room."""
        request = pop.request
        if request.deadline_ms <= int(self._scheduler.time() * 1000) + 1:
            self._counters.empty_pops += 1
            pop.answer(PopOutcome(PopStatus.NOTHING))
            return
        pop.waiter = self._polling.park(request.topic, request.group, request.queue_id, request.deadline_ms, pop)
        if pop.waiter is None:
            self._counters.refused_pops += 1
            pop.answer(PopOutcome(PopStatus.POLLING_FULL))

    def _try_again(self, waiters: Sequence[Waiter[_Pop]]) -> int:
        count = 0
        for _, alike in groupby((waiter.payload for waiter in waiters), lambda pop: pop.question):
            pops = deque(alike)
            request = pops[0].request
            some = self._with_room(pops)
            answered, more, _ = self._give_some(some)
            count += answered
            if more:
                self._scan_on(request)
            if answered < len(some):
                break
            if pops:
                self._held_up.add((request.group, request.topic))
                self._scan_on(request, enough_for=_MANY)
                break
        return count

    def _scan_on(self, request: PopRequest, enough_for: int = 1) -> None:
        """A look through many messages that do not match goes on in the next turn of the loop, and so does giving."""
        self.arrived(request.topic, ANY_QUEUE, None, request.group, enough_for)

    def _timed_out(self, waiter: Waiter[_Pop]) -> None:
        self._counters.empty_pops += 1
        waiter.payload.answer(PopOutcome(PopStatus.NOTHING))
