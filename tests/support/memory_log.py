"""The replicated log in memory, for tests of what is kept in it and of what reads messages.

One list of records with consume queues beside it, in the shape of the store's reads. A test decides when appended positions are
acknowledged, whether this broker is the master, and where the log is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.metadata.record_log import Unit
from brokerd.services import Draft, PutStatus
from remoting.errors import LogboomError, NotMaster
from remoting.message import encode_properties, encode_record, record_size, tags_code

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"


class Dispatched(NamedTuple):
    """One message that became readable."""

    topic: str
    queue_id: int
    max_offset: int
    tags_code: int


class MemoryLog:
    """`RecordLog`, and the reads of a message store."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> None:
        self.is_master = True
        self.acknowledges = True
        self.status = PutStatus.PUT_OK
        self.refusal: LogboomError | None = None
        self.end_offset = 0
        self.arrivals: list[Callable[[Dispatched], None]] = []
        self._now_ms = now_ms
        self._records: dict[int, bytes] = {}
        self._queues: dict[tuple[str, int], list[Unit]] = {}
        self._minimum: dict[tuple[str, int], int] = {}
        self._waiting: list[tuple[int, Callable[[PutStatus], None]]] = []

    # ---- RecordLog

    def append(self, topic: str, kind: str, body: bytes) -> int:
        return self.append_messages([draft(topic, body, 0, tag=kind)])

    def append_messages(self, drafts: Sequence[Draft]) -> int:
        if not self.is_master:
            raise NotMaster
        if self.refusal is not None:
            raise self.refusal
        for each in drafts:
            self._append(each)
        return self.end_offset

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        assert end_offset <= self.end_offset
        if self.acknowledges:
            done(self.status)
        else:
            self._waiting.append((end_offset, done))

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        key = (topic, queue_id)
        return self._minimum.get(key, 0), len(self._queues.get(key, ()))

    def read_units(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[Unit]:
        low, _ = self.queue_range(topic, queue_id)
        assert start >= low
        return self._queues.get((topic, queue_id), [])[start : start + count]

    def record_at(self, physical_offset: int, size: int) -> bytes:
        record = self._records[physical_offset]
        assert len(record) == size
        return record

    # ---- for tests

    def acknowledge(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        """Complete every waiter."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(status)

    def cut(self, end_offset: int) -> None:
        """Truncate: forget every record that starts at or after the position."""
        for units in self._queues.values():
            while units and units[-1].physical_offset >= end_offset:
                units.pop()
        self._records = {position: record for position, record in self._records.items() if position < end_offset}
        self.end_offset = min(self.end_offset, end_offset)

    def expire(self, topic: str, queue_id: int, min_offset: int) -> None:
        """Retention: messages of a queue below the offset are gone."""
        self._minimum[topic, queue_id] = min_offset

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The encoded records of a queue."""
        return [self._records[unit.physical_offset] for unit in self._queues.get((topic, queue_id), [])]

    def copy(self, end_offset: int | None = None) -> MemoryLog:
        """What a replica with the log up to the offset has."""
        twin = MemoryLog(self._now_ms)
        twin._records = dict(self._records)
        twin._queues = {key: list(units) for key, units in self._queues.items()}
        twin._minimum = dict(self._minimum)
        twin.end_offset = self.end_offset
        if end_offset is not None:
            twin.cut(end_offset)
        return twin

    @property
    def positions(self) -> list[int]:
        """The ends of all records."""
        return [position + len(record) for position, record in self._records.items()]

    def _append(self, each: Draft) -> None:
        topic = each.topic.encode()
        size = record_size(len(topic), len(each.body), len(each.properties), len(each.born_host))
        units = self._queues.setdefault((each.topic, each.queue_id), [])
        record = encode_record(
            topic=topic,
            queue_id=each.queue_id,
            queue_offset=len(units),
            physical_offset=self.end_offset,
            body=each.body,
            properties=each.properties,
            born_timestamp_ms=each.born_timestamp_ms,
            born_host=each.born_host,
            store_timestamp_ms=self._now_ms(),
            store_host=HOST,
            flag=each.flag,
            sys_flag=each.sys_flag,
            reconsume_times=each.reconsume_times,
            prepared_transaction_offset=each.prepared_transaction_offset,
        )
        assert len(record) == size
        code = tags_code(each.properties)
        self._records[self.end_offset] = record
        units.append(Unit(self.end_offset, size, code))
        self.end_offset += size
        for listener in list(self.arrivals):
            listener(Dispatched(each.topic, each.queue_id, len(units), code))


def draft(
    topic: str, body: bytes, queue_id: int = 0, *, tag: str = "", properties: dict[str, str] | None = None
) -> Draft:
    """A message to append."""
    encoded = encode_properties({**(properties or {}), "TAGS": tag})
    return Draft(topic, queue_id, body, encoded, 1_600_000_000_000, HOST)
