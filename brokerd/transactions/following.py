"""The table of open transactions as this broker's log has it: read from the two topics, followed, cut.

On the master the table reflects all that is in the log, on a replica all that was dispatched. A start and a change of role read
the half topic from the consumer offset that the transaction group committed for it, and the op topic from the first record
behind that half message: nothing before them concerns an open transaction.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from brokerd.store.unit import Unit
from brokerd.transactions.records import HALF_TOPIC, OP_TOPIC, done_offsets, half_of
from brokerd.transactions.table import OpenTransactions
from remoting.record.codec import decode_record

_CHUNK: Final = 1024
_Step = tuple[int, int, bool]  # physical offset, size, whether it is an op record


class LogReads(Protocol):
    """What is read of the log; see `journal.record_log.RecordLog`."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    def read_units(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[Unit]: ...

    def undispatched_units(self, topic: str) -> Sequence[Unit]: ...

    def record_at(self, physical_offset: int, size: int) -> bytes: ...


class TransactionFollower:
    """`committed` is the consumer offset of the half topic: every half message before it is done."""

    def __init__(self, reads: LogReads, table: OpenTransactions, committed: Callable[[], int | None]) -> None:
        self._reads = reads
        self._table = table
        self._committed = committed
        self._applied_offset = 0
        self._next_half = self._next_op = 0

    def appended(self, end_offset: int) -> None:
        """The master applied what it appended up to there."""
        self._applied_offset = end_offset

    def rebuild(self) -> None:
        """Read the table from the log: at start, when the log was cut, and when this broker stopped being the master."""
        low, high = self._reads.queue_range(HALF_TOPIC, 0)
        start = min(max(self._committed() or 0, low), high)
        self._table.restart(start)
        self._applied_offset = 0
        self._next_half = start
        self._next_op = self._op_behind(self._physical_offset(start) if start < high else None)
        self.follow()

    def follow(self) -> None:
        """Apply what was dispatched and is new here."""
        _, high_half = self._reads.queue_range(HALF_TOPIC, 0)
        _, high_op = self._reads.queue_range(OP_TOPIC, 0)
        halves = self._steps(HALF_TOPIC, self._next_half, high_half, is_op=False)
        ops = self._steps(OP_TOPIC, self._next_op, high_op, is_op=True)
        self._apply(heapq.merge(halves, ops))
        self._next_half, self._next_op = max(self._next_half, high_half), max(self._next_op, high_op)

    def catch_up(self) -> None:
        """Apply all the log holds, also what is not confirmed yet: for a broker that becomes the master with this very log."""
        self.follow()
        halves = [(offset, size, False) for offset, size, _ in self._reads.undispatched_units(HALF_TOPIC)]
        ops = [(offset, size, True) for offset, size, _ in self._reads.undispatched_units(OP_TOPIC)]
        self._apply(iter(sorted(halves + ops)))

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset` now, and the consume queues with it."""
        _, high_half = self._reads.queue_range(HALF_TOPIC, 0)
        _, high_op = self._reads.queue_range(OP_TOPIC, 0)
        if end_offset < self._applied_offset or high_half < self._next_half or high_op < self._next_op:
            self.rebuild()

    def op_progress(self) -> int:
        """The queue offset of the first op record that may concern an open transaction."""
        oldest = self._table.oldest
        return self._op_behind(None if oldest is None else oldest.physical_offset)

    def _op_behind(self, physical_offset: int | None) -> int:
        """The first dispatched op record behind a place in the log; None = behind all of them."""
        low, high = self._reads.queue_range(OP_TOPIC, 0)
        if physical_offset is None:
            return high
        while low < high:
            middle = (low + high) // 2
            if self._reads.read_units(OP_TOPIC, 0, middle, 1)[0][0] < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _physical_offset(self, queue_offset: int) -> int:
        return self._reads.read_units(HALF_TOPIC, 0, queue_offset, 1)[0][0]

    def _steps(self, topic: str, start: int, high: int, *, is_op: bool) -> Iterator[_Step]:
        while start < high:
            units = self._reads.read_units(topic, 0, start, min(_CHUNK, high - start))
            if not units:
                return
            start += len(units)
            for physical_offset, size, _ in units:
                yield physical_offset, size, is_op

    def _apply(self, steps: Iterator[_Step]) -> None:
        for physical_offset, size, is_op in steps:
            end_offset = physical_offset + size
            if end_offset <= self._applied_offset:
                continue
            record = decode_record(self._reads.record_at(physical_offset, size))
            if is_op:
                self._table.apply_done(done_offsets(record))
            else:
                self._table.apply_half(half_of(record))
            self._applied_offset = end_offset
