"""The rows of a snapshot of the ledger, as `records` says, all at once or while the ledger changes (pure).

A `Frozen` ledger gives, in as many turns as its reader likes, what was there when it was made. Nothing is copied then: what is
about to change is, if it was not read yet, a block of rows (some 20 KB) or a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from brokerd.journal.replay import AddedRow
from brokerd.pop.batch import LooseBatch, Queue
from brokerd.pop.batches import Batches, Common
from brokerd.pop.blocks import GROUPED, NAMED, ONCE, ORDERED, ROW, Block
from brokerd.pop.handles import proof_of
from brokerd.pop.leases import Leases
from brokerd.pop.order.group_order import encode_hashes
from brokerd.pop.queue_ledger import QueueLedger

_BATCHES_PER_ROW: Final = 256

Row = list[Any]


def rows_of(queues: Iterable[QueueLedger], leases: Leases) -> Iterator[Row]:
    """All of these. Nothing may change meanwhile."""
    for queue in queues:
        yield from _rows(_Queue(queue), leases)


class Frozen:
    """`Keeper` of the ledger's queues until all is read, or nobody reads on."""

    def __init__(self, queues: Iterable[QueueLedger], common: Common) -> None:
        self._queues = list(queues)
        self._pending: dict[Queue, QueueLedger] = {queue: queue for queue in self._queues}
        self._common = common
        self._begun: dict[Queue, _Queue] = {}
        common.keeper = self
        common.leases.keep()

    def rows(self) -> Iterator[Row]:
        """All that was there, each once."""
        for queue in self._queues:
            begun = self._begun[queue] if queue in self._begun else self._begin(queue)
            yield from _rows(begun, self._common.leases)
            del self._begun[queue]
        self.close()

    def close(self) -> None:
        """Nobody reads on."""
        self._pending.clear()
        self._begun.clear()
        if self._common.keeper is self:
            self._common.keeper = None
            self._common.leases.forget()

    # ---- what is about to change

    def queue_changes(self, queue: Queue) -> None:
        if queue in self._pending:
            self._begin(queue)

    def block_changes(self, batches: Batches, block: Block) -> None:
        self.queue_changes(batches.queue)
        begun = self._begun.get(batches.queue)
        if begun is not None and block not in begun.copies:
            begun.copies[block] = block.copy(), batches.names_of(block)

    def batch_changes(self, batches: Batches, batch: LooseBatch) -> None:
        self.queue_changes(batches.queue)
        begun = self._begun.get(batches.queue)
        if begun is not None:
            begun.loose_rows.setdefault(batch.pop_time_ms, _Loose(batch))

    # ---- inside

    def _begin(self, queue: Queue) -> _Queue:
        begun = self._begun[queue] = _Queue(self._pending.pop(queue))
        return begun


class _Loose:
    """A batch that is in no row: what its rows say."""

    __slots__ = ("groups", "mark", "row")

    def __init__(self, batch: LooseBatch) -> None:
        self.row = batch.row()
        self.mark = [batch.pop_time_ms, proof_of(batch.tag), batch.acked] if batch.tag or batch.acked else None
        self.groups = [batch.pop_time_ms, encode_hashes(batch.groups)] if batch.groups is not None else None


class _Queue:
    """What a queue had at one moment: `copies` and `loose_rows` are of what has changed since."""

    __slots__ = ("batches", "blocks", "copies", "head", "key", "loose", "loose_rows")

    def __init__(self, queue: QueueLedger) -> None:
        self.key = [queue.group, queue.topic, queue.queue_id]
        self.head = [queue.next_offset, queue.last_pop_time_ms]
        self.batches = queue.batches
        self.blocks = list(queue.batches.blocks)
        self.loose = sorted(queue.batches.loose.values(), key=attrgetter("pop_time_ms"))
        self.copies: dict[Block, tuple[Block, dict[int, str]]] = {}
        self.loose_rows: dict[int, _Loose] = {}


class _Added:
    """The rows that earlier releases do without: what they say of so many batches each, wherever those are."""

    def __init__(self, tag: str, key: Row) -> None:
        self._tag = tag
        self._key = key
        self._said: list[Row] = []

    def take(self, said: Iterable[Row]) -> Iterator[Row]:
        """The rows that are full now."""
        self._said.extend(said)
        while len(self._said) >= _BATCHES_PER_ROW:
            yield AddedRow([self._tag, *self._key, self._said[:_BATCHES_PER_ROW]])
            del self._said[:_BATCHES_PER_ROW]

    def rest(self) -> Iterator[Row]:
        if self._said:
            yield AddedRow([self._tag, *self._key, self._said])


def _rows(queue: _Queue, leases: Leases) -> Iterator[Row]:
    """Rows of blocks come first, then the other batches, both by pop time; so it depends on nothing but the state."""
    key = queue.key
    yield ["q", *key, *queue.head]
    marks, groups = _Added("t", key), _Added("h", key)
    for block in queue.blocks:
        found = _of_block(queue, block, leases)
        yield from found.rows
        yield from marks.take(found.marks)
        yield from groups.take(found.groups)
    for start in range(0, len(queue.loose), _BATCHES_PER_ROW):
        found = _of_loose(queue, queue.loose[start : start + _BATCHES_PER_ROW])
        yield from found.rows
        yield from marks.take(found.marks)
        yield from groups.take(found.groups)
    yield from marks.rest()
    yield from groups.rest()


class _Found(NamedTuple):
    rows: list[Row]
    marks: list[Row]
    groups: list[Row]


def _of_block(queue: _Queue, block: Block, leases: Leases) -> _Found:
    kept = queue.copies.get(block)
    block, names = kept if kept is not None else (block, queue.batches.names_of(block))
    found = _Found([], [], [])
    for pop_time_ms, row in zip(block.times, ROW.iter_unpack(block.rows), strict=True):
        first, invisible_ms, tag, group, due_ms, _, _, client, deliveries, remaining, acked, count, flags = row
        if not remaining:
            continue
        client_id = leases.client_id(client) if client else ""
        attempt_id = names[pop_time_ms] if flags & NAMED else ""
        counts = None if deliveries == ONCE else [deliveries] * count
        found.rows.append(
            [
                *("b", *queue.key, pop_time_ms, invisible_ms, due_ms, first, count, remaining, client_id, attempt_id),
                *(counts, bool(flags & ORDERED)),
            ]
        )
        if tag or acked:
            found.marks.append([pop_time_ms, proof_of(tag), acked])
        if flags & GROUPED:
            found.groups.append([pop_time_ms, encode_hashes((group,))])
    return found


def _of_loose(queue: _Queue, batches: Sequence[LooseBatch]) -> _Found:
    some = [queue.loose_rows.get(batch.pop_time_ms) or _Loose(batch) for batch in batches]
    return _Found(
        [["b", *queue.key, *each.row] for each in some],
        [each.mark for each in some if each.mark],
        [each.groups for each in some if each.groups],
    )
