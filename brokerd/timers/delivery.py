"""Delivering on the master: when (`delay/pace.py`), how much at once, and what becomes of what cannot be delivered now.

A timer that cannot be read or stored is set aside, and tried again for an hour, while the others go on. While what is due is
late, every second batch is of the newest (`overtaking.py`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from brokerd.delay.pace import InFlight, Pace
from brokerd.journal.journal import Journal
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler
from brokerd.store.again import Copies
from brokerd.store.put_status import PutStatus
from brokerd.timers.batch import Batch, Batches
from brokerd.timers.codes import Key, due_of
from brokerd.timers.copies import bare
from brokerd.timers.horizon import Horizon
from brokerd.timers.lanes import Lanes
from brokerd.timers.overtaking import Overtaking
from brokerd.timers.set_back import SettingBack
from brokerd.timers.settings import TimerSettings
from remoting import codes
from remoting.errors import LogboomError
from remoting.exposition import Histogram
from remoting.names import TIMER_TOPIC

log = logging.getLogger(__name__)

# A wall clock that is set is noticed within this time.
_LONGEST_WAIT_MS: Final = 1000
_ASIDE_EVERY_MS: Final = 10_000
_ASIDE_FOR_MS: Final = 3_600_000
_ASIDE_AT_ONCE: Final = 16
_NEVER_MS: Final = 1 << 62
LATE_BOUNDS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60, 600, 3600, 86_400)


@dataclass(slots=True)
class TimerCounters:
    """Running totals since the start."""

    delivered: int = 0
    rolled: int = 0
    moved: int = 0  # of these, before their time
    stowed: int = 0  # went to the tier
    returned: int = 0  # came from there
    recalled: int = 0
    failures: int = 0  # attempts; they are repeated
    lost: int = 0  # their topic or group was removed while they waited, or they could not be read for long
    last_late_ms: int = -1
    late_s: Histogram = field(default_factory=lambda: Histogram(LATE_BOUNDS_S))


class Times(NamedTuple):
    """The loop's clock, and the time by which timers are kept."""

    scheduler: Scheduler
    now_ms: Callable[[], int]


