"""Delivers delayed messages when they are due: on the master, one timer for the next of all levels.

Due messages are appended to the topics they were sent to, in the order of their level, and one record says how far each level is:
a consumer offset of a group of the system, so it follows, fails over and is cut like those of any consumer. The messages are
appended first. In one log a record survives only together with everything before it, so after any crash a message waits or is
delivered; only what was delivered and lost its record is delivered again.

At most one batch is on its way: the next follows when the group acknowledged it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.delay.destinations import destination_of
from brokerd.delay.levels import SCHEDULE_GROUP, Delays
from brokerd.delay.rules import Target, deliver
from brokerd.delay.waiting import WaitingLevel
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.metadata.service import MetadataService
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.unit import BLANK_SIZE, Unit
from remoting import codes
from remoting.errors import LogboomError, RequestError, StorageError
from remoting.facts.broker_state import LevelState, ScheduleState
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import Record, decode_record
from remoting.settings import check, setting

log = logging.getLogger(__name__)

_UNITS: Final = 64  # looked at in one read


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """How much is delivered at once, and when a failure is tried again. The levels are `store.delay_levels`."""

    batch_messages: int = setting(
        64, "most delayed messages delivered before the last are acknowledged", minimum=1, maximum=100_000
    )
    batch_bytes: int = setting(4 << 20, "most bytes of them, but always one message", minimum=1024, maximum=64 << 20)
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


class _Due(NamedTuple):
    """A message that is due; without a target it is left out."""

    record: Record
    target: Target | None


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
        self._scheduler = scheduler
        self._wall_ms = wall_ms
        self._settings = settings or DelaySettings()
        self._late_ms: dict[int, int] = {}
        self._release: dict[int, int] = {}  # of the first waiting message of a level
        self._blocked: dict[int, int] = {}  # levels whose next message cannot be read, until when
        self._next_level = 0
        self._timer: Timer | None = None
        self._timer_at_ms = 0
        self._pause_until_ms = 0
        self._one_by_one = 0  # messages of a batch that was refused as a whole
        self._on_its_way = False
        self._commit_failed = False
        self._life = 0
        self._running = False
        self._levels = [
            WaitingLevel(delay_ms, record_log.queue_range(SCHEDULE_TOPIC, queue_id)[1], self._steady_ms())
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
        self._life += 1
        self._running = True
        self._on_its_way = self._commit_failed = False
        self._pause_until_ms = self._one_by_one = 0
        self._release.clear()
        self._blocked.clear()
        for queue_id, level in enumerate(self._levels):
            level.move(self._committed(queue_id))
        self._arm()

    def step_down(self) -> None:
        self._running = False
        self._life += 1
        self._set_timer(None)

    def close(self) -> None:
        self.step_down()

    # ---- for people

    def state(self) -> ScheduleState:
        """All of it, for the broker's state."""
        now_ms, counters = self._steady_ms(), self.counters
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

    def _steady_ms(self) -> int:
        return int(self._scheduler.time() * 1000)

    def _position(self, queue_id: int) -> int:
        return self._levels[queue_id].position if self._running else self._committed(queue_id)

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
        if not self._running:
            level.move(self._committed(queue_id))
        last = self._unit(queue_id, end - 1)
        assert last is not None
        if last[0] < self._began_at:
            level.loaded_at_start(end)
        else:
            stored_here = self._running and last[0] >= self._own_from
            level.arrived(end, due_ms, self._steady_ms(), stored_here=stored_here)

    def _arm(self) -> None:
        """See to it that the timer is set for the next due message."""
        if not self._running or self._on_its_way:
            return
        at_ms = [max(self._release_ms(queue_id), self._blocked.get(queue_id, 0)) for queue_id in self._waiting()]
        if self._commit_failed:
            at_ms.append(self._pause_until_ms)
        if at_ms:
            self._set_timer(max(min(at_ms), self._pause_until_ms))

    def _set_timer(self, at_ms: int | None) -> None:
        if self._timer is not None:
            if at_ms == self._timer_at_ms:
                return
            self._timer.cancel()
            self._timer = None
        if at_ms is not None:
            self._timer_at_ms = at_ms
            wait_s = max(0.0, (at_ms + 1) / 1000 - self._scheduler.time())  # the reading is rounded down
            self._timer = self._scheduler.call_later(wait_s, self._run)

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
            known = level.release_ms(level.position, due_ms, self._steady_ms(), self._wall_ms())
            self._release[queue_id] = known
        return known

    def _overdue_ms(self, queue_id: int, now_ms: int) -> int:
        """For how long the first waiting message of a level could have been delivered."""
        level = self._levels[queue_id]
        unit = self._unit(queue_id, level.position) if self._running and level.count else None
        return (
            0 if unit is None else max(0, now_ms - level.release_ms(level.position, unit[2], now_ms, self._wall_ms()))
        )

    def _run(self) -> None:
        self._timer = None
        now_ms = self._steady_ms()
        before = [level.position for level in self._levels]
        late_ms: dict[int, int] = {}
        due = self._collect(now_ms, late_ms)
        self._release.clear()
        try:
            self._append(due)
        except LogboomError as error:
            for level, position in zip(self._levels, before, strict=True):
                level.move(position)
            if error.code == codes.MESSAGE_ILLEGAL and len(due) > 1:
                self._one_by_one = len(due)  # together they do not fit into a file, or one is not like the others
            else:
                self._failed(error, now_ms)
        else:
            self._late_ms |= late_ms
            if late_ms:
                self.counters.last_at_ms, self.counters.last_late_ms = now_ms, max(late_ms.values())
            self._commit(now_ms)
        self._arm()

    def _collect(self, now_ms: int, late_ms: dict[int, int]) -> list[_Due]:
        """Take what is due off the levels, as much as one batch may be."""
        due: list[_Due] = []
        room = _Room(1 if self._one_by_one else self._settings.batch_messages, self._settings.batch_bytes)
        for queue_id in self._waiting():
            if room.has_room and self._blocked.get(queue_id, 0) <= now_ms:
                try:
                    self._collect_level(queue_id, now_ms, room, due, late_ms)
                except LogboomError as error:
                    self._blocked[queue_id] = now_ms + self._settings.retry_ms
                    self._failed(error, None)
        self._next_level = (self._next_level + 1) % len(self._levels)
        self._one_by_one = max(0, self._one_by_one - 1)
        return due

    def _collect_level(self, queue_id: int, now_ms: int, room: _Room, due: list[_Due], late_ms: dict[int, int]) -> None:
        level = self._levels[queue_id]
        low, end = self._log.queue_range(SCHEDULE_TOPIC, queue_id)
        if level.position < low:
            self.counters.lost += low - level.position
            level.move(low)
        while level.position < end:
            before = level.position
            for physical_offset, size, due_ms in self._log.read_units(
                SCHEDULE_TOPIC, queue_id, before, min(_UNITS, end - before)
            ):
                release_ms = level.release_ms(level.position, due_ms, now_ms, self._wall_ms())
                if release_ms > now_ms or not room.has_room:
                    return
                if size == BLANK_SIZE:
                    self.counters.lost += 1
                else:
                    record = decode_record(self._log.record_at(physical_offset, size))
                    due.append(_Due(record, destination_of(record.property_map(), physical_offset, self._metadata)))
                    room.take(size)
                    late_ms[queue_id] = now_ms - release_ms
                level.move(level.position + 1)
            if level.position == before:
                raise StorageError(f"queue {queue_id} of {SCHEDULE_TOPIC} cannot be read at {before}, its end is {end}")

    def _append(self, due: Sequence[_Due]) -> None:
        """All or nothing. Raises LogboomError."""
        drafts: list[Draft] = [deliver(each.record, each.target) for each in due if each.target is not None]
        if drafts:
            try:
                self._log.append_messages(drafts)
            except RequestError as error:
                if error.code != codes.MESSAGE_ILLEGAL or len(due) > 1:
                    raise
                ((record, target),) = due
                assert target is not None
                self._log.append_messages([deliver(record, target, bare=True)])
        self.counters.delivered += len(drafts)
        self.counters.lost += len(due) - len(drafts)

    def _uncommitted(self) -> dict[tuple[str, str, int], int]:
        return {
            (SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id): level.position
            for queue_id, level in enumerate(self._levels)
            if level.position > self._committed(queue_id)
        }

    def _commit(self, now_ms: int) -> None:
        """Write down how far the levels are, and wait until that is acknowledged."""
        offsets = self._uncommitted()
        if not offsets:
            return
        try:
            end_offset = self._metadata.commit_now(offsets)
        except LogboomError as error:
            self._commit_failed = True
            self._failed(error, now_ms)
            return
        self._commit_failed = False
        life = self._life
        self._on_its_way = True
        self._log.when_acknowledged(end_offset, lambda status: self._acknowledged(life, status))

    def _acknowledged(self, life: int, status: PutStatus) -> None:
        if life != self._life:
            return
        self._on_its_way = False
        if status is not PutStatus.PUT_OK:  # too few replicas answer: more would not reach them either
            self._pause_until_ms = self._steady_ms() + self._settings.retry_ms
        self._arm()

    def _failed(self, error: LogboomError, now_ms: int | None) -> None:
        """Try again later: all of it, or (without a time) what is blocked."""
        log.warning("delayed messages are delivered later: %s", error)
        self.counters.failures += 1
        if now_ms is not None:
            self._pause_until_ms = now_ms + self._settings.retry_ms


class _Room:
    """What a batch may still take; the first message fits always."""

    __slots__ = ("bytes", "messages")

    def __init__(self, messages: int, size_bytes: int) -> None:
        self.messages = messages
        self.bytes = size_bytes

    @property
    def has_room(self) -> bool:
        return self.messages > 0 and self.bytes > 0

    def take(self, size_bytes: int) -> None:
        self.messages -= 1
        self.bytes -= size_bytes
