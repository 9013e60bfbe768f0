"""POP for the endpoints, and what is done where.

    pop, wait                   `admission` lets it in, `waiting` parks it, `giving` gives what `taking` finds, in `shares`
    ack, postpone, dead-letter  `finishing`, each message claimed once (`claims`) by its handle (`handles`)
    come again in time          `reviver`: from where they are (`returned`)
    leave for another topic     `departures`, by copies (`copies`), also what the log is about to lose (`moving`)
    peek, be notified           `looking`, by the same plan
    reset, deletions            `administration`
    order               `order`: of message groups, and the `gate` before what moved here from elsewhere
    who holds what              `ledger`, `queue_ledger`: the state, which only `records` in the replicated log change

Only a master serves; a replica follows the records, so that it can go on when it becomes the master.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.reading import Reading
from brokerd.journal.slices import InSlices
from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.loop.steady_clock import SteadyClock
from brokerd.metadata.start_offsets import StartOffsets
from brokerd.metadata.tables import Change
from brokerd.pop import copies
from brokerd.pop.administration import PopAdministration
from brokerd.pop.admission import admit, check_invisible_time
from brokerd.pop.batch import MAX_BATCH
from brokerd.pop.claims import Claims
from brokerd.pop.cold_turns import ColdTurns
from brokerd.pop.counters import PopCounters
from brokerd.pop.departures import Departures
from brokerd.pop.finishing import Finishing
from brokerd.pop.giving import Giving
from brokerd.pop.handles import bases_of_retry_topic
from brokerd.pop.ledger import PopLedger
from brokerd.pop.looking import PopLooking
from brokerd.pop.order.answers import Answers
from brokerd.pop.order.gate import Gate
from brokerd.pop.order.passed import Passed
from brokerd.pop.order.under_way import UnderWay
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.requests import Parked, PopDone, PopOutcome, PopRequest, PopStatus
from brokerd.pop.reviver import Reviver
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.taking import Order, Taker
from brokerd.pop.waiting import PopWaiting
from brokerd.store.derived.dispatcher import Arrival, Arrivals
from remoting.errors import LogboomError, NotMaster, as_request_error
from remoting.names import is_retry_topic


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
        self.ledger = ledger
        self.journal = journal = Journal(
            record_log,
            Reading(POP_TOPIC, ledger),
            journal_settings,
            in_slices=InSlices(ledger.freeze, ledger.begin_again, scheduler),
        )
        self.starts = StartOffsets(around.reads, lambda: record_log.end_offset, settings.recent_log_bytes)
        self._around = around
        self.now_ms = around.now_ms
        self._serving = False
        self._under_way = under_way = UnderWay(lambda: record_log.dispatch_offset)
        departures = Departures(around, journal, counters, under_way)
        self._reviver = Reviver(around, ledger, departures, is_alive, self._came_back)
        self._finishing = finishing = Finishing(around, ledger, departures, lambda: self._serving, self._ledger_changed)
        self.ack, self.change_invisible_time = finishing.ack, finishing.change
        self.forward_to_dead_letter = finishing.forward
        passed = Passed(around.metadata, around.reads, ledger, self.starts, under_way)
        self.gate = Gate(around.broker_name, around.handovers, passed.has_passed, around.reads.max_offset)
        self.gate.opened.append(self._gate_opened)
        self.answers = Answers(around, self.gate, passed, lambda: self._serving)
        self._cold_turns = cold_turns = ColdTurns(around.cold_line, around.reads, self._cold_turn_came)
        taker = Taker(around, ledger, self.starts, Order(self.gate, passed), rng, cold_turns)
        self.giving = giving = Giving(around, ledger, journal, counters, taker, self._reviver)
        self.given_listeners = giving.listeners
        self._waiting = waiting = PopWaiting(
            scheduler, settings, counters, giving.give, lambda: around.metadata.journal.applied_offset
        )
        self.looking = PopLooking(around, giving.plan, lambda: self._serving)
        self._administration = PopAdministration(around.metadata, ledger, journal, waiting, self.looking)

    # ---- requests

    def pop(self, request: PopRequest, done: PopDone) -> Parked | None:
        """Take messages in this turn of the loop (`done` follows when that is recorded), or wait until some arrive.

        None = refused, which `done` was told.
        """
        self.counters.pops += 1
        try:
            self._check_serving()
            message_filter = admit(request, self._around.metadata, self.settings)
            check_invisible_time(request, self._around.metadata, self.settings)
        except LogboomError as error:
            self.counters.refused_pops += 1
            done(PopOutcome(PopStatus.REFUSED, error=as_request_error(error)))
            return None
        return self._waiting.add(request, message_filter, done)

    @property
    def waiting_count(self) -> int:
        """How many pops wait."""
        return self._waiting.count

    def polling_count(self, request: PopRequest) -> int:
        """How many pops wait for exactly the request's topic, group and queue. Raises RequestError when one would be refused."""
        self._check_serving()
        admit(request, self._around.metadata, self.settings)
        return self._waiting.count_of(request)

    def reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """As `PopAdministration.reset` says. Raises NotMaster on a replica."""
        self._check_serving()
        self._administration.reset(group, topic, queue_id, offset)
        self.gate.forget(topic=topic, group=group)
        self._reviver.arm()
        self._wake(copies.base_topic(group, topic), ANY_QUEUE, group)

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
        self._around.scheduler.call_soon(self.journal.maintain)

    def rebuild(self) -> None:
        assert not self._serving
        self.journal.rebuild()

    def catch_up(self) -> None:
        self.journal.catch_up()

    def lead(self) -> None:
        """Go on with what the log says, as far as it has a topic and a group."""
        now_ms = self._around.now_ms()
        self._under_way.begin(self._around.record_log.end_offset)
        self.ledger.resume(now_ms, self.settings.lease_grace_ms, self.settings.inherited_lease_ms)
        self._serving = True
        self._administration.drop_orphans()
        self.journal.maintain_when_settled()
        self._reviver.start()

    def step_down(self) -> None:
        """Whoever waits is sent to the new master."""
        self._serving = False
        self._reviver.stop()
        self._finishing.refuse_all()
        self._waiting.stop(NotMaster())
        self.looking.end(NotMaster())
        self.gate.forget()

    def close(self) -> None:
        self.step_down()
        self.journal.close()

    # ---- events

    def arrived(self, arrivals: Arrivals) -> None:
        """Messages became readable."""
        for arrival in arrivals.awaited(self._is_awaited):
            self._wake(arrival.topic, arrival.queue_id, None, arrival.tags_codes)
            for group, topic in bases_of_retry_topic(arrival.topic):
                self._wake(topic, ANY_QUEUE, group, arrival.tags_codes)
        for group, topic in self._under_way.released():
            self._wake(topic, ANY_QUEUE, group)

    def fetched(self, topic: str, queue_id: int) -> None:
        """Messages of the tier became readable, or are known not to be."""
        self._cold_turns.fetched(topic, queue_id)
        self._wake(topic, queue_id)
        for group, base in bases_of_retry_topic(topic):
            self._wake(base, ANY_QUEUE, group)

    def metadata_changed(self, change: Change) -> None:
        """Topics or groups may have gone. The master alone says so; replicas read it."""
        if self._serving:
            self._administration.deleted(change)
            for topic in change.topics_deleted:
                self.gate.forget(topic=topic)
            for group in change.groups_deleted:
                self.gate.forget(group=group)

    def client_gone(self, client_id: str) -> None:
        """A client that may lease messages died: they come back soon."""
        if self._serving and self.ledger.end_leases(client_id, self._around.now_ms() + self.settings.gone_client_ms):
            self._reviver.arm()

    # ---- inside

    def _check_serving(self) -> None:
        if not self._serving:
            raise NotMaster

    def _came_back(self, group: str, stored: str) -> None:
        """Messages of a stored topic wait to be taken again by the group."""
        whole_batches = self.ledger.returned_count(group, stored) // MAX_BATCH
        for topic in dict.fromkeys((stored, copies.base_topic(group, stored))):
            self._waiting.arrived(topic, ANY_QUEUE, None, group, enough_for=max(1, whole_batches))
            self.looking.arrived(topic, ANY_QUEUE, None, group)

    def _gate_opened(self, topic: str, group: str) -> None:
        self._wake(topic, ANY_QUEUE, group)

    def _is_awaited(self, topic: str) -> bool:
        """Whether messages of the topic may concern anybody here."""
        return is_retry_topic(topic) or self._waiting.is_awaited(topic) or self.looking.is_awaited(topic)

    def _wake(
        self, topic: str, queue_id: int, group: str | None = None, tags_codes: Collection[int] | None = None
    ) -> None:
        """Something may be there for those who wait to take it, and for those who wait to hear of it."""
        self._waiting.arrived(topic, queue_id, tags_codes, group)
        self.looking.arrived(topic, queue_id, tags_codes, group)

    def _cold_turn_came(self, group: str, stored: str, queue_id: int) -> None:
        topic = copies.base_topic(group, stored)
        self._waiting.serve_now(topic, queue_id if topic == stored else ANY_QUEUE, group)
        self.looking.arrived(topic, queue_id if topic == stored else ANY_QUEUE, None, group)

    def _ledger_changed(self, claims: Claims) -> None:
        """Messages were finished or postponed: timers may be earlier, ordered queues may be free."""
        self._reviver.arm()
        for queue in claims.ordered_queues():
            self._wake(queue.topic, queue.queue_id, queue.group)
            base = copies.base_topic(queue.group, queue.topic)
            if base != queue.topic:
                self._wake(base, ANY_QUEUE, queue.group)
