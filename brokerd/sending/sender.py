"""Appending messages, the general path: every rule, any endpoint.

Sending is two steps: append at the end of the log in one write, then answer when the position is acknowledged. The loop's thread
alone appends, so an offset that was given out is still right when its bytes are written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from brokerd.delay.levels import Delays
from brokerd.delay.rules import check_times, schedule
from brokerd.metadata.configs import TopicConfig
from brokerd.sending.acknowledging import Acknowledger
from brokerd.sending.counters import RULE, TOO_FEW_REPLICAS, TOO_MANY_DUE, TOO_MANY_WAITING, Counters, refusal_reason
from brokerd.sending.outcomes import ROLE_CHANGED, SendOutcome
from brokerd.sending.rules import choose_queue, complete, waits_for_store
from brokerd.sending.stored_form import Asked, KernelRules, Stored, has_room, waiting_form
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult, Run
from brokerd.timers.rules import may_wait
from brokerd.timers.terms import Terms
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.names import HALF_TOPIC, TIMER_TOPIC

log = logging.getLogger(__name__)


class Store(Protocol):
    """What sending needs of the store: a draft's last check, and the append that assigns offsets."""

    def check_draft(self, draft: Draft) -> int: ...

    def append_checked(
        self, drafts: Sequence[Draft], *, entry_codes: Sequence[int | None] = ()
    ) -> Sequence[AppendResult]: ...

    def lay_out(self, run: Run, draft: Draft) -> AppendResult | None: ...

    def stored_size(self, draft: Draft) -> int: ...

    def next_timestamp(self) -> int: ...


class HalfMessages(Protocol):
    """What sending needs of transactions."""

    def to_stored_draft(self, draft: Draft) -> Draft:
        """The half message of a draft that begins a transaction, any other draft as it is. Raises RequestError."""

    def stored(self, draft: Draft, place: AppendResult) -> None:
        """A half message was appended."""


class TimedMessages(Protocol):
    """What sending needs of messages that wait for a moment of their own."""

    def terms(self) -> Terms | None:
        """By what messages wait that are appended in this turn of the loop; None when they take `to_waiting_draft`."""

    def next_place(self) -> int:
        """The queue offset that the next one gets in the timer topic."""

    def check_moment(self, properties: dict[str, str], topic: str) -> None:
        """Take out what only the broker writes. Raises RequestError for a moment that cannot be kept."""

    def to_waiting_draft(self, draft: Draft) -> Draft:
        """The message as it waits, when it asks for a later moment; any other draft as it is. Raises RequestError."""

    def check_room(self, draft: Draft, laid_out: int) -> None:
        """Raises RequestError when too many are due at the same time as a draft that waits, or that is not known yet; `laid_out`
        others are appended before it."""

    def handle_of(self, draft: Draft, place: AppendResult) -> str:
        """What recalls a stored message; "" when nothing does."""


class Ready(NamedTuple):
    """A draft to append, and which of those that were given it is made of. What waits for a moment of its own, in its ordinary
    form, says how, by which terms, and for which topic."""

    number: int
    draft: Draft
    waits: Stored | None = None
    terms: Terms | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True)
class SendRules:
    """What decides how a message is stored: `topic` looks one up in the present table, `delays` are those of the delay levels."""

    topic: Callable[[str], TopicConfig | None]
    cluster: str
    delays: Delays


