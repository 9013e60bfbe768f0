"""Delivers delayed messages when they are due: on the master, one timer for the next of all levels.

Due messages are appended to the topics they were sent to, in the order of their level, and right behind them, in the same write,
a record that says how far each level is: a consumer offset of a group of the system, so it follows, fails over and is cut like
those of any consumer. A log is only ever cut at its end, so after any crash a message waits or is delivered, and at most the last
batch of a log has messages without their record: these are delivered again. So batches need not wait for one another (`pace.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.delay.batch import Batch, Batches
from brokerd.delay.levels import SCHEDULE_GROUP, Delays
from brokerd.delay.pace import InFlight, Pace
from brokerd.delay.rules import bare
from brokerd.delay.waiting import WaitingLevel
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.unit import Unit
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.facts.broker_state import LevelState, ScheduleState
from remoting.names import SCHEDULE_TOPIC
from remoting.settings import check, setting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """How much is delivered at once, and when a failure is tried again. The levels are `store.delay_levels`."""

    batch_messages: int = setting(
        128, "most delayed messages delivered in one turn of the loop, and in one write", minimum=1, maximum=100_000
    )
    batch_bytes: int = setting(4 << 20, "most bytes of them, but always one message", minimum=1024, maximum=64 << 20)
    in_flight_messages: int = setting(
        16_384, "most delivered messages that wait to be acknowledged", minimum=1, maximum=1_000_000
    )
    in_flight_bytes: int = setting(32 << 20, "most bytes of them", minimum=1024, maximum=1 << 30)
    retry_ms: int = setting(
        1000, "when a delivery fails, the next try is after this time", minimum=10, maximum=3_600_000
    )

    def __post_init__(self) -> None:
        check("delay", self)


@dataclass(slots=True)
class ScheduleCounters:
    """Running totals since the start."""

    delivered: int = 0
    failures: int = 0  # attempts; they are repeated
    lost: int = 0  # their topic or group was removed while they waited, or they are gone from the log
    last_at_ms: int = 0  # when the last delivery was, of whichever level (steady time)
    last_late_ms: int = -1  # how late that was; -1 before the first


class Deliverer:
    """A `journal.resident.Resident`; make it when the store is loaded."""

    own_topics: Final = frozenset({SCHEDULE_TOPIC})

    def __init__(
        self,
        delays: Delays,
        metadata: MetadataService,
        record_log: RecordLog,
        scheduler: Scheduler,
        wall_ms: Callable[[], int],
        settings: DelaySettings | None = None,
    ) -> None:
        self.counters = ScheduleCounters()
        self._metadata = metadata
        self._log = record_log
        self._began_at = self._own_from = record_log.end_offset
        self._wall_ms = wall_ms
        self._settings = settings = settings or DelaySettings()
        self._batches = Batches(record_log, metadata)
        limit = InFlight(settings.in_flight_messages, settings.in_flight_bytes)
        self._pace = Pace(scheduler, record_log, self._run, self._arm, limit, settings.retry_ms)
        self._late_ms: dict[int, int] = {}
        self._release: dict[int, int] = {}  # of the first waiting message of a level
        self._blocked: dict[int, int] = {}  # levels whose next message cannot be read, until when
        self._next_level = 0
        self._one_by_one = 0  # messages of a batch that was refused as a whole
        self._owes_record = False  # a message was appended that had no room for it beside
        self._levels = [
            WaitingLevel(delay_ms, record_log.queue_range(SCHEDULE_TOPIC, queue_id)[1], self._pace.now_ms)
            for queue_id, delay_ms in enumerate(delays)
        ]

    # ---- resident of the log

    def held_offset(self) -> int | None:
        """Where the first message that still waits begins."""
        first = [self._unit(queue_id, self._position(queue_id)) for queue_id in range(len(self._levels))]
        return min((unit[0] for unit in first if unit is not None), default=None)

    def dispatched(self, arrivals: Sequence[Arrival]) -> None:
        """Remember when the messages came, on whichever replica."""
        for topic, queue_id, end, times in arrivals:
            if topic == SCHEDULE_TOPIC and queue_id < len(self._levels):
                self._arrived(self._levels[queue_id], queue_id, end, times[-1])
                self._arm()

    def truncated(self, end_offset: int) -> None:
        self._began_at = min(self._began_at, end_offset)
        self._own_from = min(self._own_from, end_offset)
        self._release.clear()
        for queue_id, level in enumerate(self._levels):
            level.cut(self._log.queue_range(SCHEDULE_TOPIC, queue_id)[1])

    def rolled(self) -> None:
        """Nothing: how far the levels are is in the metadata."""

    def rebuild(self) -> None:
        """Nothing: the metadata says where the levels stand, and when messages came here is not in the log."""

    def catch_up(self) -> None:
        """Nothing: the metadata catches up, and `lead` goes by its consumer offsets."""

    def lead(self) -> None:
        """Deliver what is due. What this broker appends lies behind the present end of the log."""
        self._own_from = self._log.end_offset
        self._pace.begin()
        self._owes_record = False
        self._one_by_one = 0
        self._release.clear()
        self._blocked.clear()
        for queue_id, level in enumerate(self._levels):
            level.move(self._committed(queue_id))
        self._arm()

    def step_down(self) -> None:
        self._pace.end()

    def close(self) -> None:
        self.step_down()

    # ---- for people

    def state(self) -> ScheduleState:
        """All of it, for the broker's state."""
        now_ms, counters = self._pace.now_ms, self.counters
        levels = tuple(
            LevelState(
                level=queue_id + 1,
                delay_ms=level.delay_ms,
                waiting=max(0, level.end - self._position(queue_id)),
                late_ms=self._late_ms.get(queue_id, -1),
            )
            for queue_id, level in enumerate(self._levels)
        )
        return ScheduleState(
            levels=levels,
            last_late_ms=counters.last_late_ms,
            last_ago_ms=max(0, now_ms - counters.last_at_ms) if counters.last_late_ms >= 0 else -1,
            overdue_ms=max(self._overdue_ms(queue_id, now_ms) for queue_id in range(len(levels))),
            delivered=counters.delivered,
            failures=counters.failures,
            lost=counters.lost,
        )

    def offsets(self) -> dict[int, int]:
        """By level, up to which queue offset everything is delivered."""
        return {queue_id + 1: self._position(queue_id) for queue_id in range(len(self._levels))}

    # ---- inside

    def _position(self, queue_id: int) -> int:
        return self._levels[queue_id].position if self._pace.is_running else self._committed(queue_id)

    def _committed(self, queue_id: int) -> int:
        committed = self._metadata.consumer_offset(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id)
        low, _ = self._log.queue_range(SCHEDULE_TOPIC, queue_id)
        return max(low, committed or 0)

    def _unit(self, queue_id: int, offset: int) -> Unit | None:
        low, end = self._log.queue_range(SCHEDULE_TOPIC, queue_id)
        if not low <= offset < end:
            return None
        units = self._log.read_units(SCHEDULE_TOPIC, queue_id, offset, 1)
        return units[0] if units else None

    def _arrived(self, level: WaitingLevel, queue_id: int, end: int, due_ms: int) -> None:
        if not self._pace.is_running:
            level.move(self._committed(queue_id))
        last = self._unit(queue_id, end - 1)
        assert last is not None
        if last[0] < self._began_at:
            level.loaded_at_start(end)
        else:
            stored_here = self._pace.is_running and last[0] >= self._own_from
            level.arrived(end, due_ms, self._pace.now_ms, stored_here=stored_here)

    def _arm(self) -> None:
        """See to it that the next due message is delivered in time."""
        if not self._pace.is_running or self._pace.is_full:
            return
        at_ms = [max(self._release_ms(queue_id), self._blocked.get(queue_id, 0)) for queue_id in self._waiting()]
        if self._owes_record:
            at_ms.append(self._pace.now_ms)
        if at_ms:
            self._pace.run_at(min(at_ms))

    def _waiting(self) -> list[int]:
        """The levels in which something waits, beginning with the one whose turn it is."""
        count = len(self._levels)
        turns = ((self._next_level + n) % count for n in range(count))
        return [queue_id for queue_id in turns if self._levels[queue_id].count]

    def _release_ms(self, queue_id: int) -> int:
        """When the first waiting message of a level may be delivered."""
        known = self._release.get(queue_id)
        if known is None:
            level = self._levels[queue_id]
            unit = self._unit(queue_id, level.position)
            due_ms = unit[2] if unit is not None else 0
            known = level.release_ms(level.position, due_ms, self._pace.now_ms, self._wall_ms())
            self._release[queue_id] = known
        return known

    def _overdue_ms(self, queue_id: int, now_ms: int) -> int:
        """For how long the first waiting message of a level could have been delivered."""
        level = self._levels[queue_id]
        unit = self._unit(queue_id, level.position) if self._pace.is_running and level.count else None
        return (
            0 if unit is None else max(0, now_ms - level.release_ms(level.position, unit[2], now_ms, self._wall_ms()))
        )

    def _run(self) -> None:
        """One batch."""
        if not self._pace.may_append:
            self._arm()
            return
        now_ms = self._pace.now_ms
        before = [level.position for level in self._levels]
        late_ms: dict[int, int] = {}
        batch = self._collect(now_ms, late_ms)
        self._release.clear()
        try:
            self._append(batch)
        except LogboomError as error:
            for level, position in zip(self._levels, before, strict=True):
                level.move(position)
            if error.code == codes.MESSAGE_ILLEGAL and batch.entries > 1:
                self._one_by_one = batch.entries  # together they do not fit into a file, or one is not like the others
            else:
                self._failed(error)
                self._pace.pause()
        else:
            self.counters.delivered += batch.delivered
            self.counters.lost += batch.lost
            self._late_ms |= late_ms
            if late_ms:
                self.counters.last_at_ms, self.counters.last_late_ms = now_ms, max(late_ms.values())
        self._arm()

    def _collect(self, now_ms: int, late_ms: dict[int, int]) -> Batch:
        """Take what is due off the levels, as much as one batch may be."""
        batch = Batch(1 if self._one_by_one else self._settings.batch_messages, self._settings.batch_bytes)
        for queue_id in self._waiting():
            if not batch.has_room or self._blocked.get(queue_id, 0) > now_ms:
                continue
            try:
                since_ms = self._batches.take_due(batch, self._levels[queue_id], queue_id, now_ms, self._wall_ms())
                if since_ms is not None:
                    late_ms[queue_id] = now_ms - since_ms
            except LogboomError as error:
                self._blocked[queue_id] = now_ms + self._settings.retry_ms
                self._failed(error)
        self._next_level = (self._next_level + 1) % len(self._levels)
        self._one_by_one = max(0, self._one_by_one - 1)
        return batch

    def _append(self, batch: Batch) -> None:
        """What is delivered, and how far the levels are with it: all or nothing. Raises LogboomError."""
        offsets = {
            (SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id): level.position
            for queue_id, level in enumerate(self._levels)
            if level.position > self._committed(queue_id)
        }
        if not offsets:
            return
        try:
            end_offset = self._metadata.commit_behind(batch.pieces, offsets)
            self._owes_record = False
        except RequestError as error:
            if error.code != codes.MESSAGE_ILLEGAL or batch.entries > 1:
                raise
            end_offset = self._append_alone(batch)
            self._owes_record = True
        self._pace.appended(end_offset, batch.delivered, batch.size_bytes)

    def _append_alone(self, batch: Batch) -> int:
        """A message that is nearly as large as a file, without the record: that follows in a write of its own."""
        (draft,) = batch.pieces
        assert isinstance(draft, Draft), "one message is not copied"
        try:
            return self._log.append_messages([draft])
        except RequestError as error:
            if error.code != codes.MESSAGE_ILLEGAL:
                raise
            return self._log.append_messages([bare(draft)])

    def _failed(self, error: LogboomError) -> None:
        """It is tried again later."""
        log.warning("delayed messages are delivered later: %s", error)
        self.counters.failures += 1
