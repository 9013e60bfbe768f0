"""The log as its users see it: two narrow views that join the message store and the replica.

- `StoreRecordLog`: records of the system topics (the tables' view, `journal.record_log.RecordLog`);
- `StoreReplicatedLog`: bytes of the log (the replication's view, `replication.log.ReplicatedLog`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

from brokerd.journal.replay import SNAPSHOT
from brokerd.sending.acknowledging import Appends
from brokerd.statistics.figures import Statistics
from brokerd.store.again import Copies, Looked, Names
from brokerd.store.draft import Draft
from brokerd.store.log.verified_reads import VerifiedReads
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Suspicion
from brokerd.store.unit import Unit
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, DamagedRange
from remoting.names import is_brokers_topic
from remoting.record.checksum import TAIL_BYTES, ends_with_tail
from remoting.record.properties import encode_properties


class StoreRecordLog:
    """The tables' view. Messages that the broker makes for consumers (committed, due, given back) are counted in `statistics`."""

    def __init__(
        self,
        store: MessageStore,
        appends: Appends,
        now_ms: Callable[[], int],
        born_host: bytes,
        statistics: Statistics,
    ) -> None:
        self._statistics = statistics
        self._store = store
        self._appends = appends
        self._now_ms = now_ms
        self._born_host = born_host
        self.snapshot_bytes = 0  # of tables, written to the log since the start

    @property
    def begin_offset(self) -> int:
        return self._store.commitlog.min_offset

    @property
    def end_offset(self) -> int:
        self._store.settle()
        return self._store.commitlog.end_offset

    @property
    def dispatch_offset(self) -> int:
        return self._store.dispatch_offset

    def append(self, topic: str, kind: str, body: bytes) -> int:
        return self.append_records(topic, [(kind, body)])

    def append_records(self, topic: str, records: Sequence[tuple[str, bytes]]) -> int:
        results = self.append_placed([self._record(topic, kind, body) for kind, body in records])
        self.snapshot_bytes += sum(
            place.size for (kind, _), place in zip(records, results, strict=True) if kind == SNAPSHOT
        )
        return results[-1].end_offset

    def append_leading(
        self, topic: str, kind: str, body: bytes, behind: Sequence[Draft | Copies], *, makes_room: bool = False
    ) -> tuple[int, int]:
        with self._store.making_room() if makes_room else nullcontext():
            results = self.append_placed([self._record(topic, kind, body), *behind])
        return results[0].end_offset, results[-1].end_offset

    def append_trailing(self, ahead: Sequence[Draft | Copies], topic: str, kind: str, body: bytes) -> int:
        return self.append_placed([*ahead, self._record(topic, kind, body)])[-1].end_offset

    def append_messages(self, drafts: Sequence[Draft]) -> int:
        return self.append_placed(drafts)[-1].end_offset

    def append_placed(self, drafts: Sequence[Draft | Copies]) -> Sequence[AppendResult]:
        """The same; returns where each draft went."""
        error = self._appends.own_refusal()
        if error is not None:
            raise error.with_traceback(None)
        results = self._store.append_messages(drafts, together=len(drafts) > 1, own=True)
        self._appends.appended(results[-1].end_offset)
        for draft, place in zip(drafts, results, strict=True):
            if isinstance(draft, Copies):
                more = (place.size - draft.size_bytes) // draft.messages  # a checksum's
                for topic, (messages, size) in draft.by_topic().items():
                    self._statistics.stored_in(topic, messages, size + messages * more)
            elif not is_brokers_topic(draft.topic):
                self._statistics.stored_in(draft.topic, 1, place.size)
        return results

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        self._appends.wait(end_offset, done)

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)

    def read_units(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[Unit]:
        return self._store.read_units(topic, queue_id, start, count)

    def units_at(self, topic: str, queue_id: int, offsets: Sequence[int]) -> Sequence[Unit]:
        return self._store.units_at(topic, queue_id, offsets)

    def find_record(self, physical_offset: int) -> bytes | None:
        """The record that starts there, confirmed or not; None when none does."""
        return self._store.commitlog.record_at(physical_offset)

    def undispatched_units(self, topic: str) -> Sequence[Unit]:
        return [
            (entry[3], entry[4], entry[5])
            for piece in self._store.dispatcher.undispatched()
            for entry in piece.entries
            if entry[0] == topic and entry[1] == 0
        ]

    def undispatched_codes(self, topic: str, start: int) -> Sequence[int] | None:
        return self._store.dispatcher.offered_codes(topic, start)

    def look_again(self, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        return self._store.look_again(units, places, names)

    def record_at(self, physical_offset: int, size: int) -> bytes:
        record = self._store.commitlog.record_at(physical_offset, size)
        if record is None or len(record) != size:
            self._store.tell_damage(Suspicion(physical_offset, size=size))
            raise CorruptedFile(
                f"no intact record of {size} bytes starts at {physical_offset} of the commitlog",
                DamagedRange(physical_offset, size),
            )
        return record

    def _record(self, topic: str, kind: str, body: bytes) -> Draft:
        return Draft(topic, 0, body, encode_properties({"TAGS": kind}), self._now_ms(), self._born_host)


class StoreReplicatedLog:
    """The replication's view."""

    def __init__(self, store: MessageStore, request_flush: Callable[[], None]) -> None:
        self.store = store
        self._commitlog = store.commitlog
        self.read = VerifiedReads(store.commitlog).read
        self.truncate, self.reset = store.truncate, store.reset
        self.request_flush = request_flush

    @property
    def min_offset(self) -> int:
        return self._commitlog.min_offset

    @property
    def end_offset(self) -> int:
        self.store.settle()  # roles and acknowledgements go by it
        return self._commitlog.end_offset

    @property
    def known_end_offset(self) -> int:
        return self._commitlog.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._commitlog.flushed_offset

    @property
    def segment_size_bytes(self) -> int:
        return self._commitlog.segment_size_bytes

    def keeps_tail(self, *, acked_after_flush: bool) -> bool:
        """Whether the log still has whatever its last run acknowledged: what is acknowledged before it is durable may be lost by
        a run that did not end cleanly."""
        if self.store.gave_up_durable or self.store.suspicion is not None:
            return False
        return acked_after_flush or self.store.ended_cleanly

    def append_replicated(self, offset: int, buffers: Sequence[Bytes]) -> None:
        for buffer in buffers:
            offset = self.store.append_replicated(offset, buffer)

    def seal_records(self, on: bool | None) -> None:
        if on is None:
            end = self._commitlog.complete_offset
            on = ends_with_tail(self._commitlog.read(end - TAIL_BYTES, TAIL_BYTES))
        self.store.seal_records(on)

    def settle(self) -> None:
        """Cut what is no whole record, and make the rest durable; the queue offsets follow when the store takes messages."""
        commitlog = self._commitlog
        self.store.elected()
        if commitlog.complete_offset < commitlog.end_offset:
            self.store.truncate(commitlog.complete_offset)
        mark = self.store.sync()
        self.store.mark_flushed(mark)
        self.store.note_flushed(mark)