class Delivery:
    """From `begin` to `end`."""

    def __init__(
        self,
        record_log: RecordLog,
        journal: Journal,
        batches: Batches,
        lanes: Lanes,
        times: Times,
        settings: TimerSettings,
    ) -> None:
        self.counters = TimerCounters()
        self.listeners: list[Callable[[Batch], None]] = []  # hear of batches that are appended
        self._log = record_log
        self._journal = journal
        self._table = batches.table
        self._batches = batches
        self._lanes = lanes
        self._overtaking = Overtaking(lanes, batches, settings.batch_messages, self._append)
        self._set_back = SettingBack(record_log, journal, batches.table)
        self._scheduler, self._now_ms = times
        self._settings = settings
        limit = InFlight(settings.in_flight_messages, settings.in_flight_bytes)
        self._pace = Pace(times.scheduler, record_log, self._run, self._arm, limit, settings.retry_ms)
        self._own_from = 0  # what this broker appended as the master lies behind it
        self._life = 0
        self._unacknowledged: dict[int, int] = {}  # moves, by where they end in the log: their first entry
        self._others: Sequence[tuple[int, int]] = ()  # offset and due time of what it had not dispatched before
        self._promised: Sequence[int] = ()
        self._is_held = False
        self._aside_at_ms = 0
        self._one_by_one = 0  # entries of a batch that was refused as a whole
        self._aside_since_ms: dict[int, int] = {}

    def begin(self) -> None:
        """This broker is the master."""
        self._life += 1
        self._unacknowledged.clear()
        self._pace.begin()
        end = self._log.queue_range(TIMER_TOPIC, 0)[1]
        self._own_from = self._log.end_offset
        self._others = [
            (offset, due_of(unit[2])) for offset, unit in enumerate(self._log.undispatched_units(TIMER_TOPIC), end)
        ]
        self._promised = self._batches.promised()
        self._is_held = False
        self._aside_at_ms = self._one_by_one = 0
        self._aside_since_ms.clear()
        self._lanes.begin(self._table.done)
        self._overtaking.begin()
        self._set_back.begin()
        # what an earlier master announced goes before anything that clients send to this one
        self._pace.run_soon()

    def end(self) -> None:
        """It is not any more."""
        self._life += 1
        self._unacknowledged.clear()
        self._pace.end()

    def arrived(self, end: int, entry_codes: Sequence[int]) -> None:
        """Entries were dispatched, the last at queue offset `end - 1`."""
        if self._pace.is_running:
            self._is_held = False
            self._lanes.arrived(end, entry_codes, self._table.done)
            self._arm()

    def truncated(self) -> None:
        if self._pace.is_running:
            self._lanes.begin(self._table.done)
            self._arm()

    def follow_clock(self) -> None:
        """See `interface.Timers`."""
        if self._pace.is_running and self._follow(self._now_ms()):
            self._arm()

    @property
    def batch_bytes(self) -> int:
        """Most bytes of a batch, but always one message."""
        return self._settings.batch_bytes

    def move(self, batch: Batch, first: int | None = None) -> int | None:
        """Append what goes on to the log's end before its time, or comes from the tier: where that ends; None when it has to
        wait. Files with entries from the queue offset `first` on stay until it is acknowledged: it is what lets them go, so it is
        taken also while deliveries pause on a full disk, which they do as long as nothing goes. Raises LogboomError."""
        makes_room = first is not None
        may_append = not self._pace.is_full if makes_room else self._pace.may_append
        if self._promised or not (self._pace.is_running and may_append):
            return None
        begin = batch.begin()
        end_offset = self._journal.append_leading(begin.kind, begin.body(), batch.drafts, makes_room=makes_room)
        if first is not None:
            self._unacknowledged[end_offset] = first
            self._wait(self._life, end_offset)
        self._appended(batch, end_offset, self._now_ms())
        return end_offset

    @property
    def held(self) -> Iterable[int]:
        """Queue offsets of entries that moved, as far as that can be lost."""
        return self._unacknowledged.values()

    @property
    def near(self) -> int:
        """Entries in memory."""
        return self._lanes.count if self._pace.is_running else 0

    @property
    def left(self) -> int:
        """Parts of what is late that the newest overtook."""
        return self._lanes.left if self._pace.is_running else 0

    @property
    def overdue_ms(self) -> int:
        """For how long the first one could have been delivered."""
        first_ms = self._lanes.oldest_due_ms if self._pace.is_running else None
        return 0 if first_ms is None else max(0, self._now_ms() - first_ms)

    def _wait(self, life: int, end_offset: int) -> None:
        self._journal.when_acknowledged(end_offset, partial(self._acknowledged, life, end_offset))

    def _acknowledged(self, life: int, end_offset: int, status: PutStatus) -> None:
        if life != self._life:
            return
        if status is PutStatus.PUT_OK:
            self._unacknowledged.pop(end_offset, None)
        else:  # it may be in a moment
            self._scheduler.call_later(self._settings.retry_ms / 1000, self._wait_on, life, end_offset)

    def _wait_on(self, life: int, end_offset: int) -> None:
        if life == self._life:
            self._wait(life, end_offset)

    # ---- when

    def _arm(self) -> None:
        """See to it that what is to be done next is done in time."""
        if self._pace.is_running:
            wait_ms = self._wait_ms()
            self._pace.run_at(None if wait_ms is None else self._pace.now_ms + wait_ms)

    def _wait_ms(self) -> int | None:
        waiting = self._log.queue_range(TIMER_TOPIC, 0)[1] > self._table.taken
        if not (waiting or self._promised or self._table.aside or self._lanes.left):
            return None
        waits_ms = [_LONGEST_WAIT_MS]
        now_ms = self._now_ms()
        if not (self._pace.is_full or self._is_held) and self._lanes.first_due_ms is not None:
            waits_ms.append(self._lanes.first_due_ms - now_ms)
        if (wants_ms := self._lanes.wants_at_ms()) is not None:
            waits_ms.append(wants_ms - now_ms)
        if self._table.aside:
            waits_ms.append(self._aside_at_ms - self._pace.now_ms)
        return 0 if self._promised else max(0, min(waits_ms))

    def _run(self) -> None:
        """One batch at most, and a portion of what is due later."""
        now_ms = self._now_ms()
        self._follow(now_ms)
        has_more = self._pace.may_append and self._deliver_some(now_ms)
        if self._lanes.load(now_ms, self._table.done) or has_more:
            self._pace.run_at(self._pace.now_ms - 1)
        else:
            self._arm()

    def _follow(self, now_ms: int) -> bool:
        """Whether the cursor was set back, since it is that early."""
        is_back = self._set_back.look(now_ms)
        if is_back:
            self._lanes.begin(self._table.done)
        return is_back

    # ---- what

    def _deliver_some(self, now_ms: int) -> bool:
        """Whether there may be more that can be delivered at once."""
        if self._promised:
            self._deliver_promised(now_ms)
            return True
        if self._table.aside and self._pace.now_ms >= self._aside_at_ms:
            self._deliver_aside(now_ms)
        if self._lanes.first_due_ms is None or self._lanes.first_due_ms > now_ms:
            return False
        may_pass_ms = self._may_pass_ms()
        if may_pass_ms is None:
            self._pace.pause()
            return False
        if not self._one_by_one and self._overtaking.look(now_ms, may_pass_ms):
            return True
        if any(self._deliver_from(lane, now_ms, may_pass_ms) for lane in self._lanes.in_turn()):
            return True
        self._is_held = True
        return False

    def _deliver_from(self, lane: Horizon, now_ms: int, may_pass_ms: int) -> bool:
        """Whether there was something to be delivered."""
        if lane.end is not None and lane.is_drained:
            return self._close(lane.end, may_pass_ms)
        is_ahead = self._lanes.left > 0 and lane is self._lanes.newest
        if is_ahead:
            may_pass_ms = self._may_pass_ms(self._table.done.front.due_ms) or 0
        limit = 1 if self._one_by_one else self._settings.batch_messages
        found = lane.first(now_ms + 1, limit)
        passed = found[: bisect_right(found, may_pass_ms, key=lambda each: due_of(each[0]))]
        if not passed:
            return False
        batch = self._batches.of_due(passed, now_ms, self._settings.batch_bytes, is_ahead=is_ahead)
        if not self._append(batch):
            return True
        lane.drop(batch.entries)
        if self._one_by_one:
            self._one_by_one -= 1
        else:
            self._lanes.had(lane)
        return True

    def _close(self, end: Key, may_pass_ms: int) -> bool:
        """The cursor goes to the end of what was left behind first, if nothing is missing there, and over what was delivered
        meanwhile."""
        if may_pass_ms <= end.due_ms:
            return False
        if self._append(Batch(end)):
            self._lanes.close()
        return True

    def _may_pass_ms(self, from_ms: int = 0) -> int | None:
        """Up to where the cursor may move from `from_ms` on: nothing that is appended and not dispatched is due between. None
        when nobody knows."""
        undispatched = self._log.undispatched_codes(TIMER_TOPIC, self._own_from)
        if undispatched is None:
            return None
        if self._others:
            end = self._log.queue_range(TIMER_TOPIC, 0)[1]
            self._others = [each for each in self._others if each[0] >= end]
        others_ms = (due_ms for _, due_ms in self._others if due_ms >= from_ms)
        if from_ms:
            undispatched = [code for code in undispatched if due_of(code) >= from_ms]
        return min(min(others_ms, default=_NEVER_MS), due_of(min(undispatched)) if undispatched else _NEVER_MS)

    def _deliver_promised(self, now_ms: int) -> None:
        """What the last begin announced, in a batch of its own that says the same."""
        batch = self._batches.of_promised(self._promised, now_ms)
        if batch.offsets:
            log.info("%d timers that the last master announced are delivered", len(batch.offsets))
        if self._append(batch):
            self._promised = ()
        elif self._one_by_one:  # refused as a whole: each for itself, from there
            self._one_by_one = 0
            if self._append(Batch(self._table.cursor, aside=list(self._promised))):
                self._promised = ()
                self._aside_at_ms = 0

    def _deliver_aside(self, now_ms: int) -> None:
        """Some of those that were set aside, each for itself."""
        steady_ms = self._pace.now_ms
        self._aside_at_ms = steady_ms + _ASIDE_EVERY_MS
        since_ms = {offset: self._aside_since_ms.get(offset, steady_ms) for offset in self._table.aside}
        for offset in sorted(since_ms, key=lambda each: since_ms[each])[:_ASIDE_AT_ONCE]:
            give_up = steady_ms - since_ms[offset] > _ASIDE_FOR_MS
            batch = self._batches.of_aside(offset, now_ms, give_up=give_up)
            if batch.back and not self._append(batch):
                break
        self._aside_since_ms = {offset: since_ms[offset] for offset in self._table.aside}

    def _append(self, batch: Batch) -> bool:
        """Whether the batch is in the log; if not, it is tried again, later or in smaller parts."""
        try:
            begin = batch.begin()
            now_ms = self._now_ms()  # its messages are stored now, which may be a while after they were looked for
            end_offset = self._journal.append_leading(begin.kind, begin.body(), batch.drafts)
        except LogboomError as error:
            if error.code == codes.MESSAGE_ILLEGAL and batch.drafts and not batch.before:
                return self._append_otherwise(batch, error)
            log.warning("timers are delivered later: %s", error)
            self.counters.failures += 1
            self._pace.pause()
            return False
        self._appended(batch, end_offset, now_ms)
        return True

    def _appended(self, batch: Batch, end_offset: int, now_ms: int) -> None:
        self._count(batch, now_ms)
        for listener in self.listeners:
            listener(batch)
        self._pace.appended(end_offset, len(batch.offsets), batch.size_bytes)

    def _append_otherwise(self, batch: Batch, error: LogboomError) -> bool:
        """They do not fit into a file together, or one cannot be stored: each for itself, that one as little as it can be, or
        not now."""
        (draft, *others), (offset, *_) = batch.drafts, batch.offsets
        if others or isinstance(draft, Copies):
            self._one_by_one = max(1, batch.entries)
            return False
        smaller = draft if draft.topic == TIMER_TOPIC else bare(draft)
        if smaller != draft:
            batch.drafts = [smaller]
        else:
            self._batches.note_aside(offset, error)
            batch.set_aside(offset)
        return self._append(batch)

    def _count(self, batch: Batch, now_ms: int) -> None:
        counters = self.counters
        counters.delivered += len(batch.due_ms)
        counters.rolled += batch.rolled
        counters.moved += batch.rolled if batch.before else 0
        counters.returned += len(batch.offsets) if batch.is_return else 0
        counters.stowed += batch.stowed.timers if batch.stowed is not None and batch.before else 0
        counters.recalled += batch.recalled
        counters.lost += batch.lost + len(batch.gone) + len(batch.without_effect)
        if batch.without_effect:
            log.error(
                "%d delete markers have no effect, the first for %s: too many messages are taken back that are not due yet",
                len(batch.without_effect),
                batch.without_effect[0],
            )
        if batch.gone:  # a line for each of a topic's timers would be as many as clients like
            log.warning(
                "%d timers are dropped, the first at queue offset %d: their topics or groups are gone",
                len(batch.gone),
                batch.gone[0],
            )
        if batch.due_ms:
            counters.last_late_ms = max(0, now_ms - min(batch.due_ms))
        for due_ms, count in Counter(batch.due_ms).items():
            counters.late_s.observe(max(0, now_ms - due_ms) / 1000, count)


class Appending(NamedTuple):
    """For who has timers appended again: what makes batches, what appends them, and the time."""

    batches: Batches
    delivery: Delivery
    times: Times
