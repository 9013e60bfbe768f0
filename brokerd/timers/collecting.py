"""What of the timer topic's queue goes to the tier together, found in turns: what files have that go soon, and is due long after.

The others of these entries go to the log's end with the same record (`cursor.py`), so they are not many.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final, NamedTuple

from brokerd.delay.rules import REAL_TOPIC
from brokerd.journal.record_log import RecordLog
from brokerd.store.index.postings import keys_of
from brokerd.timers.batch import Batch, Batches
from brokerd.timers.codes import (
    DELETE_KEY,
    MAX_DUE_MS,
    PLACE,
    RECALL,
    ROLLED,
    Key,
    day_of,
    due_by,
    key_of,
    kind_of,
    number_of,
)
from brokerd.timers.done import Done
from remoting.errors import LogboomError, ProtocolError
from remoting.names import TIMER_TOPIC
from remoting.record.fields import properties_of
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.tier.stowed import MOST_BYTES, MOST_TIMERS, StowedObject, Waiting
from remoting.tier.stowed_summary import MOST_KEYS, key_hash

MOST_OTHERS: Final = 256
MOST_OTHER_BYTES: Final = 1 << 20
WORTH_AN_OBJECT: Final = 64  # timers, unless there are no more

_READ_AT_ONCE: Final = 128  # records in a turn
_BYTES_AT_ONCE: Final = 1 << 20
_ENTRIES: Final = 4096
_ROOM_BYTES: Final = 128  # of the properties, for what a return adds
_SAID: Final = re.compile(
    rb"(?:^|\x02)(REAL_TOPIC|TIMER_DUE_MS|TIMER_OUT_MS|TIMER_PLACE|TIMER_DEL_UNIQKEY)\x01([^\x02]+)"
)


class _Far(NamedTuple):
    key: Key
    topic: str
    waiting: Waiting


class Collecting:
    """Of entries in `[first, end)`, those that are due behind `beyond_ms`. `at` is how far it is."""

    def __init__(self, log: RecordLog, batches: Batches, first: int, end: int, beyond_ms: int) -> None:
        self.at = first
        self._log = log
        self._batches = batches
        self._end = end
        self._beyond_ms = beyond_ms
        self._far: list[_Far] = []
        self._others: list[Key] = []
        self._bytes = self._other_bytes = 0
        self._least = Key(MAX_DUE_MS, 0)
        self._days: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    @property
    def is_worth_it(self) -> bool:
        """Whether an object should be made of them."""
        return len(self._far) >= (1 if self.at >= self._end else WORTH_AN_OBJECT)

    @property
    def first(self) -> int:
        """The first entry that waits."""
        return min([self.at, *(key.offset for key in (*self._others[:1], *(each.key for each in self._far[:1])))])

    def step(self) -> bool:
        """Look at a portion; whether there is more, for further turns. Raises LogboomError when the queue cannot be read."""
        done, read, read_bytes = self._batches.table.done, 0, 0
        first = self.at
        units = self._log.read_units(TIMER_TOPIC, 0, first, min(_ENTRIES, self._end - first))
        for offset, (physical_offset, size, code) in enumerate(units, first):
            if read == _READ_AT_ONCE or read_bytes >= _BYTES_AT_ONCE:
                return True
            key = key_of(code, offset)
            if not done.has(key):
                read, read_bytes = read + 1, read_bytes + size
                far = None if kind_of(code) == RECALL else self._far_timer(key, kind_of(code), physical_offset, size)
                if not self._take(far, key, size):
                    return False
            self.at = offset + 1
        return bool(units) and self.at < self._end

    def timers(self) -> list[Waiting]:
        """Those that go to the tier, in the order in which they are due."""
        return sorted((each.waiting for each in self._far), key=_due)

    def batch(self, entry: StowedObject, now_ms: int) -> Batch | None:
        """What records that they are in that object; None when something has happened since that keeps them from it."""
        done = self._batches.table.done
        if self._may_be_done(done) and any(done.has(each.key) for each in self._far):
            return None
        others = [key.offset for key in self._others if not done.has(key)]  # some were due meanwhile
        batch = self._batches.of_moved(others, self.at, now_ms)
        if batch.before != self.at:  # there is no room in one of the others for what a move adds
            return None
        batch.taken += len(self._far)
        batch.stowed, batch.days = entry, self._days
        return batch

    # ---- inside

    def _may_be_done(self, done: Done) -> bool:
        """Whether one that goes to the tier may be: mostly they are thousands, and all due long after."""
        return self._least <= done.front or done.moved > self.first or any(not each.is_open for each in done.fences)

    def _take(self, far: _Far | None, key: Key, size: int) -> bool:
        """False when there is no room for it."""
        if far is not None:
            if self._far and (len(self._far) == MOST_TIMERS or self._bytes + size > MOST_BYTES):
                return False
            self._far.append(far)
            self._bytes += size
            self._least = min(self._least, far.key)
            self._days[far.topic][day_of(far.waiting.due_ms)] += 1
            return True
        if self._others and (len(self._others) == MOST_OTHERS or self._other_bytes + size > MOST_OTHER_BYTES):
            return False
        self._others.append(key)
        self._other_bytes += size
        return True

    def _far_timer(self, key: Key, kind: int, physical_offset: int, size: int) -> _Far | None:
        """None of one that is due sooner, was taken back, or cannot be told."""
        try:
            record = bytes(self._log.record_at(physical_offset, size))
            properties = properties_of(record)
        except (LogboomError, ProtocolError):  # whoever moves it says so
            return None
        said = {str(name, "ascii"): str(value, "utf-8", "replace") for name, value in _SAID.findall(properties)}
        due_ms, place = due_by(said), number_of(said, PLACE) if kind == ROLLED else None
        if due_ms is None or due_ms <= self._beyond_ms or REAL_TOPIC not in said or DELETE_KEY in said:
            return None
        is_taken_back = (key.offset if place is None else place) in self._batches.table.places
        if is_taken_back or len(properties) > MAX_PROPERTIES_BYTES - _ROOM_BYTES:
            return None
        hashes = tuple(key_hash(each) for each in keys_of(bytes(properties))[:MOST_KEYS])
        return _Far(key, said[REAL_TOPIC], Waiting(due_ms, record, hashes))


def _due(waiting: Waiting) -> int:
    return waiting.due_ms
