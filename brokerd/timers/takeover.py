"""Timers of a log that RocketMQ went on with: what it delivered counts as delivered, once, before anything else is.

All of its timers are in the log, also those that came long ago. Its own files say which did (`files.original`), and the first
master puts that into the log as records of ours: the cursor goes to where RocketMQ was, what it had not even put into a slot is
announced to be delivered, and of what it appended again on its way only the later record counts.

Its clock may have been behind ours. Then it was sent timers that are due before what we had delivered; in front of these stands a
fence (`set_back.py`), and they come when they are due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from brokerd.journal.journal import Journal
from brokerd.journal.record_log import RecordLog
from brokerd.loop.scheduler import Scheduler
from brokerd.store.put_status import PutStatus
from brokerd.store.unit import BLANK_SIZE, Unit
from brokerd.timers.codes import MESSAGE, RECALL, START, Key, due_by, due_of, kind_of
from brokerd.timers.cursor import BEGIN, Begin, TimerTable, recalled, set_back
from brokerd.timers.done import MAX_FENCES, Done
from brokerd.timers.files.original import LeftNote, LeftTimers
from brokerd.timers.taken_back import MAX_RECALLED
from remoting.errors import LogboomError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record

log = logging.getLogger(__name__)

MOST_LATE: Final = (
    10_000  # are announced together; of more, what RocketMQ delivered since the first of them comes again
)
_ENTRIES: Final = 1 << 12  # looked at in a turn
_RECORDS: Final = 1 << 10  # in a write
_RETRY_S: Final = 0.2
_NOTHING: Final = Done()


class Survey:
    """What the queue's entries are by what RocketMQ left (pure)."""

    def __init__(
        self,
        left: LeftTimers,
        first: int,
        is_unfinished_leg: Callable[[int, int], bool],
        done: Done = _NOTHING,
        own_end: int = 0,
    ) -> None:
        """`is_unfinished_leg` looks at the record of that offset and size: whether it is due later than its entry says. What is
        `done` within its fences, or up to the cursor and in the log below `own_end`, we delivered before RocketMQ came, and what
        was moved waited in a later entry; it was then that the cursor moved last."""
        self._left = left
        self._fenced = done._replace(cursor=START)
        self._rolled = frozenset(left.rolled)
        self._is_unfinished_leg = is_unfinished_leg
        self.next = first
        self._passed = first
        self._late: list[Key] = []
        self.superseded: list[tuple[int, int]] = []  # place and due time
        self._cursor, self._own_end = done.cursor, own_end
        self.theirs: int | None = None  # the offset of the first entry that may be RocketMQ's
        self.hides = False  # whether one of these waits before the cursor

    def take(self, units: Sequence[Unit]) -> None:
        """The next entries."""
        left = self._left
        for offset, (physical_offset, size, code) in enumerate(units, self.next):
            due_ms, is_rolled = due_of(code), physical_offset in self._rolled
            if self.theirs is None and physical_offset >= self._own_end:
                self.theirs = offset
            key = Key(due_ms, offset)
            is_passed = due_ms > left.read_ms and key <= self._cursor
            if self._fenced.has(key) or (is_passed and self.theirs is None):
                self._passed += 1
                continue
            if due_ms > left.read_ms:
                self.hides |= is_passed
                if is_rolled and kind_of(code) == MESSAGE:
                    self.superseded.append((offset, due_ms))
                continue
            self._passed += 1
            if size == BLANK_SIZE or kind_of(code) == RECALL or is_rolled:
                continue
            is_own_leg = physical_offset >= left.own_end > 0 and self._is_unfinished_leg(physical_offset, size)
            if offset >= left.queue_offset or is_own_leg:
                self._late.append(Key(due_ms, offset))
        self.next += len(units)

    def narrower(self) -> LeftTimers | None:
        """What to go by instead, since more is late than can be announced: what is due from there on comes, again or not."""
        if len(self._late) <= MOST_LATE:
            return None
        return self._left._replace(read_ms=sorted(self._late)[MOST_LATE].due_ms - 1)

    @property
    def to(self) -> Key:
        """Where the cursor belongs."""
        return Key(self._left.read_ms, self.next)

    def begin(self, taken_before: int) -> Begin:
        """How the cursor moves, and what is announced."""
        return Begin(self.to, max(0, self._passed - taken_before), [key.offset for key in sorted(self._late)])