class MessageSender:
    """`outcomes.Sender`."""

    def __init__(
        self,
        store: Store,
        acknowledger: Acknowledger,
        rules: SendRules,
        counters: Counters,
        halves: HalfMessages,
        timed: TimedMessages,
    ) -> None:
        self._store = store
        self._acknowledger = acknowledger
        self.topic = rules.topic
        self._counters = counters
        self._halves = halves
        self._timed = timed
        self.cluster = rules.cluster
        self._delays = rules.delays
        self._turns: dict[str, int] = {}
        self.unique_ids = UniqueIds(store.next_timestamp())
        self.kernel_rules = KernelRules(self.unique_ids, timed.terms, rules.delays, rules.cluster)

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        """Append all drafts; see outcomes.Sender."""
        error = self._acknowledger.refusal()
        if error is not None:
            self._counters.refuse(error, len(drafts))
            too_few = refusal_reason(error) == TOO_FEW_REPLICAS
            status = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH if too_few else PutStatus.SERVICE_NOT_AVAILABLE
            refused = SendOutcome(status, error=as_request_error(error, codes.SERVICE_NOT_AVAILABLE))
            done([refused] * len(drafts))
            return
        outcomes, ready = self.prepare(drafts)
        if ready:
            self.append(outcomes, ready, done)
        else:
            done(outcomes)

    def prepare(self, drafts: Sequence[Draft]) -> tuple[list[SendOutcome], list[Ready]]:
        """An outcome per draft (final where it is refused) and the drafts to append, which is done in this turn of the loop."""
        outcomes: list[SendOutcome] = []
        ready: list[Ready] = []
        asked, waiting = Asked(self.kernel_rules.terms), 0
        for draft in drafts:
            try:
                placed = choose_queue(draft, self.topic(draft.topic), self.turn_of(draft.topic))
                number = len(outcomes)
                made = self._waiting(number, placed, asked, waiting) if may_wait(placed) else None
                if made is None:
                    made = Ready(number, self._general(placed, waiting))
                waiting += made.draft.topic == TIMER_TOPIC
                ready.append(made)
                outcomes.append(SendOutcome(PutStatus.PUT_OK, placed.queue_id))
            except RequestError as refusal:
                reason = refusal_reason(refusal)
                self._counters.refused[reason if reason in (TOO_MANY_DUE, TOO_MANY_WAITING) else RULE] += 1
                outcomes.append(SendOutcome(PutStatus.MESSAGE_ILLEGAL, error=as_request_error(refusal)))
        return outcomes, ready

    def _waiting(self, number: int, placed: Draft, asked: Asked, waiting: int) -> Ready | None:
        """What waits in its ordinary form, made in one pass over its properties; None for what is for `_general`."""
        stored = waiting_form(placed, self.kernel_rules, asked)
        if stored is None:
            return None
        draft = placed._replace(topic=stored.topic, queue_id=stored.queue_id, properties=stored.properties)
        self._store.check_draft(draft)
        if not has_room(asked, self._timed.next_place() + waiting, stored):
            return None
        self.unique_ids.next_number += stored.is_named
        return Ready(number, draft, stored, asked.terms(), placed.topic)

    def _general(self, placed: Draft, waiting: int) -> Draft:
        """What is stored of any other message. Raises RequestError."""
        prepared = complete(placed, self.unique_ids, self.cluster, self._check_times)
        half = self._halves.to_stored_draft(prepared)
        stored = self._timed.to_waiting_draft(schedule(half, self._delays))
        self._store.check_draft(stored)
        if stored.topic == TIMER_TOPIC:
            self._timed.check_room(stored, waiting)
        return stored

    def append(
        self,
        outcomes: list[SendOutcome],
        ready: Sequence[Ready],
        done: Callable[[Sequence[SendOutcome]], None],
    ) -> None:
        """Append what `prepare` found ready; `done` gets all outcomes, as in `send`."""
        try:
            entry_codes = [each.waits.code if each.waits is not None else None for each in ready]
            appended = self._store.append_checked([each.draft for each in ready], entry_codes=entry_codes)
        except LogboomError as failure:
            log.error("cannot append: %s", failure)
            refusal = as_request_error(failure, codes.SERVICE_NOT_AVAILABLE)
            done([SendOutcome(PutStatus.SERVICE_NOT_AVAILABLE, error=refusal)] * len(outcomes))
            return
        for each, place in zip(ready, appended, strict=True):
            draft = each.draft
            handle = self._handle(each, place) if draft.topic == TIMER_TOPIC else ""
            outcomes[each.number] = SendOutcome(
                PutStatus.PUT_OK,
                outcomes[each.number].queue_id,
                place.queue_offset,
                place.physical_offset,
                recall_handle=handle,
            )
            size = place.end_offset - place.physical_offset
            self._counters.in_bytes += size
            self._counters.statistics.stored_in(draft.topic, 1, size)
            if draft.topic == HALF_TOPIC:
                self._halves.stored(draft, place)
        self._counters.in_messages += len(ready)
        end_offset = appended[-1].end_offset
        self._acknowledger.appended(end_offset)
        if any(waits_for_store(each.draft.properties) for each in ready):
            tell = self._counters.timed(len(ready), lambda status: done(_with_status(outcomes, status)))
            self._acknowledger.wait(end_offset, tell)
        else:
            done(outcomes)
            self._counters.unawaited(len(ready))

    def _handle(self, ready: Ready, place: AppendResult) -> str:
        """What recalls a message that was appended to the timer topic."""
        if ready.waits is None or ready.terms is None:
            return self._timed.handle_of(ready.draft, place)
        return ready.terms.handle(ready.topic, ready.waits.due_ms, ready.waits.key, place.queue_offset)

    def lay_out(self, run: Run, drafts: Sequence[Draft]) -> Sequence[AppendResult] | int:
        """Lay out what `prepare` found ready, when none of it waits for a moment or begins a transaction; all of it, or when the
        run has no room, nothing: then its size."""
        size = sum(map(self._store.stored_size, drafts))
        if size > run.room:
            return size
        placed = []
        for draft in drafts:
            place = self._store.lay_out(run, draft)
            assert place is not None, "there was room for all"
            placed.append(place)
        return placed

    def turn_of(self, topic: str) -> Callable[[int], int]:
        """Round robin over n queues of a topic."""

        def next_queue(queues: int) -> int:
            turn = self._turns[topic] = (self._turns.get(topic, -1) + 1) % queues
            return turn

        return next_queue

    def _check_times(self, properties: dict[str, str], topic: str) -> None:
        check_times(properties, len(self._delays))
        self._timed.check_moment(properties, topic)


def _with_status(outcomes: Sequence[SendOutcome], status: PutStatus) -> Sequence[SendOutcome]:
    """The outcomes of an append once its status is known: stored ones take it, refused ones keep their refusal."""
    if status is PutStatus.PUT_OK:
        return outcomes
    error = (
        RequestError(codes.SERVICE_NOT_AVAILABLE, ROLE_CHANGED) if status is PutStatus.SERVICE_NOT_AVAILABLE else None
    )
    return [
        outcome if outcome.error is not None else outcome._replace(status=status, error=error) for outcome in outcomes
    ]
