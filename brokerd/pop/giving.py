"""Giving messages to pops: what is taken is recorded, and given when the record is acknowledged.

Pops that ask for the same share one look at the queues, one write of their records, and one wait. When it cannot be acknowledged,
nobody got the messages, and they are due at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.filters.message_filter import MessageFilter
from brokerd.journal.journal import Journal
from brokerd.pop import records
from brokerd.pop.batch import MAX_BATCH, Older
from brokerd.pop.counters import PopCounters
from brokerd.pop.departures import released_of
from brokerd.pop.handles import NORMAL_REVIVE_QUEUE_ID, ORDERED_REVIVE_QUEUE_ID, TAG_BITS
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.group_order import encode_hashes, hash_of_group
from brokerd.pop.plan import Taking, popped_messages
from brokerd.pop.requests import PopDone, PopOutcome, PopRequest, PopStatus
from brokerd.pop.reviver import Reviver
from brokerd.pop.shares import Share, shares_of
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.taking import Taker
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.record.fields import properties_of

_MOST_AT_ONCE: Final = 64


class OpenPop:
    """A pop that was not answered yet; a `requests.Parked`, once it is let in."""

    __slots__ = ("_done", "_is_open", "message_filter", "request")

    def __init__(self, request: PopRequest, message_filter: MessageFilter, done: PopDone) -> None:
        self.request = request
        self.message_filter = message_filter
        self._done = done
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether it still asks for messages."""
        return self._is_open

    def close(self) -> None:
        """It asks no more: it has messages, which are on their way, or is answered, or nobody waits for its answer."""
        self._is_open = False

    def cancel(self) -> None:
        self.close()

    def answer(self, outcome: PopOutcome) -> None:
        self.close()
        self._done(outcome)


class Given(NamedTuple):
    """What came of pops that ask for the same.

    So many of them, from the first on, are answered or will be. `more`: there is more to look through. `is_empty`: nothing at all
    is left there, so whoever asks the same gets nothing until something arrives or the metadata changes. Never so where an order
    is kept: who waits for its gate is noted there with each look.
    """

    answered: int
    more: bool
    is_empty: bool


class _Taken(NamedTuple):
    """What one pop takes, and as what it is recorded."""

    pop: OpenPop
    share: Share
    recorded: records.Pop


