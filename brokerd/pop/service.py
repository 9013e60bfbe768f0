"""POP for the endpoints: take, finish, postpone, dead-letter, wait.

The ledger knows what is taken; this shell reads the store, keeps the ledger's records in the replicated log, and answers when
they are acknowledged. Finished and postponed messages of one turn of the loop share one record each. Only a master serves; a
replica follows the records, so that it can go on when it becomes the master.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from brokerd.filters.message_filter import ALL, MessageFilter
from brokerd.journal.journal import Journal, JournalSettings
from brokerd.loop.long_polling import ANY_QUEUE, LongPolling, Waiter, WaitTable
from brokerd.loop.steady_clock import SteadyClock
from brokerd.metadata.start_offsets import StartOffsets
from brokerd.metadata.tables import Change
from brokerd.pop import copies, records
from brokerd.pop.admission import admit
from brokerd.pop.claims import Claims
from brokerd.pop.counters import PopCounters
from brokerd.pop.finishing import Finishing
from brokerd.pop.handles import (
    NORMAL_REVIVE_QUEUE_ID,
    ORDERED_REVIVE_QUEUE_ID,
    split_retry_topic,
)
from brokerd.pop.ledger import PopLedger
from brokerd.pop.looking import PopLooking
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import Parked, PopOutcome, PopRequest, PopStatus
from brokerd.pop.reviver import Reviver
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.taking import Taker, Taking, popped_messages
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import LogboomError, NotMaster, RequestError, as_request_error

log = logging.getLogger(__name__)

PopDone = Callable[[PopOutcome], None]

_LONG_EXPRESSION: Final = 128  # characters


class _Waiting:
    """A parked pop."""

    __slots__ = ("done", "message_filter", "request", "tags_codes")

    def __init__(self, request: PopRequest, message_filter: MessageFilter, done: PopDone) -> None:
        # The filter has what the expression says, and is shared with others; a long text of one's own need not wait with it.
        is_long = len(request.expression) > _LONG_EXPRESSION
        self.request = replace(request, expression=ALL) if is_long else request
        self.message_filter = message_filter
        self.tags_codes = message_filter.tags_codes
        self.done = done


class PopService:
    """POP for both protocols' endpoints, as `requests` says; a `journal.resident.Resident`.

    `is_alive(client_id)` says whether a client that leases messages is there.
    """

    own_topics: Final = frozenset({POP_TOPIC})

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        is_alive: Callable[[str], bool],
        rng: random.Random,
        journal_settings: JournalSettings | None = None,
    ) -> None:
        record_log, scheduler = around.record_log, around.scheduler
        around = replace(around, now_ms=SteadyClock(around.now_ms, scheduler.time))
        self.settings = settings = around.settings
        self.counters = counters = PopCounters()
        self.given_listeners: list[Callable[[str, str, int, int], None]] = []  # (topic, group, messages, bytes)
        self.ledger = ledger
        self.journal = journal = Journal(record_log, POP_TOPIC, ledger, journal_settings)
        self.starts = StartOffsets(around.reads, lambda: record_log.end_offset, settings.recent_log_bytes)
        self._broker_name = around.broker_name
        self._metadata = around.metadata
        self._reads = around.reads
        self._scheduler = scheduler
        self._now_ms = around.now_ms
        self._serving = False
        self._taker = Taker(around, ledger, self.starts, rng)
        self._reviver = Reviver(around, ledger, journal, counters, is_alive, self._wake)
        self._finishing = finishing = Finishing(
            around, ledger, journal, counters, lambda: self._serving, self._ledger_changed
        )
        self.ack, self.change_invisible_time = finishing.ack, finishing.change
        self.forward_to_dead_letter = finishing.forward
        self.looking = PopLooking(around, ledger, lambda: self._serving)
        self._polling: LongPolling[_Waiting] = LongPolling(
            scheduler,
            WaitTable(settings.max_waiting_per_queue, settings.max_waiting),
            self._try_again,
            self._timed_out,
            share=True,
        )

    # ---- requests

    def pop(self, request: PopRequest, done: PopDone) -> Parked | None:
        """Take messages now (`done` follows when that is recorded) or wait until some arrive; None = it does not wait."""
        self.counters.pops += 1
        try:
            if not self._serving:
                raise NotMaster
            message_filter = admit(request, self._metadata, self.settings)
        except LogboomError as error:
            self.counters.refused_pops += 1
            done(PopOutcome(PopStatus.REFUSED, error=as_request_error(error)))
            return None
        answered, more = self._take(request, message_filter, done)
        if answered:
            return None
        if request.deadline_ms <= int(self._scheduler.time() * 1000) + 1:
            self.counters.empty_pops += 1
            done(PopOutcome(PopStatus.NOTHING))
            return None
        waiter = self._polling.park(
            request.topic,
            request.group,
            request.queue_id,
            request.deadline_ms,
            _Waiting(request, message_filter, done),
        )
        if waiter is None:
            self.counters.refused_pops += 1
            done(PopOutcome(PopStatus.POLLING_FULL))
        elif more:
            self._scan_on(request)
        return waiter

    # ---- resident of the log

    def held_offset(self) -> int | None:
        return self.journal.held_offset()

    def dispatched(self, _arrivals: Sequence[Arrival]) -> None:
        """Apply the records that are new here."""
        self.journal.follow()

    def truncated(self, end_offset: int) -> None:
        self.journal.truncated(end_offset)

    def rolled(self) -> None:
        self.journal.want_snapshot()
        self._scheduler.call_soon(self.journal.maintain)

    def rebuild(self) -> None:
        assert not self._serving
        self.journal.rebuild()

    def catch_up(self) -> None:
        self.journal.catch_up()

    def lead(self) -> None:
        """Forget what has no topic or group, and go on with the rest."""
        now_ms = self._now_ms()
        self.ledger.resume(now_ms, self.settings.lease_grace_ms, self.settings.inherited_lease_ms)
        self._serving = True
        for group, topic in {(queue.group, queue.topic) for queue in self.ledger.queues()}:
            if self._metadata.group(group) is None:
                self._drop(group, None)
            elif self._metadata.topic(topic) is None:
                self._drop(None, topic)
        self._scheduler.call_soon(self.journal.maintain)
        self._reviver.start()

    def step_down(self) -> None:
        """Whoever waits is sent to the new master."""
        self._serving = False
        self._reviver.stop()
        self._finishing.refuse_all()
        for waiter in self._polling.take_all():
            waiter.payload.done(PopOutcome(PopStatus.REFUSED, error=NotMaster()))
        self.looking.end(NotMaster())

    close = step_down

    # ---- events

    def arrived(self, arrivals: Sequence[Arrival]) -> None:
        """Messages became readable."""
        for arrival in arrivals:
            self._wake(arrival.topic, arrival.queue_id, None, arrival.tags_codes)
            returned = split_retry_topic(arrival.topic)
            if returned is not None:
                group, topic = returned
                self._wake(topic, ANY_QUEUE, group, arrival.tags_codes)

    def metadata_changed(self, change: Change) -> None:
        """Topics or groups went: so do their entries and those who wait. The master alone says so; replicas read it."""
        if not self._serving:
            return
        for topic in change.topics_deleted:
            self._drop(None, topic)
        for group in change.groups_deleted:
            self._drop(group, None)

    def client_gone(self, client_id: str) -> None:
        """A client that may lease messages died: they come back soon."""
        if self._serving and self.ledger.end_leases(client_id, self._now_ms() + self.settings.gone_client_ms):
            self._reviver.arm()

    # ---- looking

    @property
    def waiting_count(self) -> int:
        """How many pops wait."""
        return self._polling.table.count

    def polling_count(self, request: PopRequest) -> int:
        """How many pops wait for exactly the request's topic, group and queue. Raises RequestError when one would be refused."""
        if not self._serving:
            raise NotMaster
        admit(request, self._metadata, self.settings)
        return len(self._polling.table.waiters(request.topic, request.group, request.queue_id))

    # ---- administration

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Let a group that pops a queue go on at an offset of it; what it took of the queue is forgotten, and cannot be acked.

        What came back of it waits in the retry topic and stays there. Nothing happens where the group never popped. Raises
        LogboomError when the log does not take the record.
        """
        if not self._serving:
            raise NotMaster
        if self.ledger.queue(group, topic, queue_id) is not None:
            self.journal.append(records.RESET, records.reset(group, topic, queue_id, offset))
            self._reviver.arm()
        self._wake(copies.base_topic(group, topic), ANY_QUEUE, group)

    # ---- taking

    def _take(self, request: PopRequest, message_filter: MessageFilter, done: PopDone) -> tuple[bool, bool]:
        """Take what is there and answer: (whether the request is answered, whether there is more to look through)."""
        topic = self._metadata.topic(request.topic)
        group = self._metadata.group(request.group)
        if topic is None or group is None or self._metadata.is_forbidden(request.group, request.topic):
            return False, False
        if group.fifo and not request.fifo:
            request = replace(request, fifo=True)
        now_ms = self._now_ms()
        try:
            taking = self._taker.take(request, message_filter, topic.read_queue_nums, now_ms)
            if taking.lost:
                self._finish_lost(request.group, taking)
            if taking.batches:
                pop_time_ms, end_offset = self._record(request, taking, now_ms)
        except LogboomError as error:
            self.counters.refused_pops += 1
            done(PopOutcome(PopStatus.REFUSED, error=as_request_error(error)))
            return True, False
        if not taking.found:
            return False, taking.more
        self._metadata.take_resets([(request.group, found.topic, found.queue_id) for found in taking.found])

        def acknowledged(status: PutStatus) -> None:
            done(self._outcome(request, taking, pop_time_ms, status))

        self.journal.when_acknowledged(end_offset, acknowledged)
        return True, taking.more

    def _record(self, request: PopRequest, taking: Taking, now_ms: int) -> tuple[int, int]:
        """Append what is taken; return the pop time, which is new in every queue that gave something, and the record's end."""
        pop_time_ms = now_ms
        for found in taking.found:
            queue = self.ledger.queue(request.group, found.topic, found.queue_id)
            if queue is not None and queue.last_pop_time_ms >= pop_time_ms:
                pop_time_ms = queue.last_pop_time_ms + 1
        pop = records.Pop(
            pop_time_ms,
            request.invisible_time_ms,
            now_ms + request.invisible_time_ms,
            request.client_id if request.auto_renew else "",
            request.attempt_id if request.fifo else "",
            request.fifo,
        )
        end_offset = self.journal.append(records.TAKEN, records.taken(request.group, pop, taking.batches))
        if taking.found:
            self._reviver.arm()
        return pop_time_ms, end_offset

    def _finish_lost(self, group: str, taking: Taking) -> None:
        """Messages of an ordered queue that were to come again are gone from the store: they hold up nothing."""
        entries: list[list[Any]] = []
        for topic, queue_id, offsets in taking.lost:
            queue = self.ledger.queue(group, topic, queue_id)
            for batch in queue.batches.values() if queue is not None else ():
                mask = sum(1 << batch.place_of(offset) for offset in offsets if batch.place_of(offset) >= 0)
                if mask & batch.remaining:
                    entries.append(batch.entry(mask))
            self.counters.lost += len(offsets)
        self.journal.append(records.REVIVED, records.finished(entries))

    def _outcome(self, request: PopRequest, taking: Taking, pop_time_ms: int, status: PutStatus) -> PopOutcome:
        if status != PutStatus.PUT_OK:
            self._give_back(request.group, taking, pop_time_ms)
            self.counters.refused_pops += 1
            error = RequestError(
                codes.SERVICE_NOT_AVAILABLE, f"the messages could not be reserved ({status.name}); receive again"
            )
            return PopOutcome(PopStatus.REFUSED, error=error)
        revive_queue_id = ORDERED_REVIVE_QUEUE_ID if request.fifo else NORMAL_REVIVE_QUEUE_ID
        messages = popped_messages(request, taking.found, pop_time_ms, revive_queue_id, self._broker_name)
        size = sum(len(message.record) for message in messages)
        self.counters.popped_messages += len(messages)
        self.counters.popped_bytes += size
        for listener in self.given_listeners:
            listener(request.topic, request.group, len(messages), size)
        return PopOutcome(
            PopStatus.FOUND,
            messages,
            pop_time_ms,
            request.invisible_time_ms,
            revive_queue_id,
            taking.rest_count,
        )

    def _give_back(self, group: str, taking: Taking, pop_time_ms: int) -> None:
        """Nobody got the messages: they are due at once, instead of after their invisible time."""
        if not self._serving:
            return
        now_ms = self._now_ms()
        for found in taking.found:
            queue = self.ledger.queue(group, found.topic, found.queue_id)
            batch = queue.batches.get(pop_time_ms) if queue is not None else None
            if batch is not None:
                self.ledger.end_early(batch, now_ms)
        self._reviver.arm()

    # ---- waiting

    def _wake(
        self, topic: str, queue_id: int, group: str | None = None, tags_codes: Collection[int] | None = None
    ) -> None:
        """Something may be there for those who wait to take it, and for those who wait to hear of it."""
        self._polling.arrived(topic, queue_id, tags_codes, group)
        self.looking.arrived(topic, queue_id, None, group)

    def _try_again(self, waiter: Waiter[_Waiting]) -> bool:
        waiting = waiter.payload
        answered, more = self._take(waiting.request, waiting.message_filter, waiting.done)
        if more:
            self._scan_on(waiting.request)
        return answered

    def _scan_on(self, request: PopRequest) -> None:
        """A look through many messages that do not match goes on in the next turn of the loop."""
        self._polling.arrived(request.topic, ANY_QUEUE, None, request.group)

    def _timed_out(self, waiter: Waiter[_Waiting]) -> None:
        self.counters.empty_pops += 1
        waiter.payload.done(PopOutcome(PopStatus.NOTHING))

    def _ledger_changed(self, claims: Claims) -> None:
        """Messages were finished or postponed: timers may be earlier, ordered queues may be free."""
        self._reviver.arm()
        for queue in claims.ordered_queues():
            self._wake(queue.topic, queue.queue_id, queue.group)

    def _drop(self, group: str | None, topic: str | None) -> None:
        queues = [each for each in self.ledger.queues() if group in (None, each.group) and topic in (None, each.topic)]
        if queues:
            try:
                self.journal.append(records.DROPPED, records.dropped(group, topic))
            except LogboomError as error:
                log.warning("what was popped of the deleted topic or group lingers until the next start: %s", error)
        gone = f"consumer group {group}" if group is not None else f"topic {topic}"
        code = codes.TOPIC_NOT_EXIST if group is None else codes.SUBSCRIPTION_GROUP_NOT_EXIST
        error_answer = RequestError(code, f"{gone} was deleted")
        for waiter in list(self._polling.table.all()):
            if group in (None, waiter.group) and topic in (None, waiter.topic):
                waiter.cancel()
                waiter.payload.done(PopOutcome(PopStatus.REFUSED, error=error_answer))
        self.looking.end(error_answer, group, topic)
