"""Looking without taking: whether a group would get messages, now or as soon as some come, and which ones.

It makes the plan of a pop (`taking`) and does not carry it out: nothing here is recorded or changes what a pop gets. A notice
that there are messages is a hint: others may take them first. Where a pop would have to look further than it does in one turn, as
its filter let nothing through so far, the notice is given too, for only a pop goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.filters.message_filter import MessageFilter
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.pop.admission import admit
from brokerd.pop.plan import Taking
from brokerd.pop.requests import Parked, PopRequest
from brokerd.pop.surroundings import Surroundings
from remoting import codes
from remoting.errors import LogboomError, NotMaster, RequestError, as_request_error


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


Plan = Callable[[PopRequest, MessageFilter], Taking]


class _Waiting(NamedTuple):
    request: PopRequest
    message_filter: MessageFilter
    done: Noticed

    @property
    def tags_codes(self) -> frozenset[int] | None:
        return self.message_filter.tags_codes

    @property
    def client(self) -> str:
        return self.request.client_id


class PopLooking:
    """Owned by the pop service, which calls `arrived` for whatever may let a pop succeed. `plan` is what a pop would take now."""

    def __init__(self, around: Surroundings, plan: Plan, is_serving: Callable[[], bool]) -> None:
        self._around = around
        self._plan = plan
        self._is_serving = is_serving
        self._polling: LongPolling[_Waiting] = LongPolling(
            around.scheduler,
            WaitTable(around.settings.max_waiting_per_client, around.settings.max_waiting),
            self._try_again,
            lambda waiter: waiter.payload.done(Notice()),
            share=False,
        )
        self.arrived = self._polling.arrived
        self.is_awaited = self._polling.is_awaited

    # ---- requests

    def peek(self, request: PopRequest) -> Peeked:
        """What a pop would get now. Raises LogboomError when that pop would be refused."""
        taking = self._plan(request, self._admit(request))
        return Peeked([record for found in taking.found for record in found.records], taking.rest_count)

    def notify(self, request: PopRequest, done: Noticed) -> Parked | None:
        """Tell when a pop would get something, `deadline_ms` of the request at the latest; None = told at once."""
        try:
            message_filter = self._admit(request)
            has_messages = self._has_messages(request, message_filter)
        except LogboomError as error:
            done(Notice(error=as_request_error(error)))
            return None
        if has_messages:
            done(Notice(has_messages=True))
            return None
        if request.deadline_ms <= int(self._around.scheduler.time() * 1000) + 1:
            done(Notice())
            return None
        waiter = self._polling.park(
            request.topic,
            request.group,
            request.queue_id,
            request.deadline_ms,
            _Waiting(request, message_filter, done),
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

    def _admit(self, request: PopRequest) -> MessageFilter:
        if not self._is_serving():
            raise NotMaster
        return admit(request, self._around.metadata, self._around.settings)

    def _try_again(self, waiters: Sequence[Waiter[_Waiting]]) -> int:
        (waiter,) = waiters
        request, message_filter, done = waiter.payload
        if self._around.metadata.is_forbidden(request.group, request.topic):
            error = RequestError(
                codes.NO_PERMISSION, f"consumer group {request.group} is forbidden to read {request.topic}"
            )
            done(Notice(error=as_request_error(error)))
            return True
        try:
            has_messages = self._has_messages(request, message_filter)
        except LogboomError as unreadable:
            done(Notice(error=as_request_error(unreadable)))
            return True
        if has_messages:
            done(Notice(has_messages=True))
        return has_messages

    def _has_messages(self, request: PopRequest, message_filter: MessageFilter) -> bool:
        taking = self._plan(request, message_filter)
        return bool(taking.found) or taking.more
