"""Brings back what was not finished in time: on the master, one timer for the earliest due batch.

A due batch stays where it is: from now on its unfinished messages wait to be taken again, and whoever waits for the topic is
woken. Only what was delivered as often as allowed leaves its queue, for the dead-letter topic, and what the log is about to lose,
for the retry topic (`departures`). A lease is renewed while its client lives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from brokerd.loop.scheduler import Timer
from brokerd.pop import copies, records
from brokerd.pop.batch import NEVER_MS, Batch, Place, Queue
from brokerd.pop.blocks import DueRow
from brokerd.pop.departures import Departures
from brokerd.pop.ledger import PopLedger
from brokerd.pop.moving import Mover
from brokerd.pop.reading import read_offsets
from brokerd.pop.surroundings import Surroundings
from brokerd.pop.timers import DueRows
from remoting import codes
from remoting.errors import LogboomError
from remoting.names import RETRY_PREFIX
from remoting.record.fields import offsets_of

log = logging.getLogger(__name__)

_MAX_READ_BYTES: Final = 8 << 20  # in one turn of the loop
_UNCONFIRMED_RETRY_MS: Final = 100
_ILLEGAL_RETRY_MS: Final = 60_000


class Reviver:
    """Runs while this broker is the master. `came_back(group, stored topic)` is told of what waits to be taken again."""

    def __init__(
        self,
        around: Surroundings,
        ledger: PopLedger,
        departures: Departures,
        is_alive: Callable[[str], bool],
        came_back: Callable[[str, str], None],
    ) -> None:
        self._around = around
        self._ledger = ledger
        self._journal = departures.journal
        self._departures = departures
        self._mover = Mover(around, ledger, departures, self.arm)
        self._counters = departures.counters
        self._is_alive = is_alive
        self._came_back = came_back
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._running = False

    def start(self) -> None:
        self._running = True
        self._mover.start()
        self.arm()

    def stop(self) -> None:
        self._running = False
        self._mover.stop()
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

    def read_later(self, group: str, batches: Iterable[tuple[str, int, int]]) -> None:
        """What came back, named by stored topic, queue and pop time, cannot be read now: it is nobody's until it can."""
        again_ms = self._around.now_ms() + self._around.settings.revive_retry_ms
        for topic, queue_id, pop_time_ms in batches:
            queue = self._ledger.queue(group, topic, queue_id)
            assert queue is not None
            self._ledger.defer(queue.batches[pop_time_ms], again_ms)
        self.arm()

    # ---- inside

    def _run(self) -> None:
        self._timer = None
        now_ms = self._around.now_ms()
        due = self._ledger.expire(now_ms, self._around.settings.revive_messages)
        batches = [*due.batches, *self._give_back_rows(due.rows)]
        looks: list[_Look] = []
        leaving: list[Batch] = []
        size = 0
        for index, batch in enumerate(batches):
            if size > _MAX_READ_BYTES:
                self._postpone(batches[index:], now_ms)
                break
            if batch.client_id and self._renew(batch, now_ms):
                continue
            if not self._is_readable(batch):
                self._postpone([batch], now_ms + _UNCONFIRMED_RETRY_MS)
            elif batch.is_leaving:
                leaving.append(batch)
            else:
                try:
                    looks.append(self._look(batch))
                except LogboomError as error:
                    self._failed([batch], error, now_ms)
                    continue
                size += looks[-1].size
        self._carry_out(leaving, now_ms, is_new=False)
        self._let_leave([look for look in looks if look.lost or look.over], now_ms)
        self._give_back([look.batch for look in looks if look.batch.timer_ms == NEVER_MS])
        self.arm()

    def _give_back_rows(self, due: Iterable[DueRows]) -> list[Batch]:
        """Let those be taken again of which nothing has to be read to know that they may be; the others are returned."""
        others: list[Batch] = []
        queues: dict[tuple[str, str], None] = {}
        for each in due:
            queue = self._ledger.queue_of(each)
            rows, rest = self._divided(queue, each.rows)
            if rest:
                others += self._ledger.batches_of(each._replace(rows=rest))
            if rows:
                self._counters.revived += self._ledger.give_back_rows(each._replace(rows=rows))
                queues[queue.group, queue.topic] = None
        for group, topic in queues:
            self._came_back(group, topic)
        return others

    def _divided(self, queue: Queue, rows: list[DueRow]) -> tuple[list[DueRow], list[DueRow]]:
        """Those of a queue that come again, whose messages are all there and may be delivered once more, and the others."""
        group = self._around.metadata.group(queue.group)
        if group is None or self._around.metadata.topic(queue.topic) is None or queue.topic.startswith(RETRY_PREFIX):
            return [], rows
        low = self._around.reads.min_offset(queue.topic, queue.queue_id)
        high = self._around.reads.max_offset(queue.topic, queue.queue_id)
        most = group.retry_max_times
        simple: list[DueRow] = []
        others: list[DueRow] = []
        for row in rows:
            _, first, remaining, deliveries = row
            comes_again = deliveries <= most and low <= first and first + remaining.bit_length() <= high
            (simple if comes_again else others).append(row)
        return simple, others

    def _look(self, batch: Batch) -> _Look:
        """Which messages of a due batch do not come again. Those of a retry topic are read, as they say how often they were
        delivered before they were stored there, and those that may have been delivered often enough."""
        queue = batch.queue
        group = self._around.metadata.group(queue.group)
        if group is None or self._around.metadata.topic(queue.topic) is None:
            return _Look(batch, lost=batch.remaining)
        places = batch.remaining_places()
        is_first_home = not queue.topic.startswith(RETRY_PREFIX)
        if is_first_home and all(batch.deliveries(place) <= group.retry_max_times for place in places):
            low = self._around.reads.min_offset(queue.topic, queue.queue_id)
            return _Look(batch, lost=sum(1 << place for place in places if batch.offset_at(place) < low))
        found = read_offsets(self._around.reads, queue.topic, queue.queue_id, batch.remaining_offsets())
        lost = over = size = 0
        for place in places:
            encoded = found.get(batch.offset_at(place))
            if encoded is None:
                lost |= 1 << place
                continue
            size += len(encoded)
            deliveries = copies.deliveries_before(queue.topic, offsets_of(encoded)[2]) + batch.deliveries(place)
            if deliveries > group.retry_max_times:
                over |= 1 << place
        return _Look(batch, lost, over, size)

    def _let_leave(self, looks: Sequence[_Look], now_ms: int) -> None:
        """Finish what is gone, and send what was delivered often enough to the dead-letter topic; when the log does not take
        that, the batches are looked at again."""
        if not looks:
            return
        stays = [copies.is_dead_letter_topic(each.batch.queue.group, each.batch.queue.topic) for each in looks]
        ends = [each.lost | (each.over if stay else 0) for each, stay in zip(looks, stays, strict=True)]
        entries = [each.batch.entry(mask) for each, mask in zip(looks, ends, strict=True) if mask]
        places = [place for each, stay in zip(looks, stays, strict=True) if not stay for place in each.places_over()]
        try:
            if entries:
                self._journal.append(records.REVIVED, records.finished(entries))
                self._counters.lost += sum(each.lost.bit_count() for each in looks)
                self._counters.dead_lettered += sum(
                    each.over.bit_count() for each, stay in zip(looks, stays, strict=True) if stay
                )
            left = self._departures.begin(places, records.DEAD, now_ms)
        except LogboomError as error:
            self._failed([each.batch for each in looks if each.batch.remaining], error, now_ms)
        else:
            self._carry_out(left, now_ms, is_new=True)

    def _carry_out(self, batches: Sequence[Batch], now_ms: int, *, is_new: bool) -> None:
        """Copy what left; what is refused is tried again."""
        if not batches:
            return
        queues = dict.fromkeys(batch.queue for batch in batches)
        try:
            self._departures.carry_out(batches, is_new=is_new)
        except LogboomError as error:
            if error.code == codes.MESSAGE_ILLEGAL and len(batches) > 1:
                for batch in batches:  # one message that cannot be stored must not hold up the others
                    self._carry_out([batch], now_ms, is_new=is_new)
            else:
                self._failed(batches, error, now_ms)
            return
        for queue in queues:  # which what left held up, where the group is ordered
            self._came_back(queue.group, queue.topic)

    def _give_back(self, batches: Sequence[Batch]) -> None:
        """Their messages may be taken again."""
        for batch in batches:
            if batch.remaining:
                self._ledger.give_back(batch)
                self._counters.revived += 0 if batch.is_passed_over else batch.remaining.bit_count()
        for group, topic in dict.fromkeys((batch.queue.group, batch.queue.topic) for batch in batches):
            self._came_back(group, topic)

    def _failed(self, batches: Sequence[Batch], error: LogboomError, now_ms: int) -> None:
        log.warning("%d batches of messages come back later: %s", len(batches), error)
        self._counters.revive_failures += 1
        is_illegal = error.code == codes.MESSAGE_ILLEGAL
        self._postpone(batches, now_ms + (_ILLEGAL_RETRY_MS if is_illegal else self._around.settings.revive_retry_ms))

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


class _Look(NamedTuple):
    """What becomes of a due batch: places of messages that are gone, and of those that were delivered often enough."""

    batch: Batch
    lost: int = 0
    over: int = 0
    size: int = 0

    def places_over(self) -> list[Place]:
        return [Place(self.batch, place) for place in self.batch.remaining_places() if self.over >> place & 1]
