"""The keys of one slot's records in order, gathered in steps from the timer log.

A slot's records are linked from the newest to the oldest, and are due in any order within its second, so all of them have to be
seen before the first is known. A slot may have millions: `gather` looks at a bounded number in a call, and what comes into the
slot afterwards is added. A key takes 8 bytes here. When there are too many, the later half is left out until the
others were taken.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from brokerd.timers.codes import Key
from brokerd.timers.files.chain import ALL_KEPT, NO_OFFSET, Chain, Walk, pack, unpack
from brokerd.timers.files.layout import NO_POSITION, DamagedTimerFiles, Slot
from brokerd.timers.files.timer_log import TimerLog

_LARGE_CHUNK: Final = 1 << 13  # is not made larger: that would take more than a few milliseconds
_SAMPLES: Final = 1 << 13
_SURPLUS: Final = 2  # of parts that are mixed so much more is put in order at once than is asked for
MOST_KEYS: Final = 1 << 21


class SlotKeys:
    """Those of the slot `slot_ms` that are behind `after`."""

    def __init__(self, log: TimerLog, walk: Walk, slot_ms: int, after: Key, most_keys: int = MOST_KEYS) -> None:
        self.slot_ms = slot_ms
        self.after = after
        self._log = log
        self._walk = walk
        self._most_keys = most_keys
        self._chunks: list[array[int]] = []
        self._count = 0
        self._seen = Slot(NO_POSITION, NO_POSITION, 0)  # what was gathered
        self._aim = self._seen  # what is being gathered, newest first
        self._chain = Chain(slot_ms, after)
        self._lacks_begin = False  # a file with its first records went with the log's

    def has_all_before(self, until_ms: int) -> bool:
        """Whether nothing was left out that is due before that time."""
        last_kept = self._chain.last_kept
        return last_kept == ALL_KEPT or last_kept >= pack(Key(until_ms, -1), self.slot_ms)

    def gather(self, slot: Slot, most_records: int) -> int:
        """Go on towards what the slot is now; returns how many records were looked at, fewer than `most_records` when it is
        reached.

        Raises DamagedTimerFiles when the slot's records are not what the slot says.
        """
        done = 0
        while done < most_records:
            if self._chain.at == self._seen.last:
                self._reach()
                if self._aim.last == slot.last:
                    break
                self._aim = slot
                at, stop = slot.last, self._seen.last
                self._chain = replace(self._chain, at=at, stop=stop, before=NO_OFFSET, visited=NO_POSITION, messages=0)
            done += self._step(most_records - done)
        return done

    def _reach(self) -> None:
        if self._aim == self._seen:
            return
        chain = self._chain
        first = self._aim.first if self._seen.last == NO_POSITION else chain.visited
        expected = (first, self._aim.messages - self._seen.messages)
        if not self._lacks_begin and (chain.visited, chain.messages) != expected:
            raise DamagedTimerFiles(f"the records of the timer slot {self.slot_ms} are not those that it counts")
        self._seen, self._lacks_begin = self._aim, False
        chain.at = self._seen.last

    def _step(self, most_records: int) -> int:
        """Look at some records; returns how many."""
        chain, done, keys = self._chain, 0, array("Q")
        while done < most_records and chain.at != chain.stop:
            block = self._log.block_at(chain.at)
            if block is None:
                chain.at, self._lacks_begin = chain.stop, True
                break
            looked, found = self._walk(chain, *block, most_records - done)
            done += looked
            keys += found
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
        self._chain.last_kept = last = sample[len(sample) // 2]
        for chunk in self._chunks:
            del chunk[bisect_right(chunk, last) :]
        self._chunks = [chunk for chunk in self._chunks if chunk]
        self._count = sum(map(len, self._chunks))

    def take(self, after: Key, until_ms: int, limit: int, least_offset: int = 0) -> list[Key]:
        """The first of those gathered that are behind `after` and due before `until_ms`, of queue offsets from the least on."""
        low, high = pack(after, self.slot_ms), pack(Key(until_ms, -1), self.slot_ms)
        found: list[Key] = []
        while len(found) < limit:
            packed = self._first_behind(low, high, limit - len(found))
            if not packed:
                break
            keys = (unpack(each, self.slot_ms) for each in packed)
            found += [key for key in keys if key.offset >= least_offset]
            low = packed[-1]
        return found

    def _first_behind(self, low: int, high: int, limit: int) -> Sequence[int]:
        """Some of the first `limit` keys that are behind `low` and before `high`, in order: none when there is none."""
        parts = []  # where the rest of each chunk begins
        for number, chunk in enumerate(self._chunks):
            at = bisect_right(chunk, low)
            if at < len(chunk) and chunk[at] < high:
                parts.append((chunk[at], number, at))
        if not parts:
            return ()
        parts.sort()
        share = 1 + _SURPLUS * limit // len(parts)
        _, number, at = parts[0]
        alone_to = bisect_left(self._chunks[number], parts[1][0] if parts[1:] else high, at)
        if len(parts) == 1 or alone_to - at >= min(share, limit):  # they came in the order in which they are due
            return self._chunks[number][at : min(alone_to, at + limit)]
        some = [self._chunks[number][at : at + share] for _, number, at in parts]
        # of a part that goes on, what is behind its share is not known here
        bound = min((each[-1] for each in some if len(each) == share), default=high - 1)
        found = sorted(chain.from_iterable(some))
        return found[: min(limit, bisect_right(found, min(bound, high - 1)))]
