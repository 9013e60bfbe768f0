"""When the ledger looks at which batch next: on the master (pure).

One heap. A batch of its own has an entry for each time that was set; those that are outdated are dropped when they surface, and
swept when they outnumber the others. A block of rows has one for the earliest timer of its rows. When that is due, the block
notes which timers are within `_AHEAD_MS`, so that it is looked through rarely, and what a client finishes in time costs nothing
here. Rows that are due at once come out together.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final, NamedTuple

from brokerd.pop.batch import NEVER_MS, Batch
from brokerd.pop.blocks import Block, DueRow, Resumed
from brokerd.pop.leases import Named
from brokerd.pop.packed import PackedBatch

_SLACK: Final = 1024
_AHEAD_MS: Final = 1000
_BLOCKS_AT_ONCE: Final = (
    4  # are looked through in one turn of the loop: about a millisecond, as a new master looks at all
)


class DueRows(NamedTuple):
    """Rows of one block whose timers fired, which are nothing but batches that come again (`blocks.Fired`)."""

    block: Block
    rows: list[DueRow]


class Due(NamedTuple):
    """What is to be looked at now: each has its timer off."""

    rows: list[DueRows]
    batches: list[Batch]


class Timers:
    def __init__(self, named: Named) -> None:
        self._named = named
        self._resumed: Resumed | None = None
        self._heap: list[tuple[int, int, Block | Batch]] = []
        self._sequence = 0
        self._most = _SLACK

    def clear(self) -> None:
        self._heap.clear()

    def next_ms(self) -> int:
        """When `expire` has something to do; NEVER_MS when never."""
        return self._heap[0][0] if self._heap else NEVER_MS

    def set(self, batch: Batch, timer_ms: int) -> None:
        batch.timer_ms = timer_ms
        block = batch.block if isinstance(batch, PackedBatch) else None
        self.note(block if block is not None else batch, batch.pop_time_ms, timer_ms)

    def note(self, holder: Block | Batch, pop_time_ms: int, timer_ms: int) -> None:
        """The timer of a batch is set; `holder` has it."""
        if isinstance(holder, Block):
            before_ms = holder.earliest_ms
            holder.note_timer(pop_time_ms, timer_ms)
            if timer_ms < before_ms:
                self._push(timer_ms, holder)
        else:
            self._push(timer_ms, holder)

    def expire(self, now_ms: int, limit: int) -> Due:
        """Batches whose timer fired, with `limit` messages or a few more; their timers are off then. It may be that there are
        none, and yet more to do at once."""
        due = Due([], [])
        heap = self._heap
        looks = 0
        while heap and heap[0][0] <= now_ms and limit > 0 and looks < _BLOCKS_AT_ONCE:
            timer_ms, _, each = heapq.heappop(heap)
            if _timer_of(each) != timer_ms:
                continue
            if isinstance(each, Block):
                looks += not each.near
                limit -= self._fire(each, now_ms, limit, due)
            else:
                each.timer_ms = NEVER_MS
                due.batches.append(each)
                limit -= each.remaining.bit_count()
        return due

    def restart(self, resumed: Resumed, live: Iterable[Block | Batch]) -> None:
        """Time afresh on a new master: all of these are looked at anew, the blocks from now on."""
        self._resumed = resumed
        entries: list[tuple[int, int, Block | Batch]] = []
        for number, each in enumerate(live):
            if isinstance(each, Block):
                each.look_again(resumed.now_ms)
                entries.append((resumed.now_ms, number, each))
            else:
                entries.append((each.timer_ms, number, each))
        heapq.heapify(entries)
        self._heap = entries
        self._sequence = len(entries)
        self._most = 2 * len(entries) + _SLACK

    # ---- inside

    def _fire(self, block: Block, now_ms: int, limit: int, due: Due) -> int:
        """Add the rows of a block that are due; how many messages they have."""
        if not block.near:
            if block.resumed is not self._resumed:
                block.resume(self._resumed)
            block.look(now_ms + _AHEAD_MS)
        rows, others, messages = block.fire(now_ms, limit)
        if rows:
            due.rows.append(DueRows(block, rows))
        for pop_time_ms in others:
            batch = self._named(block.queue_number, pop_time_ms)
            assert batch is not None
            due.batches.append(batch)
        if block.earliest_ms < NEVER_MS:
            self._push(block.earliest_ms, block)
        return messages

    def _push(self, timer_ms: int, each: Block | Batch) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (timer_ms, self._sequence, each))
        if len(self._heap) > self._most:
            self._sweep()

    def _sweep(self) -> None:
        """Drop the entries that are outdated."""
        self._heap[:] = [entry for entry in self._heap if _timer_of(entry[2]) == entry[0]]
        heapq.heapify(self._heap)
        self._most = 2 * len(self._heap) + _SLACK


def _timer_of(each: Block | Batch) -> int:
    if isinstance(each, Block):
        return each.earliest_ms
    return each.timer_ms if each.remaining else NEVER_MS
