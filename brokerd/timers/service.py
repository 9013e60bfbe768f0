"""Timers on the group's log: on the master, what is due is delivered, in the order in which it is due.

One cursor among the timers says how far that is. A batch is one write: a record that moves the cursor and announces what is
delivered, and behind it the messages for their own topics. So batches need not wait for one another, and whoever becomes the
master with a log that was cut inside a batch knows what is missing, and delivers just that. Timers further ahead than their file
of the log lasts are appended again on the way.

Nothing moves the cursor past a timer that was appended and is not dispatched yet: that one would never be found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.journal.journal import Journal, JournalSettings
from brokerd.journal.record_log import RecordLog, error_of
from brokerd.journal.slices import InSlices
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.service import MetadataService
from brokerd.store.derived.dispatcher import Arrival
from brokerd.timers.batch import Batch, Batches
from brokerd.timers.clock import TimerClock
from brokerd.timers.codes import RECALL, Key, kind_of
from brokerd.timers.copies import UNIQUE_KEY, marker, place_of
from brokerd.timers.counting import Known, TimerCounting
from brokerd.timers.cursor import TIMERS_TOPIC, drawn, recalled
from brokerd.timers.delivery import LATE_BOUNDS_S, Appending, Delivery, TimerCounters, Times
from brokerd.timers.far import Far
from brokerd.timers.files.original import LeftNote
from brokerd.timers.in_log import TimersInLog
from brokerd.timers.interface import Recalled
from brokerd.timers.lanes import Lanes
from brokerd.timers.moving import Mover
from brokerd.timers.returning import Returning
from brokerd.timers.said import Saying
from brokerd.timers.set_back import is_ahead
from brokerd.timers.settings import TimerSettings
from brokerd.timers.slots import SlotLimit
from brokerd.timers.stowed_search import StowedSearch
from brokerd.timers.taken_back import MAX_RECALLED
from brokerd.timers.takeover import TimerTakeover
from brokerd.timers.tier import NoTier, TimerTier, ToTier
from brokerd.timers.tier_slots import TierSlots
from remoting import codes
from remoting.errors import LogboomError, RequestError, as_request_error
from remoting.facts.broker_state import TimerState
from remoting.facts.timers import AsideTimer, RecallOutcome, TopicTimers
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record

log = logging.getLogger(__name__)

KEY_BITS: Final = 256
MAX_ASIDE_TOLD: Final = 50
MAX_REASON: Final = 300
_LATE_MS: Final = 50
_MARKERS_ON_THEIR_WAY: Final = MAX_RECALLED // 16  # which were taken, and did not have their effect yet
LATE_BOUNDS_MS: Final = tuple(round(bound_s * 1000) for bound_s in LATE_BOUNDS_S)
_DOUBTED: Final = (
    "timers do not believe this machine's clock, which says %d ms since 1970: by what it said before, the log's last message and "
    "other machines it is %d. Set the clock right; or wait, if it is: it is believed after a minute, or at once when controllers "
    "on other machines say the same; when they say something else, after an hour"
)


_TOO_MANY_RECALLED: Final = (
    "too many messages are recalled that are not due yet, of this topic or of others; recall more when these are due (a broker "
    f"group remembers {MAX_RECALLED}, and of a topic no more than that leaves for all others)"
)
_MAYBE_IN_TIER: Final = (
    "this message was to be delivered by now; it was, or waits in the tier, from where timers come late at the moment: ask again "
    "when the object store gives them"
)
_WINDOW_WITH_TIER_MS: Final = 7 * 86_400_000  # half of what the original's wheel has slots for


class Witnesses(NamedTuple):
    """What this machine's wall clock is held against: what clocks of other machines say now, None where none does, and the store
    time of the last message that the log had when this broker became the master, 0 without one."""

    others_ms: Callable[[], Sequence[int] | None] = lambda: None
    stored_ms: Callable[[], int] = lambda: 0


class Surroundings(NamedTuple):
    """What timers are given of their broker: the topics, the loop, the machine's wall clock, the host that records name, chance
    that nobody may guess, for how long the log keeps a file, what the log says of them, how many timers may be due in one second
    (0: any number), the clock's witnesses, up to which queue offset the timer topic's records lie in files that go soon, the
    tier, and who looks at many records at once."""

    metadata: MetadataService
    scheduler: Scheduler
    wall_ms: Callable[[], int]
    host: bytes
    random_bits: Callable[[int], int]
    retained_ms: Callable[[], int]
    in_log: TimersInLog
    max_per_slot: Callable[[], int] = lambda: 0
    witnesses: Witnesses = Witnesses()
    going: Callable[[], int] = lambda: 0
    tier: TimerTier = NoTier()
    saying: Saying | None = None


class TimerService:
    """A `journal.resident.Resident` and the broker's `interface.Timers`; make it when the store is loaded."""

    own_topics: Final = frozenset({TIMER_TOPIC, TIMERS_TOPIC})

    def __init__(
        self,
        record_log: RecordLog,
        far: Far,
        surroundings: Surroundings,
        settings: TimerSettings,
        journal_settings: JournalSettings | None = None,
        left: LeftNote | None = None,
    ) -> None:
        """`left` is what RocketMQ left of its timers. Raises CorruptedFile when that cannot be read."""
        self.table = surroundings.in_log.table
        self._settings = settings
        self._log = record_log
        self._far = far
        self._scheduler = scheduler = surroundings.scheduler
        self._around = surroundings
        self._clock = TimerClock(surroundings.wall_ms(), self._steady_ms())
        self.clock_doubt = ""  # why timers do not go by this machine's clock; "" = they do
        in_slices = InSlices(self.table.freeze, self.table.begin_again, scheduler)
        self._journal = Journal(record_log, surroundings.in_log.reading, journal_settings, in_slices=in_slices)
        self._batches = Batches(record_log, surroundings.metadata, self.table, lambda: self.window_ms)
        self._delivery = Delivery(
            record_log,
            self._journal,
            self._batches,
            Lanes(far, settings.near_s * 1000, settings.near_max),
            Times(scheduler, self.now_ms),
            settings,
        )
        self._tier = surroundings.tier
        ahead_ms, back_ms = settings.tier_ahead_s * 1000, settings.tier_back_s * 1000
        to_tier = ToTier(self._tier, ahead_ms, min(back_ms, ahead_ms // 2))
        appending = Appending(self._batches, self._delivery, Times(scheduler, self.now_ms))
        self.stowed = StowedSearch(self.table, self._tier, scheduler)
        self._tier_slots = TierSlots(self.table, self._tier, self._journal, scheduler)
        self._mover = Mover(record_log, far, appending, surroundings.going, to_tier, self._tier_slots)
        self._returning = Returning(appending, self._journal, to_tier, self._tier_slots)
        self._slots = SlotLimit(
            surroundings.max_per_slot,
            partial(record_log.queue_range, TIMER_TOPIC, 0),
            partial(record_log.read_units, TIMER_TOPIC, 0),
            lambda: self.table.done,
            lambda: [code for _, _, code in record_log.undispatched_units(TIMER_TOPIC)],
            self._tier_slots,
        )
        self._takeover = None if left is None else TimerTakeover(left, record_log, self._journal, self.table, scheduler)
        self._is_scanning = False
        self._is_leading = False
        self.counting = TimerCounting(record_log, self._known, surroundings.saying)
        self._delivery.listeners += [self.counting.delivered, self._appended]

    # ---- interface.Timers

    def now_ms(self) -> int:
        return self._now_ms(self._around.wall_ms(), self._steady_ms())

    def _now_ms(self, wall_ms: int, steady_ms: int) -> int:
        now_ms = self._clock.now_ms(wall_ms, steady_ms, self._around.witnesses.others_ms)
        if self._clock.is_doubting != bool(self.clock_doubt):
            self.clock_doubt = _DOUBTED % (wall_ms, now_ms) if self._clock.is_doubting else ""
            log.warning("%s", self.clock_doubt or "timers believe this machine's clock again")
        return now_ms

    def later_ms(self) -> int:
        return self._now_and_later_ms()[1]

    def _now_and_later_ms(self) -> tuple[int, int]:
        """By one look at the clocks: a millisecond that passes between two would seem to be a doubt."""
        wall_ms, steady_ms = self._around.wall_ms(), self._steady_ms()
        now_ms = self._now_ms(wall_ms, steady_ms)
        return now_ms, max(now_ms, self._clock.later_ms(wall_ms, steady_ms))

    def follow_clock(self) -> None:
        if self._is_leading:
            self._delivery.follow_clock()

    @property
    def is_settled(self) -> bool:
        now_ms, later_ms = self._now_and_later_ms()
        return later_ms <= now_ms and not is_ahead(self.table.done.front, now_ms)

    @property
    def least_due_ms(self) -> int:
        return self.table.done.front.due_ms + 1

    @property
    def window_ms(self) -> int:
        return max(self.least_window_ms, _WINDOW_WITH_TIER_MS) if self._tier.is_open else self.least_window_ms

    @property
    def least_window_ms(self) -> int:
        """What is due further ahead than `window_ms` may have been given a leg of at most this."""
        return min(self._settings.roll_window_s * 1000, self._around.retained_ms() * 2 // 3)

    @property
    def drawn_key(self) -> bytes | None:
        return self.table.key

    def recall_key(self) -> bytes | None:
        if self.table.key is None and self._is_leading:
            try:
                self._journal.append(*drawn(self._around.random_bits(KEY_BITS).to_bytes(KEY_BITS // 8)))
            except LogboomError as error:
                log.warning("the key for handles of recall could not be recorded: %s", error)
        return self.table.key

    def slot_limit(self) -> SlotLimit | None:
        is_set = self._slots.is_set
        self._tier_slots.follow(is_wanted=is_set and self._is_leading)
        if not is_set:
            return None
        if self._slots.is_behind:
            self._scan()
        return self._slots

    def has_room_for_marker(self, topic: str) -> bool:
        return self.table.taken_back.room_for_names(topic) > _MARKERS_ON_THEIR_WAY

    def is_pending(self, place: int, due_ms: int) -> bool:
        is_done = self.table.done.is_over(Key(due_ms, place)) and place not in self.table.aside
        return not is_done and place not in self.table.places

    def recall(self, timer: Recalled, done: Callable[[RequestError | None], None]) -> None:
        now_ms = self.now_ms()
        self.follow_clock()
        due_ms = max(self.least_due_ms, min(timer.due_ms, now_ms + self.window_ms))
        try:
            self._check_pending(timer)
            draft = marker(timer, due_ms, now_ms, self._around.host)
            end_offset = self._journal.append_leading(*recalled(timer.place, timer.due_ms, timer.topic), [draft])
        except LogboomError as error:
            done(as_request_error(error))
            return
        self._journal.when_acknowledged(end_offset, lambda status: done(error_of(status)))

    # ---- resident of the log

    def held_offset(self) -> int | None:
        """Where the first timer begins that may be pending, or what the table is read from."""
        low, end = self._log.queue_range(TIMER_TOPIC, 0)
        pending = max(low, self._far.held_queue_offset(self.table.done))
        first = min([pending, *self.table.aside, *self._batches.promised_entries(), *self._delivery.held])
        held = self._journal.held_offset()
        if low <= first < end:
            physical_offset = self._log.read_units(TIMER_TOPIC, 0, first, 1)[0][0]
            held = physical_offset if held is None else min(held, physical_offset)
        return held

    def dispatched(self, arrivals: Sequence[Arrival]) -> None:
        """Remember what is due soon."""
        self._journal.follow()
        self._returning.look_later()
        for topic, _, end, entry_codes in arrivals:
            if topic == TIMER_TOPIC:
                self._far.arrived(end, entry_codes)
                self._slots.arrived(end, entry_codes)
                self._delivery.arrived(end, entry_codes)
                self._mover.look_later()
                self._scan()

    def truncated(self, end_offset: int) -> None:
        self._journal.truncated(end_offset)
        self._far.truncated(self._log.queue_range(TIMER_TOPIC, 0)[1])
        self._delivery.truncated()
        self._slots.begin()
        self.counting.truncated()

    def rolled(self) -> None:
        self._journal.want_snapshot()
        self._scheduler.call_soon(self._journal.maintain)

    def rebuild(self) -> None:
        self._journal.rebuild()
        self._slots.begin()
        self._scan()

    def catch_up(self) -> None:
        self._journal.catch_up()

    def lead(self) -> None:
        """Deliver what is due. What this broker appends lies behind the present end of the log."""
        self._is_leading = True
        witnesses, wall_ms = self._around.witnesses, self._around.wall_ms()
        self._clock.begin(wall_ms, self._steady_ms(), witnesses.others_ms(), witnesses.stored_ms())
        self._slots.lead()
        self.slot_limit()  # what is in the tier is counted before somebody asks
        self._journal.maintain_when_settled()
        self._mover.start()
        self._returning.start()
        if self._takeover is None:
            self._delivery.begin()
        else:
            self._takeover.run(self._delivery.begin)

    def step_down(self) -> None:
        self._is_leading = False
        self.clock_doubt = ""
        self._tier_slots.stop()
        self._mover.stop()
        self._returning.stop()
        if self._takeover is not None:
            self._takeover.stop()
        self._delivery.end()

    def close(self) -> None:
        self._journal.close()
        self.step_down()

    # ---- for people

    @property
    def counters(self) -> TimerCounters:
        return self._delivery.counters

    def state(self) -> TimerState:
        """All of it, for the broker's state."""
        counters = self.counters
        return TimerState(
            waiting=max(0, self._log.queue_range(TIMER_TOPIC, 0)[1] - self.table.taken) + self.table.stowed,
            near=self._delivery.near,
            aside=len(self.table.aside),
            overdue_ms=max(self._delivery.overdue_ms, self._late_in_tier_ms),
            last_late_ms=counters.last_late_ms,
            delivered=counters.delivered,
            rolled=counters.rolled,
            moved=counters.moved,
            in_tier=self.table.stowed,
            tier_objects=len(self.table.objects),
            stowed=counters.stowed,
            returned=counters.returned,
            tier_failures=self._tier.failures,
            tier_trouble=(self._tier.trouble or self._tier_slots.trouble)[:MAX_REASON],
            recalled=counters.recalled,
            failures=counters.failures,
            lost=counters.lost,
            doubted_ms=self._around.wall_ms() - self.now_ms() if self._is_leading else 0,
            fences=sum(not fence.is_open for fence in self.table.done.fences),
            left=self._delivery.left,
            uncounted=self.counting.uncounted,
            late_bounds_ms=LATE_BOUNDS_MS,
            late_counts=tuple(counters.late_s.counts),
            set_aside=tuple(
                AsideTimer(offset=offset, reason=self._batches.reason_of(offset)[:MAX_REASON])
                for offset in sorted(self.table.aside)[:MAX_ASIDE_TOLD]
            ),
        )

    @property
    def is_late(self) -> bool:
        """Whether timers are due for longer than a broker takes that has time for them: what can wait is to wait for them."""
        return self._delivery.overdue_ms >= _LATE_MS

    def waiting_by_topic(self) -> Iterator[TopicTimers]:
        """How many wait for each topic, in steps."""
        counts, now_ms = self.counting.counts, self.now_ms()
        for topic in sorted(counts.topics()):
            if counts.of_topic(topic):
                yield counts.show(topic, now_ms)

    # ---- inside

    @property
    def _late_in_tier_ms(self) -> int:
        """For how long one could have been delivered that did not come back."""
        if not self._is_leading or not self.table.objects:
            return 0
        return max(0, self.now_ms() - min(each.due_ms for each in self.table.objects.values()))

    def _appended(self, batch: Batch) -> None:
        self._returning.look_later()
        if batch.is_return and not batch.offsets and not batch.lost:
            self._tier_slots.begin_again()  # an object has what the log had lost

    def _known(self) -> Known | None:
        return None if self._journal.is_being_read else Known(self.table.done, self.table.places, self.table.days)

    def _steady_ms(self) -> int:
        return int(self._scheduler.time() * 1000)

    def _scan(self) -> None:
        """Look at entries of the queue that were there before, in turns of their own."""
        if not self._is_scanning:
            is_counting, self._is_scanning = self._slots.step(), self._far.step()
            self._is_scanning |= is_counting
            if self._is_scanning:
                self._scheduler.call_soon(self._scan_on)

    def _scan_on(self) -> None:
        self._is_scanning = False
        self._scan()

    def standing(self, timer: Recalled) -> RecallOutcome:
        """What would become of its recall, as far as that can be said before: RECALLED unless it makes no sense."""
        if timer.place in self.table.places:
            return RecallOutcome.RECALLED_BEFORE
        if not self.is_pending(timer.place, timer.due_ms):
            return RecallOutcome.DELIVERED
        return RecallOutcome.RECALLED if self._is_there(timer) else RecallOutcome.MISSING

    def _check_pending(self, timer: Recalled) -> None:
        """Raises RequestError for a timer that cannot be taken back."""
        if timer.place in self.table.places:
            raise RequestError(codes.ILLEGAL_OPERATION, "this message was recalled before")
        if self.table.taken_back.room_for_places(timer.topic) <= 0:
            raise RequestError(codes.SYSTEM_BUSY, _TOO_MANY_RECALLED)
        if not self.is_pending(timer.place, timer.due_ms):
            if any(each.due_ms <= timer.due_ms for each in self.table.objects.values()):
                raise RequestError(codes.SYSTEM_BUSY, _MAYBE_IN_TIER)
            raise RequestError(
                codes.ILLEGAL_OPERATION, "this message cannot be recalled any more: it was delivered when it was due"
            )
        if not self._is_there(timer):
            raise RequestError(
                codes.ILLEGAL_OPERATION,
                "this broker group has no such delayed message; look at what its send was answered",
            )

    def _is_there(self, timer: Recalled) -> bool:
        """Whether the timer's first record is the one that is meant. One whose file is gone was: it was appended again since.
        Where a cut of the log took a timer whose send was not acknowledged, its place may have a delete marker of that message by
        now, or the message on its way from another place."""
        low, end = self._log.queue_range(TIMER_TOPIC, 0)
        if timer.place < low:
            return True
        if timer.place < end:
            units = self._log.read_units(TIMER_TOPIC, 0, timer.place, 1)
        else:
            units = self._log.undispatched_units(TIMER_TOPIC)[timer.place - end :][:1]
        if not units:
            return False
        physical_offset, size, code = units[0]
        kind, properties = kind_of(code), decode_record(self._log.record_at(physical_offset, size)).property_map()
        is_first = kind != RECALL and place_of(kind, properties, timer.place) == timer.place
        return is_first and properties.get(UNIQUE_KEY) == timer.unique_key
