"""From entries that are due to a batch: what is appended for them, and what its begin says."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import itemgetter
from typing import Final

from brokerd.delay.destinations import destination_of
from brokerd.delay.ordinary import LEAST_TOGETHER, MOST_DECODED
from brokerd.delay.rules import REAL_TOPIC
from brokerd.journal.record_log import RecordLog
from brokerd.metadata.service import MetadataService
from brokerd.store.again import Copies
from brokerd.store.draft import Draft
from brokerd.store.unit import Unit
from brokerd.timers.codes import (
    DELETE_KEY,
    MAX_DUE_MS,
    OUT_MS,
    PLACE,
    RECALL,
    Key,
    day_of,
    due_by,
    due_of,
    key_of,
    kind_of,
    number_of,
    slot_of,
)
from brokerd.timers.copies import delivered, name_of, place_of, rolled
from brokerd.timers.cursor import Begin, Days, TimerTable
from brokerd.timers.done import ALL
from brokerd.timers.far import Found
from brokerd.timers.ordinary import OrdinaryTimers
from brokerd.timers.rolling import leg_before
from remoting.errors import LogboomError, StorageError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.tier.stowed import StowedObject

log = logging.getLogger(__name__)

MAX_ASIDE: Final = 10_000


@dataclass(slots=True)
class Batch:
    """What one append does for entries of the timer topic; `after` as in the record."""

    to: Key
    after: Key | None = None
    before: int = 0  # of a move
    taken: int = 0  # entries behind the cursor
    entries: int = 0
    offsets: list[int] = field(default_factory=list)  # of what the drafts and copies are, in order
    drafts: list[Draft | Copies] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)  # of what is delivered
    names: list[tuple[str, int]] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    size_bytes: int = 0
    rolled: int = 0
    recalled: int = 0
    lost: int = 0
    without_effect: list[str] = field(default_factory=list)  # names of markers for which there is no room
    gone: list[int] = field(default_factory=list)  # offsets of what is dropped since its topic or group is gone
    least_rolled_ms: int = MAX_DUE_MS  # the cursor stays before what is appended again
    stowed: StowedObject | None = None  # the tier's, which timers go to or come from; with it:
    days: Days = field(default_factory=dict)
    first_ms: int = 0  # when the first that comes is due

    @property
    def is_return(self) -> bool:
        """Whether timers come from the tier."""
        return self.stowed is not None and not self.before

    def begin(self) -> Begin:
        """The record in front of it."""
        names, aside, back, of_tier = self.names, self.aside, self.back, (self.stowed, self.days, self.first_ms)
        return Begin(self.to, self.taken, self.offsets, names, aside, back, self.after, self.before, *of_tier)

    def set_aside(self, offset: int) -> None:
        """Its only draft cannot be stored."""
        self.offsets, self.drafts, self.due_ms, self.back = [], [], [], []
        self.size_bytes = self.rolled = 0
        self.aside.append(offset)


class Batches:
    """Makes them. Nothing is changed by that, but that a retry topic which is needed is created."""

    def __init__(
        self, record_log: RecordLog, metadata: MetadataService, table: TimerTable, window_ms: Callable[[], int]
    ) -> None:
        self._log = record_log
        self._metadata = metadata
        self.table = table
        self._window_ms = window_ms
        self._reasons: dict[int, str] = {}  # of what is set aside

    def note_aside(self, offset: int, error: LogboomError) -> None:
        """Why the timer at that queue offset is set aside."""
        if offset not in self._reasons:  # it is tried again and again
            log.warning("the timer at queue offset %d is set aside: %s", offset, error)
        self._reasons = {each: reason for each, reason in self._reasons.items() if each in self.table.aside}
        self._reasons[offset] = str(error)

    def reason_of(self, offset: int) -> str:
        """Why a timer is set aside; "" when it was by an earlier master, and was not tried again yet."""
        return self._reasons.get(offset, "")

    def of_due(self, found: Sequence[Found], now_ms: int, size_bytes: int, *, is_ahead: bool = False) -> Batch:
        """Of the first of these entries behind the cursor, or behind the front when it `is_ahead`, which are due, as many as fit;
        `entries` says how many."""
        front, moved = self.table.done.front, self.table.done.moved
        batch = Batch(front, after=front) if is_ahead else Batch(self.table.cursor)
        has_moved = [offset < moved for _, offset in found] if moved else [False]
        if has_moved[0]:  # they were in memory, and wait elsewhere now
            batch.entries = (*has_moved, False).index(False)
            batch.to = key_of(*found[batch.entries - 1])
            return batch
        if True in has_moved:
            found = found[: has_moved.index(True)]
        offsets = [offset for _, offset in found]
        units = self._units(offsets)
        ends = list(accumulate(map(itemgetter(1), units)))
        count = max(1, bisect_right(ends, size_bytes))  # what is read at once is no larger than what is written
        units, offsets = units[:count], offsets[:count]
        ordinary = self._ordinary(units, offsets) if count >= LEAST_TOGETHER else None
        at = decoded = 0
        while at < count and decoded < MOST_DECODED and due_of(found[at][0]) < batch.least_rolled_ms:
            end = self._end_of_ordinary(batch, ordinary, at, count)
            if end > at and ordinary is not None:
                batch.offsets += offsets[at:end]
                batch.drafts.append(ordinary.copies(at, end))
                batch.due_ms += ordinary.due_ms(at, end)
                batch.size_bytes += ends[end - 1] - (ends[at - 1] if at else 0)
            else:
                end, decoded = at + 1, decoded + 1
                self._add(batch, offsets[at], units[at], now_ms, is_promised=False)
            batch.to = key_of(*found[end - 1])
            batch.taken = batch.entries = at = end
        return batch

    def of_aside(self, offset: int, now_ms: int, *, give_up: bool) -> Batch:
        """Of an entry that was set aside: it comes `back` when it can be delivered now, or is given up."""
        batch = Batch(self.table.cursor)
        self._add(batch, offset, self._units([offset])[0], now_ms, is_promised=False, is_aside=True)
        if not batch.aside:
            batch.back = [offset]
        elif give_up:
            log.error("the timer at queue offset %d is given up: it could not be delivered for long", offset)
            batch.aside, batch.back, batch.lost = [], [offset], batch.lost + 1
        return batch

    def of_markers(self, offsets: Sequence[int]) -> Batch:
        """What delete markers say that are left where they are."""
        batch = Batch(self.table.cursor)
        for offset, (physical_offset, size, code) in zip(offsets, self._units(offsets), strict=True):
            try:
                properties = decode_record(self._log.record_at(physical_offset, size)).property_map()
            except LogboomError as error:
                log.warning("the delete marker at queue offset %d has no effect yet: %s", offset, error)
                continue
            if PLACE not in properties:
                self._add_name(batch, properties[DELETE_KEY], _slot(properties, code))
        return batch

    def of_promised(self, offsets: Sequence[int], now_ms: int) -> Batch:
        """Of what a begin announced and that did not follow it."""
        if self.table.last is not None and self.table.last.is_return:
            return self._of_torn_return(self.table.last, offsets[0])
        if self.table.last is not None and self.table.last.before:
            batch = self.of_moved(offsets, self.table.last.before, now_ms)
            batch.taken = 0  # it says that already
            return batch
        batch = Batch(self.table.cursor)
        for offset, unit in zip(offsets, self._units(offsets), strict=True):
            self._add(batch, offset, unit, now_ms, is_promised=True)
        return batch

    def of_moved(self, offsets: Sequence[int], before: int, now_ms: int) -> Batch:
        """Of entries that are not done, below that offset: each once more at the log's end. Where there is no room for what that
        adds to the properties, the batch ends before it."""
        batch = Batch(self.table.cursor, before=before)
        for offset, unit in zip(offsets, self._units(offsets), strict=True):
            try:
                draft = self._once_more(batch, offset, unit, now_ms)
            except LogboomError as error:
                self._set_aside(batch, offset, error)
                draft = None
            if draft is not None and len(draft.properties) > MAX_PROPERTIES_BYTES:
                batch.before = offset
                break
            batch.taken += 1
            if draft is not None:
                batch.rolled += 1
                batch.offsets.append(offset)
                batch.drafts.append(draft)
                batch.size_bytes += unit[1]
        return batch

    def promised(self) -> Sequence[int]:
        """What the last begin of the log announced and does not follow it: a master ended, or its log was cut, between them.

        Queue offsets; of what returns from the tier, numbers of its object.
        """
        last, at = self.table.last, self.table.last_end
        if last is None or at < self._log.begin_offset:
            return ()
        for index, _ in enumerate(last.offsets):
            record = self._log.find_record(at)
            if record is None or number_of(decode_record(record).property_map(), PLACE) is None:
                return last.offsets[index:]
            at += len(record)
        return ()

    def leg_ms(self, batch: Batch, due_ms: int, now_ms: int) -> int | None:
        """Of what is appended again. Where what is due then is done with already, it comes as soon as it can be found."""
        least_ms = max(batch.to, self.table.done.front).due_ms + 1
        return least_ms if self._is_passed(due_ms) else leg_before(due_ms, now_ms, least_ms, self._window_ms())

    def promised_entries(self) -> Sequence[int]:
        """The same, as far as it is still to be read from the queue."""
        return () if self.table.last is not None and self.table.last.is_return else self.promised()

    # ---- inside

    def _of_torn_return(self, last: Begin, missing: int) -> Batch:
        """From that number on the object's timers are in the tier alone, whatever was announced."""
        assert last.stowed is not None
        days = {topic: dict(counts) for topic, counts in last.days.items()}
        at, first_ms = self.table.last_end, last.due_ms
        for _ in range(missing - last.offsets[0]):
            record = self._log.find_record(at)
            assert record is not None, "it was found a moment ago"
            properties = decode_record(record).property_map()
            first_ms = due_by(properties) or first_ms
            days[properties[REAL_TOPIC]][day_of(first_ms)] -= 1
            at += len(record)
        back = {topic: {day: -count for day, count in counts.items() if count} for topic, counts in days.items()}
        stowed = last.stowed._replace(returned=missing, due_ms=first_ms)
        return Batch(self.table.cursor, stowed=stowed, days=back, first_ms=first_ms)

    def _ordinary(self, units: Sequence[Unit], offsets: Sequence[int]) -> OrdinaryTimers | None:
        """None when they cannot be read together."""
        try:
            return OrdinaryTimers(self._log.look_again, units, offsets, self._metadata)
        except LogboomError as error:
            log.warning("timers from queue offset %d on are read one by one: %s", offsets[0], error)
            return None

    def _end_of_ordinary(self, batch: Batch, ordinary: OrdinaryTimers | None, begin: int, end: int) -> int:
        """Up to where the entries from `begin` on are ordinary."""
        if ordinary is None:
            return begin
        end = ordinary.end_before(begin, end, batch.least_rolled_ms)
        names = {name for name, _ in batch.names}
        if not (names or self.table.names or self.table.places):
            return end
        return ordinary.end_kept(begin, end, self.table.places, (self.table.names, names))

    def _units(self, offsets: Sequence[int]) -> list[Unit]:
        """The entries at these queue offsets, dispatched or not. Raises StorageError."""
        low, end = self._log.queue_range(TIMER_TOPIC, 0)
        undispatched: Sequence[Unit] = ()
        if any(offset >= end for offset in offsets):
            undispatched = self._log.undispatched_units(TIMER_TOPIC)
        units: list[Unit] = []
        while (at := len(units)) < len(offsets):
            if offsets[at] >= end:
                units += undispatched[offsets[at] - end : offsets[at] - end + 1]
            else:
                units += self._log.units_at(TIMER_TOPIC, 0, list(takewhile(lambda each: each < end, offsets[at:])))
            if len(units) == at:
                raise StorageError(f"the queue of {TIMER_TOPIC} cannot be read at {offsets[at]}; it is [{low}, {end})")
        return units

    def _add(
        self, batch: Batch, offset: int, unit: Unit, now_ms: int, *, is_promised: bool, is_aside: bool = False
    ) -> None:
        try:
            self._add_readable(batch, offset, unit, now_ms, is_promised=is_promised, is_aside=is_aside)
        except LogboomError as error:
            self._set_aside(batch, offset, error)

    def _set_aside(self, batch: Batch, offset: int, error: LogboomError) -> None:
        if len(self.table.aside) + len(batch.aside) < MAX_ASIDE:
            self.note_aside(offset, error)
            batch.aside.append(offset)
        else:
            log.error("the timer at queue offset %d is given up, since many are set aside: %s", offset, error)
            batch.lost += 1

    def _once_more(self, batch: Batch, offset: int, unit: Unit, now_ms: int) -> Draft | None:
        """The timer as it goes on; None of what need not."""
        physical_offset, size, code = unit
        record = decode_record(self._log.record_at(physical_offset, size))
        properties = record.property_map()
        if kind_of(code) == RECALL:
            if PLACE not in properties:
                self._add_name(batch, properties[DELETE_KEY], _slot(properties, code))
            return None
        place = place_of(kind_of(code), properties, offset)
        if self._is_recalled(batch, properties, place, code):
            batch.recalled += 1
            return None
        due_ms = due_by(properties)
        due_ms = due_of(code) if due_ms is None else due_ms
        return rolled(record, place, due_ms, self.leg_ms(batch, due_ms, now_ms), is_cut=due_of(code) >= due_ms)

    def _add_readable(
        self, batch: Batch, offset: int, unit: Unit, now_ms: int, *, is_promised: bool, is_aside: bool
    ) -> None:
        physical_offset, size, code = unit
        record = decode_record(self._log.record_at(physical_offset, size))
        properties = record.property_map()
        if kind_of(code) == RECALL:
            if PLACE not in properties:
                self._add_name(batch, properties[DELETE_KEY], _slot(properties, code))
            return
        place = place_of(kind_of(code), properties, offset)
        if not is_promised and self._is_recalled(batch, properties, place, code):
            batch.recalled += 1
            return
        target = destination_of(properties, physical_offset, self._metadata)
        if target is None:
            batch.gone.append(offset)
            return
        due_ms = due_by(properties)
        is_on_the_way = due_ms is not None and due_of(code) < due_ms
        is_ahead = is_aside and due_ms is not None and due_ms > now_ms  # it could not be read when it was to be moved
        if due_ms is not None and (is_ahead or (is_on_the_way and (due_ms > now_ms or not self._is_passed(due_ms)))):
            # also when it is due by now: it comes behind what is due before, unless others overtook it
            draft = rolled(record, place, due_ms, self.leg_ms(batch, due_ms, now_ms), is_cut=not is_on_the_way)
            batch.rolled += 1
            batch.least_rolled_ms = min(batch.least_rolled_ms, due_ms)
        else:
            draft = delivered(record, target, place)
            batch.due_ms.append(record.store_timestamp_ms if due_ms is None else due_ms)
        batch.offsets.append(offset)
        batch.drafts.append(draft)
        batch.size_bytes += size

    def _is_passed(self, due_ms: int) -> bool:
        """Whether what is appended now to be due then would not be found, since that is done with."""
        return self.table.done.has(Key(due_ms, ALL - 1))

    def _add_name(self, batch: Batch, name: str, slot_ms: int) -> None:
        taken_back = self.table.taken_back
        if taken_back.is_named(name, slot_ms):
            return
        if taken_back.room_for_names(name.partition("+")[0]) > len(batch.names):
            batch.names.append((name, slot_ms))
        else:
            batch.without_effect.append(name)

    def _is_recalled(self, batch: Batch, properties: dict[str, str], place: int, code: int) -> bool:
        if place in self.table.places:
            return True
        if not batch.names and not self.table.names:
            return False
        name, slot_ms = name_of(properties), _slot(properties, code)
        return self.table.taken_back.is_named(name, slot_ms) or (name, slot_ms) in batch.names


def _slot(properties: dict[str, str], code: int) -> int:
    slot_ms = number_of(properties, OUT_MS)
    return slot_of(due_of(code)) if slot_ms is None else slot_ms
