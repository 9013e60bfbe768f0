"""The batches of one queue: rows of blocks, and the few that do not fit into one (pure).

As a mapping it has the open batches by pop time. Beside them it has those that are done and remembered, so that an ack that is
asked again is known. The blocks are in the order of pop times, and so are their rows; what is new goes to the end of
the last one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from brokerd.pop.batch import NEVER_MS, Batch, LooseBatch, Queue, Taken
from brokerd.pop.blocks import (
    ACKED,
    CLIENT,
    FLAGS,
    GROUPED,
    INT64,
    NAMED,
    ONCE,
    ORDERED,
    REMAINING,
    REMEMBERED,
    ROW,
    ROW_BYTES,
    ROWS,
    STATE,
    TIMER,
    TIMERS,
    UINT32,
    WAITING,
    Block,
    DueRow,
    Resumed,
)
from brokerd.pop.leases import Leases
from brokerd.pop.packed import PackedBatch
from brokerd.pop.records import Pop

_TIGHT: Final = 32  # a block of so few rows is left as it is
_UINT64: Final = 1 << 64
_HELD_BY_MORE: Final = NAMED | GROUPED
_NO_TIMES: Final = array("q")


class Finished(NamedTuple):
    """Of messages that were finished in rows: how many, and how many batches are done with them; likewise of those that waited to
    be taken again; the pop times of the batches that are done and `remembered`, as a client finished some of them. `others` are
    entries of batches that are not only rows: they are as they were."""

    messages: int
    batches: int
    returned: int
    returned_batches: int
    remembered: list[int]
    others: list[tuple[int, int]]


class Keeper(Protocol):
    """Who writes a snapshot, and needs what was there when it began."""

    def queue_changes(self, queue: Queue) -> None: ...

    def block_changes(self, batches: Batches, block: Block) -> None: ...

    def batch_changes(self, batches: Batches, batch: LooseBatch) -> None: ...


@dataclass(slots=True)
class Common:
    """What the queues of a ledger have in common. `resumed` is the start of the mastership that times are of."""

    leases: Leases
    keeper: Keeper | None = None
    resumed: Resumed | None = None

    def queue_changes(self, queue: Queue) -> None:
        """What snapshots hold of the queue itself is about to change."""
        if self.keeper is not None:
            self.keeper.queue_changes(queue)


class Batches(Mapping[int, Batch]):
    """Changed by `QueueLedger` and by what is seen of a batch."""

    __slots__ = ("_common", "_count", "_done", "_firsts", "_last_found", "_names", "blocks", "loose", "queue")

    def __init__(self, queue: Queue, common: Common) -> None:
        self.queue = queue
        self.blocks: list[Block] = []
        self.loose: dict[int, LooseBatch] = {}
        self._common = common
        self._firsts = array("q")  # not behind the first pop time of each block, and behind all of the block before
        self._done: dict[int, LooseBatch] = {}  # remembered ones
        self._names: dict[int, str] = {}  # attempt ids of rows
        self._count = 0
        # what is looked for next is often right behind it, if it is still there
        self._last_found = Block(queue.number, None), 0

    # ---- open batches

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        """Those in rows first, then the others. Nothing may change meanwhile."""
        for block in self.blocks:
            for number, pop_time_ms in enumerate(block.times):
                if block.remaining(number):
                    yield pop_time_ms
        yield from self.loose

    def __getitem__(self, pop_time_ms: int) -> Batch:
        loose = self.loose.get(pop_time_ms)
        if loose is not None:
            return loose
        found = self.find(pop_time_ms)
        if found is None or not found[0].remaining(found[1]):
            raise KeyError(pop_time_ms)
        return PackedBatch(self, *found)

    def get(self, pop_time_ms: int, default: Any = None) -> Any:
        loose = self.loose.get(pop_time_ms)
        if loose is not None:
            return loose
        found = self.find(pop_time_ms)
        return PackedBatch(self, *found) if found is not None and found[0].remaining(found[1]) else default

    def returned(self, pop_time_ms: int, ticket: int) -> Batch | None:
        """The open batch that waits to be taken again with that ticket."""
        found = self.find(pop_time_ms)
        if found is None:
            loose = self.loose.get(pop_time_ms)
            return loose if loose is not None and loose.timer_ms == ticket else None
        timer_ms, remaining = TIMERS.unpack_from(found[0].rows, found[1] * ROW_BYTES)
        return PackedBatch(self, *found) if timer_ms == ticket and remaining else None

    def waiting(self, tickets: Iterable[int], pop_times: Iterable[int]) -> list[DueRow | LooseBatch | None]:
        """Those of batches that wait to be taken again with their tickets. Most are rows."""
        waiting: list[DueRow | LooseBatch | None] = []
        number = -1
        rows, times = bytearray(), _NO_TIMES
        for ticket, pop_time_ms in zip(tickets, pop_times, strict=True):
            number += 1
            if number >= len(times) or times[number] != pop_time_ms:
                found = self.find(pop_time_ms)
                if found is None:
                    loose = self.loose.get(pop_time_ms)
                    waiting.append(loose if loose is not None and loose.timer_ms == ticket else None)
                    continue
                block, number = found
                rows, times = block.rows, block.times
            first, timer_ms, deliveries, remaining = WAITING.unpack_from(rows, number * ROW_BYTES)
            if timer_ms != ticket or not remaining:
                waiting.append(None)
            else:
                waiting.append((pop_time_ms, first, remaining, 1 if deliveries == ONCE else deliveries))
        return waiting

    def first_held(self) -> int | None:
        """The earliest pop time of what does not wait to be taken again; None without any."""
        packed = (block.first_held() for block in self.blocks if block.live)
        first = next((pop_time_ms for pop_time_ms in packed if pop_time_ms is not None), None)
        loose = (batch.pop_time_ms for batch in self.loose.values() if not batch.is_returned)
        return min((each for each in (first, next(loose, None)) if each is not None), default=None)

    def known(self, pop_time_ms: int) -> Batch | None:
        """An open batch, or one that is done and remembered."""
        found = self.find(pop_time_ms)
        if found is not None:
            return PackedBatch(self, *found)
        return self.loose.get(pop_time_ms) or self._done.get(pop_time_ms)

    # ---- changes

    def add(self, taken: Taken) -> Block | LooseBatch:
        """One more; returns what has it."""
        self._count += 1
        pop = taken.pop
        assert pop.pop_time_ms not in self.loose
        number = self._common.leases.begin(pop.client_id, self.queue.number, pop.pop_time_ms) if pop.client_id else 0
        if not _fits(taken):
            loose = LooseBatch(self.queue, taken)
            self.loose[pop.pop_time_ms] = loose
            return loose
        counts, groups, count = taken.counts, taken.groups, taken.size
        flags = ORDERED if pop.ordered else 0
        if groups is not None:
            flags |= GROUPED
        if pop.attempt_id:
            flags |= NAMED
            self._names[pop.pop_time_ms] = pop.attempt_id
        row = ROW.pack(
            taken.first,
            pop.invisible_time_ms,
            pop.tag,
            groups[0] if groups is not None else 0,
            pop.due_ms,
            pop.due_ms,
            NEVER_MS,
            number,
            counts[0] if counts is not None else ONCE,
            taken.remaining & (1 << count) - 1,
            0,
            count,
            flags,
        )
        block = self._block_for(pop.pop_time_ms)
        self.changes(block)
        block.add(pop.pop_time_ms, row, taken.first, taken.first + count)
        return block

    def know_groups(self, batch: Batch, groups: Sequence[int]) -> LooseBatch | None:
        """The message groups of an open batch that did not know them. They may not fit into its row: then it gets out of it, and
        is returned."""
        if isinstance(batch, LooseBatch):
            batch.groups = groups
            return None
        assert isinstance(batch, PackedBatch)
        if len(groups) == 1:
            batch.know_group(groups[0])
            return None
        pop_time_ms = batch.pop_time_ms
        pop = Pop(
            *(pop_time_ms, batch.invisible_time_ms, batch.due_ms, batch.client_id, batch.attempt_id),
            *(batch.ordered, batch.tag),
        )
        loose = LooseBatch(self.queue, Taken(pop, batch.first, batch.count, batch.counts, groups, batch.remaining))
        loose.acked = batch.acked
        batch.remaining = 0
        self._drop(pop_time_ms)
        self.loose[pop_time_ms] = loose
        return loose

    def end(self, batch: Batch, *, is_remembered: bool) -> None:
        """Nothing of an open batch is unfinished any more."""
        self._count -= 1
        pop_time_ms = batch.pop_time_ms
        if batch.client_id:
            self._common.leases.end(batch.client_id)
        if isinstance(batch, LooseBatch):
            del self.loose[pop_time_ms]
            if is_remembered:
                self._done[pop_time_ms] = batch
        elif is_remembered:
            block = self.blocks[bisect_right(self._firsts, pop_time_ms) - 1]
            at = block.find(pop_time_ms) * ROW_BYTES
            block.rows[at + FLAGS] |= REMEMBERED
            UINT32.pack_into(block.rows, at + CLIENT, 0)  # its number may be another client's soon
        else:
            self._drop(pop_time_ms)

    def finish_rows(self, entries: Iterable[tuple[int, int]], *, acked: bool) -> Finished:
        """Finish messages, each entry a pop time and a mask, of batches that are nothing but rows: no lease, attempt or group has
        them. `QueueLedger.finish` and `end` do the same, with several looks at the row."""
        messages = batches = returned = returned_batches = 0
        remembered: list[int] = []
        others: list[tuple[int, int]] = []
        block, number = self._last_found
        rows, times = block.rows, _NO_TIMES  # the first one is looked for
        gone = last_ms = 0  # of the block: rows that are neither open nor remembered now, and one of them
        for entry in entries:
            pop_time_ms, mask = entry
            number += 1
            if number >= len(times) or times[number] != pop_time_ms:
                found = self.find(pop_time_ms) if pop_time_ms not in self.loose else None
                if found is None:
                    others.append(entry)
                    continue
                if found[0] is not block or times is _NO_TIMES:
                    self._lose(block, gone, last_ms)
                    gone = 0
                    block = found[0]
                    rows, times = block.rows, block.times
                    self.changes(block)
                number = found[1]
            at = number * ROW_BYTES
            timer_ms, client, _, remaining, before, _, flags = STATE.unpack_from(rows, at)
            if client or flags & _HELD_BY_MORE or not remaining:
                others.append(entry)
                continue
            mask &= remaining
            UINT32.pack_into(rows, at + REMAINING, remaining ^ mask)
            if acked:
                before |= mask
                UINT32.pack_into(rows, at + ACKED, before)
            count = mask.bit_count()
            messages += count
            was_returned = timer_ms > NEVER_MS
            if was_returned:
                returned += count
            if remaining != mask:
                continue
            batches += 1
            returned_batches += was_returned
            if before:
                INT64.pack_into(rows, at + TIMER, NEVER_MS)
                rows[at + FLAGS] = flags | REMEMBERED
                remembered.append(pop_time_ms)
            else:
                gone += 1
                last_ms = pop_time_ms
        self._count -= batches
        self._last_found = block, number
        self._lose(block, gone, last_ms)
        return Finished(messages, batches, returned, returned_batches, remembered, others)

    def forget(self, pop_time_ms: int) -> None:
        """A batch that is done is remembered no more."""
        if self._done.pop(pop_time_ms, None) is None:
            found = self.find(pop_time_ms)
            if found is not None and found[0].rows[found[1] * ROW_BYTES + FLAGS] & REMEMBERED:
                found[0].rows[found[1] * ROW_BYTES + FLAGS] &= ~REMEMBERED
                self._drop(pop_time_ms)

    def forget_all(self) -> None:
        """No batch that is done is remembered; none is open."""
        assert not self._count
        for block in self.blocks:
            self.changes(block)
            block.clear()
        self.blocks.clear()
        del self._firsts[:]
        self._done.clear()
        self._names.clear()

    def changes(self, block: Block) -> None:
        """A row of the block is about to change in what snapshots hold."""
        if self._common.keeper is not None:
            self._common.keeper.block_changes(self, block)

    def loose_changes(self, batch: Batch) -> None:
        """Likewise, if it is not in a row."""
        if self._common.keeper is not None and isinstance(batch, LooseBatch):
            self._common.keeper.batch_changes(self, batch)

    def names_of(self, block: Block) -> dict[int, str]:
        """The attempt ids of its rows, by pop time."""
        names = self._names
        return {each: names[each] for each in block.times if each in names} if names else {}

    # ---- for what is seen of a batch

    def find(self, pop_time_ms: int) -> tuple[Block, int] | None:
        block, number = self._last_found
        number += 1
        times = block.times
        if number >= len(times) or times[number] != pop_time_ms:
            place = bisect_right(self._firsts, pop_time_ms) - 1
            if place < 0:
                return None
            block = self.blocks[place]
            times = block.times
            number = bisect_left(times, pop_time_ms)
            if number == len(times) or times[number] != pop_time_ms:
                return None
        rows, at = block.rows, number * ROW_BYTES
        if not (UINT32.unpack_from(rows, at + REMAINING)[0] or rows[at + FLAGS] & REMEMBERED):
            return None
        if block.resumed is not self._common.resumed:
            block.resume(self._common.resumed)
        self._last_found = found = block, number
        return found

    def client_id(self, number: int) -> str:
        return self._common.leases.client_id(number)

    def attempt_id(self, pop_time_ms: int) -> str:
        return self._names[pop_time_ms]

    # ---- inside

    def _block_for(self, pop_time_ms: int) -> Block:
        """The block that a new row belongs to."""
        blocks, firsts = self.blocks, self._firsts
        last = blocks[-1] if blocks else None
        if last is not None and pop_time_ms < (last.times[-1] if last.times else firsts[-1]):
            at = max(0, bisect_right(firsts, pop_time_ms) - 1)  # it was decided before what is there
            firsts[at] = min(firsts[at], pop_time_ms)
            last = blocks[at]
        elif last is None or len(last.times) >= ROWS:
            last = Block(self.queue.number, self._common.resumed)
            blocks.append(last)
            firsts.append(pop_time_ms)
        elif not last.times:
            firsts[-1] = pop_time_ms
        if last.resumed is not self._common.resumed:
            last.resume(self._common.resumed)
        return last

    def _drop(self, pop_time_ms: int) -> None:
        """A row is neither open nor remembered any more."""
        block = self.blocks[bisect_right(self._firsts, pop_time_ms) - 1]
        block.live -= 1
        if block.rows[block.find(pop_time_ms) * ROW_BYTES + FLAGS] & NAMED:
            del self._names[pop_time_ms]
        self._shrink(block, pop_time_ms)

    def _lose(self, block: Block, gone: int, pop_time_ms: int) -> None:
        """So many rows of a block are neither open nor remembered any more, the one of that pop time among them."""
        if gone:
            block.live -= gone
            self._shrink(block, pop_time_ms)

    def _shrink(self, block: Block, pop_time_ms: int) -> None:
        """The block of that row has a live one less."""
        if not block.live:
            self.changes(block)
            block.clear()
            if block is not self.blocks[-1]:
                at = bisect_right(self._firsts, pop_time_ms) - 1
                del self.blocks[at], self._firsts[at]
        elif 2 * block.live < len(block.times) and len(block.times) > _TIGHT:
            self.changes(block)
            block.tighten()


def _fits(taken: Taken) -> bool:
    """Whether a row can hold the batch."""
    shape, counts, groups = taken.shape, taken.counts, taken.groups
    return (
        isinstance(shape, int)
        and (counts is None or (0 <= counts[0] < ONCE and counts.count(counts[0]) == shape))
        and (groups is None or shape == 1)
        and 0 <= taken.pop.tag < _UINT64
    )
