"""Counts the timers that wait, behind everything else: an entry of the queue is looked at once, and never again.

It keeps nothing on disk. After a start, and when the log was cut or the cursor went back, it begins again, with the time that
followers of the log get; until it is done it says how many entries it has not come to. What was delivered before it came there
costs nothing.

A timer on its way (`rolling.py`) counts from its first record to the one that brings it to its time. Of those who took a
message back, a client's own delete marker is not followed: what it names counts until it would have been due.

What is in the tier when counting begins is known by days. What goes there later is counted already. Both are counted anew when
they come back.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from brokerd.delay.rules import REAL_TOPIC
from brokerd.journal.record_log import RecordLog
from brokerd.store.again import Copies
from brokerd.store.unit import BLANK_SIZE, Unit
from brokerd.timers.batch import Batch
from brokerd.timers.codes import (
    DUE_MS,
    MESSAGE,
    MOVED,
    OUT_MS,
    PLACE,
    RECALL,
    ROLLED,
    SLOT_MS,
    added_of,
    due_of,
    key_of,
    kind_of,
    number_of,
)
from brokerd.timers.counts import WaitingCounts, minute_of
from brokerd.timers.cursor import Days
from brokerd.timers.done import Done
from brokerd.timers.said import COUNTED, NOTHING, Saying, counted_of, latest_ms
from remoting.errors import ProtocolError, StorageError
from remoting.facts.timers import MINUTE_MS
from remoting.names import TIMER_TOPIC
from remoting.record.fields import properties_of

_BYTES_OF_ENTRY: Final = 1 << 9  # of what a slice may read, for each entry that it takes
_APART: Final = 16  # entries that are looked at one by one, before many are tried again
_SAID: Final = re.compile(rb"(?:^|\x02)(REAL_TOPIC|TIMER_DUE_MS|TIMER_MOVED|TIMER_OUT_MS|TIMER_PLACE)\x01([^\x02]+)")


class Known(NamedTuple):
    """What is known of deliveries by all that was appended: what is done with, which places were taken back, and what is in the
    tier."""

    done: Done
    places: Collection[int]
    days: Days


class _Said(NamedTuple):
    topic: str
    due_ms: int
    place: int | None
    moved: int  # it was appended again on its last leg, before its time; more than 1: as `copies.rolled` has it

    @property
    def was_cut(self) -> bool:
        return self.moved > 0


class TimerCounting:
    """Follows the timer topic's queue (`store.derived.background.Reader`)."""

    def __init__(self, record_log: RecordLog, known: Callable[[], Known | None], saying: Saying | None = None) -> None:
        """`known` is None while nobody knows."""
        self.counts = WaitingCounts()
        self._saying = saying
        self._log = record_log
        self._known = known
        self._begin_again()

    def _begin_again(self) -> None:
        self.counts.clear()
        self.offset = 0
        self._applied = 0
        self._first: Done | None = None
        self._seen = Done()  # at the last look
        self._first_end = 0  # the entries below were appended before the first look
        self._skipped: set[int] = set()  # places that were taken back before they were counted

    @property
    def uncounted(self) -> int:
        """Entries that it has not come to."""
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        return max(0, high - max(low, self._applied))

    def truncated(self) -> None:
        """The log was cut."""
        self._begin_again()

    def take(self, limit_offset: int, most_bytes: int) -> int:
        """As a follower of the log does; what it returns is more than 0 when there was something to do."""
        if self.offset >= limit_offset:
            return 0
        known = self._known()
        if known is None:
            return 0
        if known.done.went_back(self._seen):  # minutes that were forgotten are ahead once more
            self._begin_again()
        self._seen = known.done
        low, high = self._log.queue_range(TIMER_TOPIC, 0)
        if self._first is None:
            self._first = known.done
            for topic, days in known.days.items():
                for day, count in days.items():
                    self.counts.add_to_day(topic, day, count)
            self._first_end = high + len(self._log.undispatched_units(TIMER_TOPIC))
        self.counts.forget_before(known.done.cursor.due_ms)
        self._applied = max(self._applied, low)
        count = min(max(1, most_bytes // _BYTES_OF_ENTRY), high - self._applied)
        looked = self._look_together(count, known) if count > 0 else 0
        if not looked:
            count = count if self._saying is None else min(count, _APART)
            units = self._log.read_units(TIMER_TOPIC, 0, self._applied, count) if count > 0 else ()
            for unit in units:
                self._look(unit, known, self._first)
                self._applied += 1
            looked = len(units)
        # how far behind it is says nothing of the bytes between its entries, which are nothing to it
        self.offset = limit_offset if self._applied >= high else limit_offset - 1
        return looked or int(self._applied >= high)

    def delivered(self, batch: Batch) -> None:
        """The master appended what this batch delivers. Minutes that have passed are forgotten whole; here it is about the
        minute in which the cursor is."""
        known = self._known()
        if known is None or not batch.due_ms:
            return
        minute = minute_of(known.done.cursor.due_ms)
        gone: Counter[tuple[str, int]] = Counter()
        at = due_at = 0
        for draft in batch.drafts:
            if not isinstance(draft, Copies):
                if draft.topic != TIMER_TOPIC:
                    if batch.offsets[at] < self._applied:
                        gone[draft.topic, batch.due_ms[due_at]] += 1
                    due_at += 1
                at += 1
                continue
            begin, end, looked = draft.begin, draft.end, draft.looked
            offsets, due_ms = batch.offsets[at : at + end - begin], batch.due_ms[due_at : due_at + end - begin]
            at, due_at = at + end - begin, due_at + end - begin
            if minute_of(due_ms[-1]) < minute or min(offsets) >= self._applied:
                continue
            if minute_of(due_ms[0]) == minute_of(due_ms[-1]) and max(offsets) < self._applied:
                for group, count in Counter(looked.group[begin:end]).items():
                    gone[looked.groups[group][0], due_ms[0]] += count
                continue
            for number, offset, due in zip(range(begin, end), offsets, due_ms, strict=True):
                if offset < self._applied:
                    gone[looked.groups[looked.group[number]][0], due] += 1
        for (topic, due), count in gone.items():
            if minute_of(due) >= minute:
                self.counts.remove(topic, due, count)

    # ---- inside

    def _look_together(self, count: int, known: Known) -> int:
        """Look at the next entries as `_look` does, up to one that it has to look at; returns how many."""
        first = self._applied
        if self._saying is None or first < known.done.moved:
            return 0
        if places := known.places:
            count = next((n for n in range(count) if first + n in places), count)
        said = self._saying(first, count, latest_ms(known.done)) if count else NOTHING
        for number, alike in Counter(said.column(COUNTED)).items():
            topic, minute, is_on_the_way = counted_of(number)
            name, due_ms = str(said.topics[topic], "utf-8", "replace"), minute * MINUTE_MS + 1
            self.counts.add(name, due_ms, is_on_the_way=is_on_the_way, count=alike)
        self._applied += said.timers
        return said.timers

    def _look(self, unit: Unit, known: Known, first: Done) -> None:
        physical_offset, size, code = unit
        if size == BLANK_SIZE:
            return
        offset, kind = self._applied, kind_of(code)
        key, is_early = key_of(code, offset), offset < self._first_end
        if kind == RECALL:
            if not is_early and (said := self._said(physical_offset, size)) is not None and said.place is not None:
                if said.place in self._skipped:
                    self._skipped.remove(said.place)
                else:
                    self.counts.remove(said.topic, said.due_ms)
            return
        has_passed = known.done.has(key)
        has_moved = has_passed and not known.done.is_over(key)
        if has_passed and (first.has(key) if is_early else kind != ROLLED and not has_moved):
            if offset in known.places:  # its marker, which is still to come, takes nothing either
                self._skipped.add(offset)
            return
        said = self._said(physical_offset, size, is_sent=kind == MESSAGE)
        if said is None:
            return
        if kind == ROLLED and not is_early:
            # what was in the tier when counting began counts by its day
            was_at_begin = 1 < said.moved <= first.moved
            is_counted = said.was_cut and not was_at_begin
            (self.counts.remove if is_counted else self.counts.arrive)(said.topic, said.due_ms)
        is_on_the_way = said.due_ms > due_of(code)
        place = said.place if kind == ROLLED and said.place is not None else offset
        if place in known.places:
            self._skipped.add(place)
        elif not has_passed or is_on_the_way or has_moved:
            self.counts.add(said.topic, said.due_ms, is_on_the_way=is_on_the_way)

    def _said(self, physical_offset: int, size: int, *, is_sent: bool = False) -> _Said | None:
        """None of a record that cannot be read: whoever delivers it says so. `is_sent`: its message waits since it was sent, so
        it has no other place."""
        try:
            properties = properties_of(self._log.record_at(physical_offset, size))
        except (StorageError, ProtocolError):
            return None
        if is_sent and (added := added_of(properties)) is not None:
            return _Said(str(added.topic, "utf-8", "replace"), max(added.due_ms, added.slot_ms + 1), None, 0)
        said = {str(name, "ascii"): str(value, "utf-8", "replace") for name, value in _SAID.findall(properties)}
        due_ms, slot_ms, place = (number_of(said, name) for name in (DUE_MS, OUT_MS, PLACE))
        if slot_ms is not None and due_ms is None:
            due_ms = slot_ms + SLOT_MS
        if due_ms is None or REAL_TOPIC not in said:
            return None
        due_ms = due_ms if slot_ms is None else max(due_ms, slot_ms + 1)
        return _Said(said[REAL_TOPIC], due_ms, place, number_of(said, MOVED) or 0)