class Giving:
    """Owned by the pop service. `listeners` are told what was given: (topic, group, messages, bytes). `from_files` counts the
    pops to which something was given that is in files; `when_served` is called for each such look, if it is set."""

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        journal: Journal,
        counters: PopCounters,
        taker: Taker,
        reviver: Reviver,
    ) -> None:
        self.from_files = 0
        self.when_served: Callable[[], None] | None = None
        self._cold_turns = taker.cold_turns
        self.listeners: list[Callable[[str, str, int, int], None]] = []
        self._around = around
        self._ledger = ledger
        self._journal = journal
        self._counters = counters
        self._taker = taker
        self._reviver = reviver

    def plan(self, request: PopRequest, message_filter: MessageFilter) -> Taking:
        """What the next pop would take, if it were this one. Raises LogboomError when that would be refused."""
        try:
            taking = self._taker.plan(request, message_filter, self._around.now_ms())
            taking.check()
            return taking
        finally:
            self._cold_turns.ended()

    def give(self, pops: Sequence[OpenPop]) -> Given:
        """Answer pops that ask for the same, in their order, with what is there."""
        first = pops[0].request
        metadata = self._around.metadata
        topic = metadata.topic(first.topic)
        group = metadata.group(first.group)
        if topic is None or group is None or metadata.is_forbidden(first.group, first.topic):
            return Given(0, more=False, is_empty=False)
        # What one takes of an ordered queue decides what the next one may take.
        most = 1 if group.fifo or first.fifo else _MOST_AT_ONCE
        answered = 0
        more = is_empty = False
        while answered < len(pops):
            some = pops[answered : answered + most]
            try:
                count, more, is_empty = self._give_some(some)
            except LogboomError as error:
                self._counters.refused_pops += len(some)
                for pop in some:
                    pop.answer(PopOutcome(PopStatus.REFUSED, error=as_request_error(error)))
                count, more, is_empty = len(some), False, False
            finally:
                self._cold_turns.ended()
            if not count:
                break
            answered += count
        return Given(answered, more, is_empty)

    # ---- inside

    def _give_some(self, pops: Sequence[OpenPop]) -> Given:
        counts = [pop.request.max_count for pop in pops]
        request = pops[0].request
        if len(pops) > 1:
            request = request._replace(max_count=sum(counts))
        now_ms = self._around.now_ms()
        taking = self._taker.plan(request, pops[0].message_filter, now_ms)
        self._reviver.read_later(request.group, taking.unreadable)
        taking.check()
        if taking.is_held_back and not taking.found and not taking.dropped:
            raise RequestError(
                codes.SYSTEM_BUSY,
                f"consumer group {request.group} holds {self._ledger.in_flight(request.group)} messages, and gets no new ones "
                "before it has acknowledged some (pop.max_in_flight_per_group)",
            )
        self._pass_over(request.group, taking, now_ms)
        is_empty = not taking.found and not taking.rest_count and not taking.is_ordered
        if not taking.batches and not taking.dropped:
            return Given(0, taking.more, is_empty)
        shares = shares_of(taking, counts)
        taken = self._plan(pops, shares, now_ms, is_ordered=taking.is_ordered)
        bodies = [
            records.taken(
                request.group,
                each.recorded,
                each.share.batches,
                released_of(each.share.released()),
                _hashes_of(each.share) if taking.keeps_groups else None,
            )
            for each in taken
        ]
        end_offset = self._journal.append_all([(records.TAKEN, body) for body in bodies])
        self._counters.lost += taking.lost
        if not taking.found:
            if taking.budget.is_spent():
                self._taker.draw_again()  # the queues behind the one it was spent on get their turn, too
            return Given(0, taking.more, is_empty)
        self._taker.draw_again()
        self._reviver.arm()
        for pop in pops[: len(taken)]:
            pop.close()
        self._around.metadata.take_resets([(request.group, found.topic, found.queue_id) for found in taking.found])

        def acknowledged(status: PutStatus) -> None:
            for each in taken:
                each.pop.answer(self._outcome(each, taking.rest_count, status))

        if self._cold_turns.is_reading:
            charged = self._cold_turns.charged
            self._journal.when_acknowledged(end_offset, lambda status: charged(partial(acknowledged, status)))
        else:
            self.from_files += len(taken)
            if self.when_served is not None:
                self.when_served()
            self._journal.when_acknowledged(end_offset, acknowledged)
        return Given(len(taken), taking.more, is_empty)

    def _pass_over(self, group: str, taking: Taking, now_ms: int) -> None:
        """Remember what is passed over, with what is taken of the same queues: from then on it is taken from there."""
        for topic, queue_id, next_offset, offsets, groups in taking.passing:
            noted: dict[int, Older] = {}
            queue = self._ledger.queue(group, topic, queue_id)
            pop_time_ms = queue.last_pop_time_ms if queue is not None else 0
            for start in range(0, len(offsets), MAX_BATCH):
                part = offsets[start : start + MAX_BATCH]
                behind = next_offset if part[-1] == offsets[-1] else part[-1] + 1
                pop_time_ms = max(now_ms, pop_time_ms + 1)
                pop = records.Pop(pop_time_ms, 0, now_ms, ordered=True)
                batch = records.taken_batch(topic, queue_id, behind, part, [0] * len(part))
                hashes = [encode_hashes(groups[start : start + MAX_BATCH])]
                self._journal.append(records.TAKEN, records.taken(group, pop, [batch], hashes=hashes))
                queue = self._ledger.queue(group, topic, queue_id)
                assert queue is not None
                self._ledger.give_back(queue.batches[pop_time_ms])
                noted.update(
                    (offset, Older(queue_id, offset, pop_time_ms, place, 1)) for place, offset in enumerate(part)
                )
            for number, found in enumerate(taking.found):
                if (found.topic, found.queue_id) == (topic, queue_id):
                    new = [noted[offset] for offset in found.offsets[len(found.again) :]]
                    taking.found[number] = found._replace(again=[*found.again, *new])

    def _plan(self, pops: Sequence[OpenPop], shares: Sequence[Share], now_ms: int, *, is_ordered: bool) -> list[_Taken]:
        """What is recorded of each share: its pop time is new in every queue that it has something of."""
        last: dict[tuple[str, int], int] = {}
        taken = []
        for pop, share in zip(pops, shares, strict=False):
            request = pop.request
            pop_time_ms = now_ms
            for found in share.found:
                key = found.topic, found.queue_id
                queue = self._ledger.queue(request.group, *key)
                before = last.get(key, queue.last_pop_time_ms if queue is not None else 0)
                pop_time_ms = max(pop_time_ms, before + 1)
            for found in share.found:
                last[found.topic, found.queue_id] = pop_time_ms
            recorded = records.Pop(
                pop_time_ms,
                request.invisible_time_ms,
                now_ms + request.invisible_time_ms,
                request.client_id if request.auto_renew else "",
                request.attempt_id if is_ordered else "",
                is_ordered,
                self._around.random_bits(TAG_BITS) if request.has_tag else 0,
            )
            taken.append(_Taken(pop, share, recorded))
        return taken

    def _outcome(self, taken: _Taken, rest_count: int, status: PutStatus) -> PopOutcome:
        request, found, recorded = taken.pop.request, taken.share.found, taken.recorded
        if status != PutStatus.PUT_OK:
            self._give_back(request.group, taken)
            self._counters.refused_pops += 1
            error = RequestError(
                codes.SERVICE_NOT_AVAILABLE, f"the messages could not be reserved ({status.name}); receive again"
            )
            return PopOutcome(PopStatus.REFUSED, error=error)
        revive_queue_id = ORDERED_REVIVE_QUEUE_ID if recorded.ordered else NORMAL_REVIVE_QUEUE_ID
        messages = popped_messages(request, found, recorded, revive_queue_id, self._around.broker_name)
        size = sum(len(message.record) for message in messages)
        self._counters.popped_messages += len(messages)
        self._counters.popped_bytes += size
        for listener in self.listeners:
            listener(request.topic, request.group, len(messages), size)
        return PopOutcome(
            PopStatus.FOUND, messages, recorded.pop_time_ms, request.invisible_time_ms, revive_queue_id, rest_count
        )

    def _give_back(self, group: str, taken: _Taken) -> None:
        """Nobody got the messages: they are due at once, instead of after their invisible time."""
        now_ms = self._around.now_ms()
        for found in taken.share.found:
            queue = self._ledger.queue(group, found.topic, found.queue_id)
            batch = queue.batches.get(taken.recorded.pop_time_ms) if queue is not None else None
            if batch is not None:
                self._ledger.take_back(batch, now_ms)
        self._reviver.arm()


def _hashes_of(share: Share) -> list[str]:
    """The message groups of the share's batches, as their record holds them."""
    groups = {
        (found.topic, found.queue_id): encode_hashes(hash_of_group(properties_of(record)) for record in found.records)
        for found in share.found
    }
    return [groups[batch[0], batch[1]] if batch[4] else "" for batch in share.batches]
