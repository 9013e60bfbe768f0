"""The keys of one slot's records in order, gathered in steps from the timer log.

A slot's records are linked from the newest to the oldest, and are due in any order within its second, so all of them have to be
seen before the first is known. A slot may have millions: `gather` looks at a bounded number in a call, and what comes into the
slot afterwards is added. A key takes 8 bytes here. When there are too many, the later half is left out until the
others were taken.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from heapq import merge
from itertools import islice
from typing import Final

from brokerd.timers.codes import SLOT_MS, Key
from brokerd.timers.files.layout import NO_POSITION, DamagedTimerFiles, Slot
from brokerd.timers.files.timer_log import TimerLog

_OFFSET_BITS: Final = 50
_LARGE_CHUNK: Final = 1 << 13  # is not made larger: that would take more than a few milliseconds
_NO_OFFSET: Final = 1 << 63
_SAMPLES: Final = 1 << 13
MOST_KEYS: Final = 1 << 21


class SlotKeys:
    """Those of the slot `slot_ms` that are behind `after`."""

    def __init__(self, log: TimerLog, slot_ms: int, after: Key, most_keys: int = MOST_KEYS) -> None:
        self.slot_ms = slot_ms
        self.after = after
        self._log = log
        self._most_keys = most_keys
        self._chunks: list[array[int]] = []
        self._count = 0
        self._last_kept: int | None = None  # later ones were left out
        self._seen = Slot(NO_POSITION, NO_POSITION, 0)  # what was gathered
        self._aim = self._seen  # what is being gathered, newest first
        self._at = NO_POSITION
        self._messages = 0
        self._visited = NO_POSITION
        self._before = _NO_OFFSET  # the queue offset of the record that was looked at last
        self._lacks_begin = False  # a file with its first records went with the log's

    def has_all_before(self, until_ms: int) -> bool:
        """Whether nothing was left out that is due before that time."""
        return self._last_kept is None or self._last_kept >= self._pack(Key(until_ms, -1))

    def gather(self, slot: Slot, most_records: int) -> int:
        """Go on towards what the slot is now; returns how many records were looked at, fewer than `most_records` when it is
        reached.

        Raises DamagedTimerFiles when the slot's records are not what the slot says.
        """
        done = 0
        while done < most_records:
            if self._at == self._seen.last:
                self._reach()
                if self._aim.last == slot.last:
                    break
                self._aim, self._at, self._messages, self._visited = slot, slot.last, 0, NO_POSITION
                self._before = _NO_OFFSET
            done += self._step(most_records - done)
        return done

    def _reach(self) -> None:
        if self._aim == self._seen:
            return
        first = self._aim.first if self._seen.last == NO_POSITION else self._visited
        expected = (first, self._aim.messages - self._seen.messages)
        if not self._lacks_begin and (self._visited, self._messages) != expected:
            raise DamagedTimerFiles(f"the records of the timer slot {self.slot_ms} are not those that it counts")
        self._seen, self._lacks_begin = self._aim, False
        self._at = self._seen.last

    def _step(self, most_records: int) -> int:
        """Look at some records; returns how many."""
        keys: list[int] = []
        done = 0
        while done < most_records and self._at != self._seen.last:
            record = self._log.record_at(self._at)
            if record is None:
                self._at, self._lacks_begin = self._seen.last, True
                break
            is_in_order = record.previous < self._at and record.queue_offset < self._before
            if record.slot_ms != self.slot_ms or not is_in_order:
                raise DamagedTimerFiles(
                    f"the record at {self._at} of the timer log is not one of the slot {self.slot_ms}"
                )
            done += 1
            self._before = record.queue_offset
            self._messages += record.is_message
            self._visited, self._at = self._at, record.previous
            packed = self._pack(record.key)
            if record.is_elsewhere:
                continue
            if record.key > self.after and (self._last_kept is None or packed <= self._last_kept):
                keys.append(packed)
        if keys:
            self._add(array("Q", sorted(keys)))
            self._count += len(keys)
            if self._count > self._most_keys:
                self._leave_out()
        return done

    def _add(self, keys: array[int]) -> None:
        """Few large chunks are faster to read from than many small ones."""
        while self._chunks and len(self._chunks[-1]) <= len(keys) <= _LARGE_CHUNK:
            keys = array("Q", sorted(self._chunks.pop() + keys))
        self._chunks.append(keys)

    def _leave_out(self) -> None:
        """Keep the earlier half, or nearly so: where it ends is the middle of a sample, since to put millions of keys in order
        would take half a second."""
        every = max(1, self._count // _SAMPLES)
        sample = sorted(key for chunk in self._chunks for key in chunk[every - 1 :: every])
        self._last_kept = last = sample[len(sample) // 2]
        for chunk in self._chunks:
            del chunk[bisect_right(chunk, last) :]
        self._chunks = [chunk for chunk in self._chunks if chunk]
        self._count = sum(map(len, self._chunks))

    def take(self, after: Key, until_ms: int, limit: int, least_offset: int = 0) -> list[Key]:
        """The first of those gathered that are behind `after` and due before `until_ms`, of queue offsets from the least on."""
        low, high = self._pack(after), self._pack(Key(until_ms, -1))
        parts = []
        for chunk in self._chunks:
            first = bisect_right(chunk, low)
            parts.append(memoryview(chunk)[first : bisect_left(chunk, high, first)])
        keys = (self._unpack(packed) for packed in merge(*parts))
        return list(islice((key for key in keys if key.offset >= least_offset), limit))

    def _pack(self, key: Key) -> int:
        """In order of the keys of the slot; a key before the slot comes first. An offset may be larger than any record's."""
        since_ms = key.due_ms - self.slot_ms + SLOT_MS
        return 0 if since_ms < 0 else (since_ms << _OFFSET_BITS) + min(key.offset + 1, (1 << _OFFSET_BITS) - 1)

    def _unpack(self, packed: int) -> Key:
        return Key((packed >> _OFFSET_BITS) + self.slot_ms - SLOT_MS, (packed & ((1 << _OFFSET_BITS) - 1)) - 1)