class TimerTakeover:
    """What is there to be taken over; asked whenever this broker becomes the master."""

    def __init__(
        self, note: LeftNote, record_log: RecordLog, journal: Journal, table: TimerTable, scheduler: Scheduler
    ) -> None:
        """Raises CorruptedFile."""
        self._note = note
        self._log = record_log
        self._journal = journal
        self._table = table
        self._scheduler = scheduler
        self._left = note.read(record_log.end_offset)
        self._life = 0

    def run(self, then: Callable[[], None]) -> None:
        """Record it, if it is to be, and go on; in turns."""
        self._life += 1
        if self._left is None:
            then()
        elif self._table.last_end > self._left.log_end:  # somebody did that, and delivered since
            self._finished(PutStatus.PUT_OK)
            then()
        else:
            self._look_on(self._life, self._survey(self._left), then)

    def stop(self) -> None:
        """This broker is not the master any more."""
        self._life += 1

    def _survey(self, left: LeftTimers) -> Survey:
        first = self._log.queue_range(TIMER_TOPIC, 0)[0]
        return Survey(left, first, self._is_unfinished_leg, self._table.done, self._table.last_end)

    def _look_on(self, life: int, survey: Survey, then: Callable[[], None]) -> None:
        if life != self._life:
            return
        end = self._log.queue_range(TIMER_TOPIC, 0)[1]
        if survey.next < end:
            survey.take(self._log.read_units(TIMER_TOPIC, 0, survey.next, min(_ENTRIES, end - survey.next)))
            self._scheduler.call_soon(self._look_on, life, survey, then)
            return
        survey.take(self._log.undispatched_units(TIMER_TOPIC))
        narrower = survey.narrower()
        if narrower is None:
            self._record(life, survey, then)
        else:
            self._look_on(life, self._survey(narrower), then)

    def _record(self, life: int, survey: Survey, then: Callable[[], None]) -> None:
        if life != self._life:
            return
        if len(survey.superseded) > MAX_RECALLED:
            log.error("of %d timers that RocketMQ appended again some come twice", len(survey.superseded))
        rows = [recalled(*each) for each in survey.superseded[:MAX_RECALLED]]
        try:
            self._set_back(survey)
            for first in range(0, len(rows), _RECORDS):
                self._journal.append_all(rows[first : first + _RECORDS])
            begin = survey.begin(self._table.taken)
            end_offset = self._journal.append(BEGIN, begin.body())
        except LogboomError as error:
            log.info("how far RocketMQ delivered timers is not recorded yet: %s", error)
            self._scheduler.call_later(_RETRY_S, self._record, life, survey, then)
            return
        log.info(
            "RocketMQ delivered timers up to %d; %d more are due since, %d wait in a later record",
            *(begin.to.due_ms, len(begin.offsets), len(rows)),
        )
        self._journal.when_acknowledged(end_offset, self._finished)
        then()

    def _set_back(self, survey: Survey) -> None:
        """Have what waits before the cursor found. Raises LogboomError."""
        if not survey.hides or survey.theirs is None or self._table.cursor <= survey.to:
            return
        if len(self._table.done.fences) >= MAX_FENCES:
            log.error("timers that RocketMQ was sent for a time before %d are lost", self._table.cursor.due_ms)
            return
        self._journal.append(*set_back(survey.to, survey.theirs))

    def _finished(self, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            self._note.remove()
            self._left = None

    def _is_unfinished_leg(self, physical_offset: int, size: int) -> bool:
        properties = decode_record(self._log.record_at(physical_offset, size)).property_map()
        due_ms = due_by(properties)
        return self._left is not None and due_ms is not None and due_ms > self._left.read_ms
