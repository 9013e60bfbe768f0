"""Brings back what was not finished in time: on the master, one timer for the earliest due batch.

A due batch of an unordered group is copied to the group's retry topic (or to its dead-letter topic when it was delivered as often
as allowed), and one record says that the messages left their queue. The copies are appended first: in one log, a record survives
only together with everything before it, so after any crash the copies are there when the record is, and without the record the
batch is still due. A due batch of an ordered group stays where it is and waits for the next ordered pop; only messages at their
limit go to the dead-letter topic. A lease is renewed while its client lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.loop.scheduler import Timer
from brokerd.pop import copies, records
from brokerd.pop.counters import PopCounters
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import NEVER_MS, Batch
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.taking import read_offsets
from brokerd.store.draft import Draft
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import LogboomError, RequestError, raise_refusal
from remoting.record.fields import offsets_of

log = logging.getLogger(__name__)

_MAX_COPIED_BYTES: Final = 8 << 20  # in one turn of the loop
_UNCONFIRMED_RETRY_MS: Final = 100
_ILLEGAL_RETRY_MS: Final = 60_000


class Reviver:
    """Runs while this broker is the master. `woken(topic, queue, group)` is told what an ordered group may take again."""

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        journal: Journal,
        counters: PopCounters,
        is_alive: Callable[[str], bool],
        woken: Callable[[str, int, str], None],
    ) -> None:
        self._around = around
        self._ledger = ledger
        self._journal = journal
        self._counters = counters
        self._is_alive = is_alive
        self._woken = woken
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._running = False

    def start(self) -> None:
        self._running = True
        self.arm()

    def stop(self) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self) -> None:
        """The ledger changed: see to it that the timer is set for the earliest due batch."""
        due_ms = self._ledger.next_timer_ms()
        if not self._running or due_ms == NEVER_MS or (self._timer is not None and self._timer_at_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = due_ms
        wait_s = max(0.0, (due_ms - self._around.now_ms()) / 1000)
        self._timer = self._around.scheduler.call_later(wait_s, self._run)

    # ---- inside

    def _run(self) -> None:
        self._timer = None
        now_ms = self._around.now_ms()
        due = self._ledger.expire(now_ms, max(1, self._around.settings.revive_messages // 8))
        departures: list[_Departure] = []
        copied = copied_bytes = 0
        for index, batch in enumerate(due):
            if copied > self._around.settings.revive_messages or copied_bytes > _MAX_COPIED_BYTES:
                self._postpone(due[index:], now_ms)
                break
            if batch.client_id and self._renew(batch, now_ms):
                continue
            if not self._is_readable(batch):
                self._postpone([batch], now_ms + _UNCONFIRMED_RETRY_MS)
                continue
            try:
                departure = self._departure(batch)
            except LogboomError as error:
                self._failed([batch], error, now_ms + self._around.settings.revive_retry_ms)
                continue
            if batch.ordered:
                self._woken(batch.queue.topic, batch.queue.queue_id, batch.queue.group)
            if departure.mask:
                departures.append(departure)
                copied += len(departure.drafts)
                copied_bytes += sum(len(each.body) for each in departure.drafts)
        if departures:
            self._depart(departures, now_ms)
        self.arm()

    def _depart(self, departures: Sequence[_Departure], now_ms: int) -> None:
        """Append the copies and the record; what is refused stays due and is tried again."""
        drafts = [draft for departure in departures for draft in departure.drafts]
        entries = [departure.batch.entry(departure.mask) for departure in departures]
        try:
            for topic in {draft.topic for draft in drafts}:
                raise_refusal(self._around.metadata.ensure_topic(topic))
            if drafts:
                self._around.record_log.append_messages(drafts)
            self._journal.append(records.REVIVED, records.finished(entries))
        except LogboomError as error:
            if error.code != codes.MESSAGE_ILLEGAL:
                batches = [departure.batch for departure in departures]
                self._failed(batches, error, now_ms + self._around.settings.revive_retry_ms)
            elif len(departures) > 1:  # one message that cannot be stored must not hold up the others
                for departure in departures:
                    self._depart([departure], now_ms)
            else:
                self._failed([departures[0].batch], error, now_ms + _ILLEGAL_RETRY_MS)
            return
        self._counters.lost += sum(departure.lost for departure in departures)
        self._counters.dead_lettered += sum(departure.dead for departure in departures)
        self._counters.revived += sum(departure.returned for departure in departures)

    def _failed(self, batches: Sequence[Batch], error: LogboomError, again_ms: int) -> None:
        log.warning("%d batches of messages come back later: %s", len(batches), error)
        self._counters.revive_failures += 1
        self._postpone(batches, again_ms)

    def _postpone(self, batches: Sequence[Batch], timer_ms: int) -> None:
        for batch in batches:
            self._ledger.defer(batch, timer_ms)

    def _renew(self, batch: Batch, now_ms: int) -> bool:
        """Whether the lease goes on."""
        is_over = now_ms >= batch.lease_end_ms or now_ms - batch.pop_time_ms >= self._around.settings.lease_limit_ms
        if is_over or not self._is_alive(batch.client_id):
            return False
        due_ms = min(now_ms + batch.invisible_time_ms, batch.lease_end_ms)
        self._ledger.renew(batch, max(due_ms, batch.due_ms))
        self._counters.renewed += 1
        return True

    def _is_readable(self, batch: Batch) -> bool:
        """On a broker that became the master a moment ago, what was taken may not be confirmed yet: that is not lost."""
        queue, around = batch.queue, self._around
        if around.metadata.topic(queue.topic) is None:
            return True
        return batch.last_remaining() < around.reads.max_offset(queue.topic, queue.queue_id)

    def _departure(self, batch: Batch) -> _Departure:
        """Which messages leave the queue now, and what is appended for them."""
        queue = batch.queue
        group = self._around.metadata.group(queue.group)
        if group is None or self._around.metadata.topic(queue.topic) is None:
            return _Departure(batch, batch.remaining, lost=batch.remaining.bit_count())
        departure = _Departure(batch)
        offsets = batch.remaining_offsets()
        found = read_offsets(self._around.reads, queue.topic, queue.queue_id, offsets)
        stays_dead = copies.is_dead_letter_topic(queue.group, queue.topic)
        for place in batch.remaining_places():
            bit = 1 << place
            encoded = found.get(batch.offset_at(place))
            if encoded is None:
                departure.mask |= bit
                departure.lost += 1
                continue
            _, _, reconsume_times = offsets_of(encoded)
            deliveries = copies.deliveries_before(queue.topic, reconsume_times) + batch.deliveries(place)
            if deliveries > group.retry_max_times:
                departure.mask |= bit
                departure.dead += 1
                if not stays_dead:
                    departure.drafts.append(copies.dead_letter(queue.group, queue.topic, encoded, deliveries))
            elif not batch.ordered:
                departure.mask |= bit
                departure.returned += 1
                departure.drafts.append(
                    copies.retry_copy(queue.group, queue.topic, encoded, deliveries, batch.pop_time_ms)
                )
        return departure


@dataclass(slots=True)
class _Departure:
    """What leaves one batch: the messages of `mask`, with copies for some of them."""

    batch: Batch
    mask: int = 0
    drafts: list[Draft] = field(default_factory=list)
    returned: int = 0
    dead: int = 0
    lost: int = 0


def forward(group: str, topic: str, queue_id: int, offset: int, deliveries: int, reads: StoreReads) -> Draft | None:
    """The dead letter of one message; None when there is nothing to copy (gone, or a dead letter already).

    Raises RequestError while the message is not readable yet: this broker became the master a moment ago.
    """
    if copies.is_dead_letter_topic(group, topic):
        return None
    if offset >= reads.max_offset(topic, queue_id):
        raise RequestError(codes.SYSTEM_BUSY, f"queue {queue_id} of {topic} is not confirmed so far yet")
    encoded = read_offsets(reads, topic, queue_id, [offset]).get(offset)
    if encoded is None:
        return None
    _, _, reconsume_times = offsets_of(encoded)
    total = copies.deliveries_before(topic, reconsume_times) + deliveries
    return copies.dead_letter(group, topic, encoded, total)
