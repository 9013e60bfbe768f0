"""The replicated log in memory, for tests of what is kept in it and of what reads messages.

One list of records with consume queues beside it, in the shape of the store's reads. A test decides when appended positions are
acknowledged and dispatched, whether this broker is the master, and where the log is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile

from brokerd.delay.levels import DEFAULT_DELAYS, code_rules
from brokerd.store.again import Copies, Looked, Names, PythonAgain
from brokerd.store.derived.dispatcher import Arrivals
from brokerd.store.draft import Draft, check_draft, encode_draft, takes_queue_offset
from brokerd.store.put_status import PutStatus
from brokerd.store.queues.queue_reads import NO_QUEUE, Boundary, GetResult, GetStatus, JoinedResult, joined
from brokerd.store.queues.round_codes import RoundCodes
from brokerd.store.run import AppendResult
from brokerd.store.settings import StoreSettings
from brokerd.store.store_reads import Window
from brokerd.store.unit import UNIT, Unit
from brokerd.timers.codes import CODE_RULES
from remoting import codes
from remoting.errors import InvalidParameter, LogboomError, NotMaster, RequestError, StorageError
from remoting.java_hash import java_hash
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties, tags_code

HOST = b"\x7f\0\0\1\0\0\x2a\x9f"
LARGEST_RECORD_BYTES = StoreSettings().largest_record_bytes
_CODE_RULES = {**code_rules(DEFAULT_DELAYS), **CODE_RULES}


class MemoryRecordLog:
    """`RecordLog`, and the reads of the message store. What is appended is dispatched by `dispatch`, or at once by default."""

    def __init__(self, now_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> None:
        self.is_master = True
        self.acknowledges = True
        self.dispatches = True
        self.status = PutStatus.PUT_OK
        self.refusal: LogboomError | None = None
        self.takes_moves = False  # what makes room, whatever it refuses else
        self.refuses_after: int | None = None  # so many appends
        self.illegal: bytes | None = None  # a body that cannot be stored
        self.begin_offset = self.end_offset = 0
        self.appends = 0
        self.going_offset = 0
        self.cold_ends: dict[tuple[str, int], int] = {}
        self.coming: set[tuple[str, int]] = set()  # queues of which what is cold is on its way
        self.listeners: list[Callable[[Arrivals], None]] = []
        self._now_ms = now_ms
        self._records: dict[int, bytes] = {}
        self._dispatched: dict[tuple[str, int], list[Unit]] = {}
        self._appended: dict[tuple[str, int], int] = {}
        self._tail: list[tuple[str, int, Unit]] = []
        self._minimum: dict[tuple[str, int], int] = {}
        self._elsewhere: dict[tuple[str, int], int] = {}  # how many of a queue's messages this log never had
        self._waiting: list[tuple[int, Callable[[PutStatus], None]]] = []

    # ---- RecordLog

    @property
    def dispatch_offset(self) -> int:
        return self._tail[0][2][0] if self._tail else self.end_offset

    def append(self, topic: str, kind: str, body: bytes) -> int:
        return self.append_records(topic, [(kind, body)])

    def append_records(self, topic: str, records: Sequence[tuple[str, bytes]]) -> int:
        return self.append_messages([draft(topic, body, 0, tag=kind) for kind, body in records])

    def append_leading(
        self, topic: str, kind: str, body: bytes, behind: Sequence[Draft | Copies], *, makes_room: bool = False
    ) -> tuple[int, int]:
        refusal = self.refusal
        if makes_room and self.takes_moves:
            self.refusal = None
        try:
            places = self.append_placed([draft(topic, body, 0, tag=kind), *drafts_of(behind)])
        finally:
            self.refusal = refusal
        return places[0].end_offset, places[-1].end_offset

    def append_trailing(self, ahead: Sequence[Draft | Copies], topic: str, kind: str, body: bytes) -> int:
        return self.append_messages([*drafts_of(ahead), draft(topic, body, 0, tag=kind)])

    def append_messages(self, drafts: Sequence[Draft]) -> int:
        return self.append_placed(drafts)[-1].end_offset

    def append_placed(self, drafts: Sequence[Draft]) -> Sequence[AppendResult]:
        if not self.is_master:
            raise NotMaster
        if self.refusal is not None:
            raise self.refusal
        if self.refuses_after is not None and self.appends >= self.refuses_after:
            raise InvalidParameter("the disk is full")
        if any(each.body == self.illegal for each in drafts):
            raise RequestError(codes.MESSAGE_ILLEGAL, "nothing stores this")
        for each in drafts:
            check_draft(each, len(HOST), LARGEST_RECORD_BYTES)
        self.appends += 1
        places = [self._append(each) for each in drafts]
        if self.dispatches:
            self.dispatch()
        return places

    def when_acknowledged(self, end_offset: int, done: Callable[[PutStatus], None]) -> None:
        assert end_offset <= self.end_offset
        if self.acknowledges:
            done(self.status)
        else:
            self._waiting.append((end_offset, done))

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)

    def read_units(self, topic: str, queue_id: int, start: int, count: int) -> Sequence[Unit]:
        assert start >= self.min_offset(topic, queue_id)
        return self._dispatched.get((topic, queue_id), [])[start : start + count]

    def units_at(self, topic: str, queue_id: int, offsets: Sequence[int]) -> Sequence[Unit]:
        low, end = self.queue_range(topic, queue_id)
        units = self._dispatched.get((topic, queue_id), [])
        return [units[offset] for offset in takewhile(lambda each: low <= each < end, offsets)]

    def undispatched_units(self, topic: str) -> Sequence[Unit]:
        return [unit for name, queue_id, unit in self._tail if (name, queue_id) == (topic, 0)]

    def undispatched_codes(self, topic: str, start: int) -> Sequence[int] | None:
        return [code for begin, _, code in self.undispatched_units(topic) if begin >= start]

    def look_again(self, units: Sequence[Unit], places: Sequence[int], names: Names) -> Looked:
        """The same as the store's, in Python."""
        there = [(offset, size if offset in self._records else 0, code) for offset, size, code in units]
        content = b"".join([self._records[offset] for offset, size, _ in there if size])
        return PythonAgain(HOST, LARGEST_RECORD_BYTES).look(content, there, places, names)

    def record_at(self, physical_offset: int, size: int) -> bytes:
        record = self._records.get(physical_offset)
        if record is None or len(record) != size:
            raise StorageError(f"no record of {size} bytes starts at {physical_offset}")
        return record

    def find_record(self, physical_offset: int) -> bytes | None:
        return self._records.get(physical_offset)

    # ---- the store's reads

    def queue_ids(self, topic: str) -> list[int]:
        return sorted(queue_id for name, queue_id in self._dispatched if name == topic)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._minimum.get((topic, queue_id), 0) if self.max_offset(topic, queue_id) else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        key = (topic, queue_id)
        end = len(self._dispatched.get(key, ()))
        return (
            0 if end == self._elsewhere.get(key) else end
        )  # a queue is there from the first message that was dispatched

    cold: None = None

    def message_at(self, physical_offset: int) -> bytes | None:
        """The dispatched message that starts there."""
        units = (unit for units in self._dispatched.values() for unit in units)
        return next((self._records[unit[0]] for unit in units if unit[0] == physical_offset), None)

    def cold_message_at(self, _topic: str, _physical_offset: int) -> bytes | None:
        """It has no tier."""
        return None

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        if not self.min_offset(topic, queue_id) <= queue_offset < self.max_offset(topic, queue_id):
            return -1
        unit = self._dispatched[topic, queue_id][queue_offset]
        return decode_record(self._records[unit[0]]).store_timestamp_ms

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        low, high = self.queue_range(topic, queue_id)
        times = [self.store_timestamp(topic, queue_id, offset) for offset in range(low, high)]
        if boundary is Boundary.LOWER:
            return low + sum(time < timestamp_ms for time in times)
        return max(low, low + sum(time <= timestamp_ms for time in times) - 1)

    def offset_behind(self, topic: str, queue_id: int, physical_offset: int) -> int:
        low = self.min_offset(topic, queue_id)
        units = self._dispatched.get((topic, queue_id), [])
        return low + sum(unit[0] < physical_offset for unit in units[low:])

    def is_cold(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """What a test says that files do not have; it can be read nevertheless."""
        return queue_offset < self.cold_ends.get((topic, queue_id), 0)

    def read_nearest(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> GetResult:
        return self.read_messages(topic, queue_id, queue_offset, max_count, max_bytes, tags_codes)

    def read_messages(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> GetResult:
        units = self._dispatched.get((topic, queue_id))
        if units is None:
            return NO_QUEUE
        low, high = self.queue_range(topic, queue_id)
        if queue_offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high, [])
        if queue_offset >= high:
            status = GetStatus.OFFSET_OVERFLOW_ONE if queue_offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(status, high, low, high, [])
        if (topic, queue_id) in self.coming and self.is_cold(topic, queue_id, queue_offset):
            return GetResult(GetStatus.BEING_FETCHED, queue_offset, low, high, [])
        records: list[bytes] = []
        offset = queue_offset
        room = max_bytes
        for physical_offset, size, code in units[queue_offset : queue_offset + max(max_count, 800)]:
            if tags_codes is None or code in tags_codes:
                if len(records) == max_count or (records and size > room):
                    break
                room -= size
                records.append(self._records[physical_offset])
            offset += 1
        status = GetStatus.FOUND if records else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, offset, low, high, records)

    def read_joined(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> JoinedResult:
        return joined(self.read_messages(topic, queue_id, queue_offset, max_count, max_bytes, tags_codes))

    def window(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Window | None:
        low, high = self.queue_range(topic, queue_id)
        if not low <= queue_offset < high or self.is_cold(topic, queue_id, queue_offset):
            return None
        units = self._dispatched[topic, queue_id][queue_offset : queue_offset + count]
        begin = units[0][0]
        log = b"".join(record for position, record in self._records.items() if position >= begin)
        return Window(low, high, b"".join(UNIT.pack(*unit) for unit in units), memoryview(log), begin)

    # ---- for tests

    def acknowledge(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        """Complete every waiter."""
        waiting, self._waiting = self._waiting, []
        for _, done in waiting:
            done(status)

    def dispatch(self, count: int | None = None) -> None:
        """Make everything, or so many records, readable and tell the listeners, as one round."""
        tail, self._tail = self._tail[:count], self._tail[len(self._tail[:count]) :]
        arrivals: dict[tuple[str, int], list[int]] = {}
        for topic, queue_id, unit in tail:
            self._dispatched.setdefault((topic, queue_id), []).append(unit)
            arrivals.setdefault((topic, queue_id), []).append(unit[2])
        if arrivals:
            told = Arrivals(RoundCodes(arrivals), lambda key: len(self._dispatched[key]))
            for listener in list(self.listeners):
                listener(told)

    def cut(self, end_offset: int) -> None:
        """Truncate: forget every record that starts at or after the position."""
        self._tail = [each for each in self._tail if each[2][0] < end_offset]
        self._appended.clear()
        for key, units in self._dispatched.items():
            while units and units[-1][0] >= end_offset:
                units.pop()
            self._appended[key] = len(units)
        for topic, queue_id, _ in self._tail:
            self._appended[topic, queue_id] = self._appended.get((topic, queue_id), 0) + 1
        self._records = {position: record for position, record in self._records.items() if position < end_offset}
        self.end_offset = min(self.end_offset, end_offset)

    def expire(self, topic: str, queue_id: int, min_offset: int) -> None:
        """Retention: messages of a queue below the offset are gone."""
        self._minimum[topic, queue_id] = min_offset

    def begin_at(self, physical_offset: int) -> None:
        """What a replica has that was given the log from there on, and has dispatched nothing."""
        assert not self._dispatched
        for topic, queue_id, unit in self._tail:
            if unit[0] < physical_offset:
                units = self._dispatched.setdefault((topic, queue_id), [])
                units.append(unit)
                self._minimum[topic, queue_id] = self._elsewhere[topic, queue_id] = len(units)
        self._tail = [each for each in self._tail if each[2][0] >= physical_offset]
        self._records = {position: record for position, record in self._records.items() if position >= physical_offset}
        self.begin_offset = physical_offset

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues."""
        for table in (self._dispatched, self._appended, self._minimum, self._elsewhere):
            for key in [each for each in table if each[0] == topic]:
                del table[key]

    def bodies(self, topic: str, queue_id: int = 0) -> list[bytes]:
        """The encoded records of a queue."""
        return [self._records[unit[0]] for unit in self._dispatched.get((topic, queue_id), [])]

    def kinds(self, topic: str) -> list[str]:
        """The kinds of the records of a system topic."""
        names = {java_hash(name): name for name in _KINDS}
        return [names[unit[2]] for unit in self._dispatched.get((topic, 0), [])]

    def units_behind(self, end_offset: int) -> list[Unit]:
        """The entries of the records that start at or after the position, in log order."""
        units = [unit for units in self._dispatched.values() for unit in units] + [unit for _, _, unit in self._tail]
        return sorted(unit for unit in units if unit[0] >= end_offset)

    def copy(self, end_offset: int | None = None, dispatched: int | None = None) -> MemoryRecordLog:
        """What a replica with the log up to `end_offset` has, when it dispatched it up to `dispatched`."""
        twin = MemoryRecordLog(self._now_ms)
        limit = self.end_offset if end_offset is None else end_offset
        visible = limit if dispatched is None else dispatched
        twin._minimum = dict(self._minimum)
        for position, record in self._records.items():
            if position < limit:
                twin._records[position] = record
                twin.end_offset = position + len(record)
        entries = [(*key, unit) for key, units in self._dispatched.items() for unit in units] + self._tail
        for topic, queue_id, unit in sorted(entries, key=lambda each: each[2][0]):
            if unit[0] >= limit:
                continue
            key = (topic, queue_id)
            twin._appended[key] = twin._appended.get(key, 0) + 1
            if unit[0] < visible:
                twin._dispatched.setdefault(key, []).append(unit)
            else:
                twin._tail.append((topic, queue_id, unit))
        return twin

    @property
    def positions(self) -> list[int]:
        """The ends of all records."""
        return [position + len(record) for position, record in self._records.items()]

    def _append(self, each: Draft) -> AppendResult:
        key = (each.topic, each.queue_id)
        in_queue = takes_queue_offset(each)
        queue_offset = self._appended.get(key, 0) if in_queue else 0
        store_timestamp_ms = self._now_ms()
        record = encode_draft(each, queue_offset, self.end_offset, store_timestamp_ms, HOST)
        self._records[self.end_offset] = record
        if in_queue:
            self._enter(key, record, each.properties, store_timestamp_ms)
        place = AppendResult(
            self.end_offset, len(record), queue_offset if in_queue else -1, self.end_offset + len(record)
        )
        self.end_offset = place.end_offset
        return place

    def _take(self, record: bytes) -> None:
        """A record that another log has at this place, and that is in a queue there."""
        decoded = decode_record(record)
        assert decoded.physical_offset == self.end_offset
        self._records[self.end_offset] = record
        self._enter((decoded.topic, decoded.queue_id), record, decoded.properties, decoded.store_timestamp_ms)
        self.end_offset += len(record)

    def _enter(self, key: tuple[str, int], record: bytes, properties: bytes, store_timestamp_ms: int) -> None:
        """The queue's entry of the record at the log's end."""
        self._appended[key] = self._appended.get(key, 0) + 1
        rule = _CODE_RULES.get(key[0])
        code = tags_code(properties) if rule is None else rule(properties, store_timestamp_ms)
        self._tail.append((*key, (self.end_offset, len(record), code)))


_KINDS = (
    *("snapshot", "taken", "acked", "changed", "revived", "reset", "dropped"),
    *("topicPut", "topicsDeleted", "groupPut", "groupDeleted", "offsets", "add"),
    *("offsetsReset", "resetsTaken", "requestMode", "forbidden"),
)


def drafts_of(pieces: Sequence[Draft | Copies]) -> list[Draft]:
    """What is appended, message by message."""
    return [each for piece in pieces for each in (piece.drafts() if isinstance(piece, Copies) else (piece,))]


def draft(
    topic: str,
    body: bytes,
    queue_id: int = 0,
    *,
    tag: str = "",
    properties: dict[str, str] | None = None,
    reconsume_times: int = 0,
) -> Draft:
    """A message to append."""
    encoded = encode_properties({**(properties or {}), "TAGS": tag})
    return Draft(topic, queue_id, body, encoded, 1_600_000_000_000, HOST, reconsume_times=reconsume_times)
