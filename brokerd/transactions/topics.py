"""The half topic and the op topic: read into the table of open transactions, followed, cut, and written by the master.

On the master the table reflects all that is in the log, on a replica all that was dispatched. A start and a change of role read
the half topic from the consumer offset that the transaction group committed for it, and the op topic from the first record
behind that half message: nothing before them concerns an open transaction.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from brokerd.journal.record_log import RecordLog
from brokerd.metadata.service import MetadataService
from brokerd.store.draft import Draft
from brokerd.store.run import AppendResult
from brokerd.transactions import records
from brokerd.transactions.records import GIVEN_UP_TOPIC, OP_TOPIC, TRANSACTION_GROUP, EndedAs, Half
from brokerd.transactions.table import OpenTransactions
from remoting.errors import raise_refusal
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record, decode_record

_CHUNK: Final = 1024
# Ended transactions, so that a start has little to read however rarely open ones are looked at
_PROGRESS_EVERY: Final = 4096
_Step = tuple[int, int, bool]  # physical offset, size, whether it is an op record


class TransactionLog(RecordLog, Protocol):
    """The replicated log, with appends that tell where."""

    def append_placed(self, drafts: Sequence[Draft]) -> Sequence[AppendResult]: ...

    def find_record(self, physical_offset: int) -> bytes | None: ...


@dataclass(slots=True)
class TransactionCounters:
    """Running totals of transactions since the start, for rates and metrics."""

    begun: int = 0
    committed: int = 0
    rolled_back: int = 0
    checks: int = 0  # sent to a producer
    unasked: int = 0  # checks that no producer of the group was there for
    given_up: int = 0
    refused_ends: int = 0

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class TransactionTopics:
    """The two topics at one broker. `host` is its packed address."""

    def __init__(self, log: TransactionLog, metadata: MetadataService, now_ms: Callable[[], int], host: bytes) -> None:
        self.table = OpenTransactions()
        self.counters = TransactionCounters()
        self.log = log
        self.metadata = metadata
        self.now_ms = now_ms
        self._host = host
        self._applied_offset = 0
        self._next_half = self._next_op = 0
        self._closed = 0  # since the progress was committed

    # ---- following the log

    def rebuild(self) -> None:
        """Read the table from the log: at start, when the log was cut, and when this broker stopped being the master."""
        low, high = self.log.queue_range(HALF_TOPIC, 0)
        committed = self.metadata.consumer_offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
        start = min(max(committed or 0, low), high)
        self.table.restart(start)
        self._applied_offset = 0
        self._next_half = start
        self._next_op = self._op_behind(self._physical_offset(HALF_TOPIC, start) if start < high else None)
        self.follow()

    def follow(self) -> None:
        """Apply what was dispatched and is new here."""
        low_half, high_half = self.log.queue_range(HALF_TOPIC, 0)
        low_op, high_op = self.log.queue_range(OP_TOPIC, 0)
        # A log that begins in the middle of another broker's has queues that do not begin at 0.
        halves = self._steps(HALF_TOPIC, max(self._next_half, low_half), high_half, is_op=False)
        ops = self._steps(OP_TOPIC, max(self._next_op, low_op), high_op, is_op=True)
        self._apply_steps(heapq.merge(halves, ops))
        self._next_half, self._next_op = max(self._next_half, high_half), max(self._next_op, high_op)

    def catch_up(self) -> None:
        """Apply all the log holds, also what is not confirmed yet: for a broker that becomes the master with this very log."""
        self.follow()
        halves = [(offset, size, False) for offset, size, _ in self.log.undispatched_units(HALF_TOPIC)]
        ops = [(offset, size, True) for offset, size, _ in self.log.undispatched_units(OP_TOPIC)]
        self._apply_steps(iter(sorted(halves + ops)))

    def truncated(self, end_offset: int) -> None:
        """The log ends at `end_offset` now, and the consume queues with it."""
        _, high_half = self.log.queue_range(HALF_TOPIC, 0)
        _, high_op = self.log.queue_range(OP_TOPIC, 0)
        if end_offset < self._applied_offset or high_half < self._next_half or high_op < self._next_op:
            self.rebuild()

    # ---- reading and writing, on the master

    def read(self, physical_offset: int) -> Record | None:
        """The record that starts there."""
        encoded = self.log.find_record(physical_offset)
        return None if encoded is None else decode_record(encoded)

    def stored(self, draft: Draft, place: AppendResult) -> None:
        """A half message was appended."""
        half = records.half_of_draft(draft, place.queue_offset, place.physical_offset, place.size, self.now_ms())
        self.begun([half], place.end_offset)

    def begun(self, halves: Sequence[Half], end_offset: int) -> None:
        """Half messages were appended, the last of which ends there."""
        self._applied_offset = end_offset
        for half in halves:
            self.table.apply_half(half)

    def replace(self, half: Half, record: Record, checks: int | None, secret: str | None = None) -> AppendResult:
        """Append the record that takes the place of a half message, and return where that is.

        `checks` is how often it was checked, `secret` what its id proves; None leaves either as it is.
        """
        draft = records.successor_draft(record, half.first, checks, secret)
        drafts = [draft]
        if checks is not None:
            drafts.append(records.successor_noted_draft(half.queue_offset, self.now_ms(), self._host))
        return self._append_half(draft, drafts)

    def begin_again(self, record: Record, by: str) -> AppendResult:
        """Open the transaction of a half message that was given up anew; return where its new half message is."""
        draft = records.successor_draft(record, None, 0)
        return self._append_half(draft, [draft, self.decision(record, EndedAs.RESUMED, by)])

    def decision(self, record: Record, ended_as: EndedAs, by: str) -> Draft:
        """What is noted about a half message that was given up."""
        return records.decision_draft(record.queue_offset, ended_as, by, self.now_ms(), self._host)

    def _append_half(self, draft: Draft, drafts: Sequence[Draft]) -> AppendResult:
        places = self.log.append_placed(drafts)
        self.stored(draft, places[0])
        self._applied_offset = places[-1].end_offset
        return places[0]

    def give_up(self, half: Half, record: Record) -> AppendResult:
        """Put a half message where people find it, and close its transaction."""
        raise_refusal(self.metadata.ensure_topic(GIVEN_UP_TOPIC))
        place = self.close(half, EndedAs.GIVEN_UP, [records.given_up_draft(record)])
        self.counters.given_up += 1
        return place

    def close(self, half: Half, ended_as: EndedAs, drafts: Sequence[Draft]) -> AppendResult:
        """Append the records and, behind them, the one that closes the transaction; return where that is."""
        done = [half.queue_offset] if half.first == half.queue_offset else [half.first, half.queue_offset]
        op = records.op_draft(done, self.now_ms(), self._host, ended_as)
        place = self.log.append_placed([*drafts, op])[-1]
        self.table.apply_done(done, ended_as, place.end_offset)
        self._applied_offset = place.end_offset
        self._closed += 1
        if self._closed >= _PROGRESS_EVERY:
            self.commit_progress()
        return place

    def commit_progress(self) -> None:
        """Say how far the two topics are done, as the original does: a start reads them from there."""
        self._closed = 0
        oldest = self.table.oldest
        op_offset = self._op_behind(None if oldest is None else oldest.physical_offset)
        for topic, offset in ((HALF_TOPIC, self.table.done_before), (OP_TOPIC, op_offset)):
            if (self.metadata.consumer_offset(TRANSACTION_GROUP, topic, 0) or 0) < offset:
                self.metadata.commit_offset(TRANSACTION_GROUP, topic, 0, offset, None)

    # ---- inside

    def _op_behind(self, physical_offset: int | None) -> int:
        """The first dispatched op record behind a place in the log; None = behind all of them."""
        low, high = self.log.queue_range(OP_TOPIC, 0)
        if physical_offset is None:
            return high
        while low < high:
            middle = (low + high) // 2
            if self._physical_offset(OP_TOPIC, middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _physical_offset(self, topic: str, queue_offset: int) -> int:
        return self.log.read_units(topic, 0, queue_offset, 1)[0][0]

    def _steps(self, topic: str, start: int, high: int, *, is_op: bool) -> Iterator[_Step]:
        while start < high:
            units = self.log.read_units(topic, 0, start, min(_CHUNK, high - start))
            if not units:
                return
            start += len(units)
            for physical_offset, size, _ in units:
                yield physical_offset, size, is_op

    def _apply_steps(self, steps: Iterator[_Step]) -> None:
        for physical_offset, size, is_op in steps:
            end_offset = physical_offset + size
            if end_offset <= self._applied_offset:
                continue
            record = decode_record(self.log.record_at(physical_offset, size))
            if is_op:
                self.table.apply_done(records.done_offsets(record), records.ended_as(record), end_offset)
            else:
                self.table.apply_half(records.half_of(record, record.property_map()))
            self._applied_offset = end_offset
