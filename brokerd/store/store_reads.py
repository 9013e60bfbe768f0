"""What can be read of a store: messages of queues, records of the log, and where queues begin and end.

All of it goes as far as dispatch went, which is no further than the confirm offset.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from brokerd.native.wanted import MAX_OFFSET, MIN_OFFSET
from brokerd.store.cold import Cold, all_of, readable_min, status_of_cold
from brokerd.store.derived.dispatcher import Dispatcher
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.page_cache import is_in_memory
from brokerd.store.queues.consume_queue import ConsumeQueue, DamagedUnits
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.queue_reads import (
    NO_QUEUE,
    Boundary,
    GetResult,
    GetStatus,
    JoinedResult,
    answer_out_of_range,
    joined,
    select_units,
    status_of,
)
from brokerd.store.read_levels import ColdFirst
from brokerd.store.sight import Sight
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting.errors import CorruptedFile, RequestError, StorageError
from remoting.names import is_journal_topic
from remoting.record.codec import decode_record
from remoting.record.fields import physical_offset_of

_Result = TypeVar("_Result", GetResult, JoinedResult)
_PLACE: Final = struct.Struct(">q")  # how a unit begins


class Suspicion(NamedTuple):
    """Where a read met something that is not what was stored: no intact record starts at `physical_offset`.

    With a queue, its unit `queue_offset` named that place, and the unit may be what is wrong; with a place of -1, the units from
    there on do not pass their check, whatever they name. With a size, that is what somebody believes to be the record's.
    """

    physical_offset: int
    topic: str = ""
    queue_id: int = -1
    queue_offset: int = -1
    size: int = 0


class Run(NamedTuple):
    """Messages of a queue, one behind the other in a buffer: their units, and entries, the same with where they will be.

    Without entries there is nothing, or one unit, which is blank, or of a message that has no room in the buffer.
    """

    units: bytes
    entries: bytes


class Window(NamedTuple):
    """What a queue has from an offset on, for who reads it himself: its units there; and the mapped file of the log that has the
    first one's record, and where that file begins. Whoever gets it has to release `log` before anything is written."""

    min_offset: int
    max_offset: int
    units: bytes
    log: memoryview
    log_begin: int


class StoreReads:
    """The reading side of `MessageStore`, which makes these parts; changes nothing. What its files do not have any more is asked
    of `cold`, if there is one.

    A read that meets damage gives what precedes it; one that begins with it raises CorruptedFile. `damage_listeners` are told.
    """

    commitlog: CommitLog
    queues: ConsumeQueues
    dispatcher: Dispatcher
    damage_listeners: list[Callable[[Suspicion], None]]
    cold: Cold | None
    cold_first: ColdFirst | None  # with it, `cold` is asked for some of what files have, too
    going_offset: int  # files of the log below it may be removed soon

    @property
    def dispatch_offset(self) -> int:
        """Everything before it is visible in the consume queues."""
        return self.dispatcher.dispatch_offset

    def read_messages(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> GetResult:
        """Up to `max_count` messages from `queue_offset` on, together at most `max_bytes` but always one when there is one.

        With `tags_codes` only messages whose tags code is among them (hashes collide: the reader compares the tags themselves).
        """
        if self.cold_first is not None:
            limits = max_count, max_bytes, tags_codes

            def read(cold: Cold, end: int) -> GetResult:
                return self._read_cold(cold, (topic, queue_id, queue_offset, end, *limits))

            found = self._preferring_cold(self.cold_first, topic, queue_id, queue_offset, read)
            if found is not None:
                return found
        return self.read_nearest(topic, queue_id, queue_offset, max_count, max_bytes, tags_codes)

    def read_nearest(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> GetResult:
        """The same, from files where they have it: for who needs it at once."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return NO_QUEUE
        min_offset, max_offset = queue.min_offset(self.commitlog.min_offset), queue.max_offset
        if queue_offset < min_offset and self.cold is not None:
            return self._read_cold(
                self.cold, (topic, queue_id, queue_offset, min_offset, max_count, max_bytes, tags_codes)
            )
        beside = answer_out_of_range(queue_offset, min_offset, max_offset)
        if beside is not None:
            return GetResult(*beside, min_offset, max_offset, [])
        units, looked_at, encoded, total = self._select(queue, queue_offset, max_count, max_bytes, tags_codes)
        try:
            records = self.commitlog.reads.records(units, encoded, total)
        except CorruptedFile as error:
            units, looked_at = self._before_damage(queue, queue_offset, units, error)
            records = self.commitlog.reads.records(units, b"", sum(size for _, size, _ in units))
        return GetResult(status_of(units, records), looked_at, min_offset, max_offset, records)

    def read_joined(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None = None,
    ) -> JoinedResult:
        """The same messages as `read_messages` gives, in one piece: as an answer has them."""

        def read(cold: Cold, end: int) -> JoinedResult:
            wanted = topic, queue_id, queue_offset, end, max_count, max_bytes
            if tags_codes is None:
                return self._joined_cold(cold, wanted)
            return joined(self._read_cold(cold, (*wanted, tags_codes)))

        if self.cold_first is not None:
            found = self._preferring_cold(self.cold_first, topic, queue_id, queue_offset, read)
            if found is not None:
                return found
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return joined(NO_QUEUE)
        min_offset, max_offset = queue.min_offset(self.commitlog.min_offset), queue.max_offset
        if queue_offset < min_offset and self.cold is not None:
            return read(self.cold, min_offset)
        beside = answer_out_of_range(queue_offset, min_offset, max_offset)
        if beside is not None:
            return JoinedResult(*beside, min_offset, max_offset)
        units, looked_at, encoded, total = self._select(queue, queue_offset, max_count, max_bytes, tags_codes)
        try:
            body = self.commitlog.reads.joined(units, encoded, total) if units else None
        except CorruptedFile as error:
            units, looked_at = self._before_damage(queue, queue_offset, units, error)
            encoded, total = b"", sum(size for _, size, _ in units)
            body = self.commitlog.reads.joined(units, encoded, total)
        if body is None:
            records = self.commitlog.reads.records(units, encoded, total)
            return joined(GetResult(status_of(units, records), looked_at, min_offset, max_offset, records))
        last, last_size, _ = units[-1]
        return JoinedResult(GetStatus.FOUND, looked_at, min_offset, max_offset, body, len(units), last + last_size)

    def window(self, topic: str, queue_id: int, queue_offset: int, count: int) -> Window | None:
        """Up to so many units of a queue, of records in one file or several; None where there is none at that offset, its file
        is not mapped, or the tier is to be asked. Raises CorruptedFile for units that are not what was written."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return None
        min_offset, max_offset = queue.min_offset(self.commitlog.min_offset), queue.max_offset
        if not min_offset <= queue_offset < max_offset:
            return None
        if self.cold_first is not None and self.cold_first.end(queue, queue_offset):
            return None
        try:
            units = queue.read_run(queue_offset, count)
        except DamagedUnits as error:
            self._tell_damaged_units(queue, error)
            raise
        mapped = self.commitlog.reads.mapped(_PLACE.unpack_from(units)[0]) if units else None
        return None if mapped is None else Window(min_offset, max_offset, units, *mapped)

    @property
    def prefers_cold(self) -> bool:
        """Whether of some messages the tier may be asked though files have them."""
        return self.cold_first is not None

    def sees(self, sight: Sight, queue_offset: int) -> bool:
        """Whether there are messages from that offset on whose records are in a file that the library can read, and the tier is
        not to be asked: what the sight has of them, `least_units` if there are so many, is right then, in this turn of the loop.
        Raises CorruptedFile for units that are not what was written."""
        queue, log = self.queues.table.get(sight.key), self.commitlog
        if queue is None:
            return False
        min_offset, max_offset = queue.min_offset(log.min_offset), queue.max_offset
        if not min_offset <= queue_offset < max_offset:
            return False
        if self.cold_first is not None and self.cold_first.end(queue, queue_offset):
            return False
        end = min(queue_offset + sight.least_units, max_offset)
        if not (sight.has(queue, queue.writes, queue_offset, end) or self._look(sight, queue, queue_offset)):
            return False
        numbers = sight.area.numbers
        numbers[MIN_OFFSET], numbers[MAX_OFFSET] = min_offset, max_offset
        return self.sees_place(sight, sight.place(queue_offset))

    def sees_further(self, sight: Sight, queue_offset: int) -> bool:
        """Look at as many units from there on as the sight wants at most, which it said in this turn that it sees. Raises
        CorruptedFile likewise."""
        queue = self.queues.table.get(sight.key)
        return queue is not None and self._look(sight, queue, queue_offset)

    def sees_place(self, sight: Sight, place: int) -> bool:
        """Have the sight see the file that has this record, if the library can read it."""
        segment = self.commitlog.reads.segment_of(place)
        return segment is not None and (sight.has_file(segment) or sight.note_file(segment))

    def _look(self, sight: Sight, queue: ConsumeQueue, queue_offset: int) -> bool:
        writes = queue.writes
        try:
            units = queue.read_ahead(queue_offset, sight.most_units, sight.ahead_units)
        except DamagedUnits as error:
            self._tell_damaged_units(queue, error)
            raise
        if units:
            sight.note_units(queue, writes, queue_offset, units)
        return bool(units)

    def _preferring_cold(
        self, first: ColdFirst, topic: str, queue_id: int, queue_offset: int, read: Callable[[Cold, int], _Result]
    ) -> _Result | None:
        """What `read` has of the tier up to an offset, where files have it, too; None when it is theirs to give, also because the
        tier cannot."""
        queue, cold = self.queues.table.get((topic, queue_id)), self.cold
        if queue is None or cold is None:
            return None
        if not queue.min_offset(self.commitlog.min_offset) <= queue_offset < queue.max_offset:
            return None
        end = min(first.end(queue, queue_offset), queue.max_offset)
        if end <= queue_offset:
            return None
        try:
            found = read(cold, end)
        except RequestError:  # who fetches says why, and files have it
            return None
        return None if found.status is GetStatus.MESSAGE_WAS_REMOVING else found

    def _read_cold(self, cold: Cold, wanted: tuple[str, int, int, int, int, int, Collection[int] | None]) -> GetResult:
        """What the tier has from an offset on; `wanted` are the arguments of its `read`."""
        topic, queue_id, queue_offset, *_ = wanted
        min_offset, max_offset = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if queue_offset < min_offset:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset, [])
        found = cold.read(*wanted)
        return GetResult(status_of_cold(found), found.next_offset, min_offset, max_offset, list(found.records))

    def _joined_cold(self, cold: Cold, wanted: tuple[str, int, int, int, int, int]) -> JoinedResult:
        """The same in one piece; `wanted` are the arguments of its `read_joined`."""
        topic, queue_id, queue_offset, *_ = wanted
        min_offset, max_offset = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if queue_offset < min_offset:
            return JoinedResult(GetStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset)
        found = cold.read_joined(*wanted)
        status, next_offset = status_of_cold(found), found.next_offset
        if status is not GetStatus.FOUND:
            return JoinedResult(status, next_offset, min_offset, max_offset)
        body = found.body
        last = body[len(body) - found.last_bytes :]
        end_offset = physical_offset_of(last) + len(last)
        return JoinedResult(status, next_offset, min_offset, max_offset, body, next_offset - queue_offset, end_offset)

    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, into: memoryview, place: int
    ) -> Run:
        """The next messages that the files have, copied to a buffer: at least one, when there is one that has room. `place` is
        where the first one will be. Raises CorruptedFile when they begin with damage."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset(self.commitlog.min_offset) <= queue_offset < queue.max_offset:
            return Run(b"", b"")
        encoded = self._units(queue, queue_offset, max_count)
        if not encoded:
            return Run(b"", b"")
        entries = self.commitlog.reads.copied(encoded, into, place)
        if entries:
            return Run(encoded[: len(entries)], entries)
        first = UNIT.unpack_from(encoded)
        if first[1] == BLANK_SIZE or first[1] > len(into):
            return Run(encoded[:UNIT_BYTES], b"")
        try:
            records = self.commitlog.reads.records([first], b"", first[1])
        except CorruptedFile as error:
            self._before_damage(queue, queue_offset, [first], error)
            raise
        if not records:
            return Run(b"", b"")
        into[: first[1]] = records[0]
        return Run(encoded[:UNIT_BYTES], UNIT.pack(place, *first[1:]))

    def run_aside(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> Callable[[memoryview, int], Run] | None:
        """What makes the same copy in a helper thread, once; it copies nothing where there is something to be decided. None where
        only `read_run` does it. Raises CorruptedFile when the queue begins with damage."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or not queue.min_offset(self.commitlog.min_offset) <= queue_offset < queue.max_offset:
            return None
        encoded = self._units(queue, queue_offset, max_count)
        copy = self.commitlog.reads.copied_aside(encoded) if encoded else None
        if copy is None:
            return None

        def run(into: memoryview, place: int) -> Run:
            entries = copy(into, place)
            return Run(encoded[: len(entries)], entries)

        return run

    def _units(self, queue: ConsumeQueue, queue_offset: int, max_count: int) -> bytes:
        """Units from there on, as the queue has them. Raises DamagedUnits when they are not what was written."""
        try:
            return queue.read_checked(queue_offset, max_count)
        except DamagedUnits as error:
            self._tell_damaged_units(queue, error)
            raise

    def _select(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None,
    ) -> tuple[list[Unit], int, bytes, int]:
        """As `select_units`. Who asks for a tag is not shown a message that he is denied, so the units have to be right."""
        try:
            return select_units(queue, queue_offset, max_count, max_bytes, tags_codes)
        except DamagedUnits as error:
            self._tell_damaged_units(queue, error)
            raise

    def _tell_damaged_units(self, queue: ConsumeQueue, error: DamagedUnits) -> None:
        self.tell_damage(Suspicion(-1, queue.topic, queue.queue_id, max(error.first, queue.first_offset)))

    def _before_damage(
        self, queue: ConsumeQueue, queue_offset: int, units: list[Unit], error: CorruptedFile
    ) -> tuple[list[Unit], int]:
        """What of a read precedes the damage, and where it goes on: there. Raises the error when nothing does."""
        if error.damage is None:
            raise error
        place = error.damage.offset
        at = [offset for offset, _, _ in units].index(place)
        damaged = next(
            number
            for number, unit in enumerate(queue.units(queue_offset, queue.max_offset - queue_offset), queue_offset)
            if unit[0] == place
        )
        self.tell_damage(Suspicion(place, queue.topic, queue.queue_id, damaged))
        if not at:
            raise error
        return units[:at], damaged

    def tell_damage(self, suspicion: Suspicion) -> None:
        """A read met damage: have it looked at."""
        for listener in self.damage_listeners:
            listener(suspicion)

    def read_physical(self, physical_offset: int) -> bytes | None:
        """The record at an offset of the log, or None when none starts there or it is not confirmed yet."""
        if physical_offset >= self.dispatch_offset:
            return None
        return self.commitlog.record_at(physical_offset)

    def message_at(self, physical_offset: int) -> bytes | None:
        """The message that starts at an offset of the log, or None when none does that consumers may see.

        A place inside of a message is none, whatever its bytes look like: a queue must name it.
        """
        encoded = self.read_physical(physical_offset) if physical_offset >= 0 else None
        if encoded is None:
            return None
        record = decode_record(encoded)
        if is_journal_topic(record.topic):
            return None
        units = self.read_units(record.topic, record.queue_id, max(0, record.queue_offset), 1)
        return encoded if units and units[0][:2] == (physical_offset, record.size) else None

    def cold_message_at(self, topic: str, physical_offset: int) -> bytes | None:
        """The same of a message of the topic that is in the tier only. Raises ColdMiss, or RequestError when it cannot be had."""
        if self.cold is None or not 0 <= physical_offset < self.commitlog.min_offset or is_journal_topic(topic):
            return None
        cold = self.cold

        def find(queue_id: int) -> bytes | None:
            low = self.local_min_offset(topic, queue_id)
            offset = cold.offset_by_position(topic, queue_id, physical_offset, low)
            return None if offset is None else cold.record(topic, queue_id, offset)

        return next((found for found in all_of(find, self.queue_ids(topic)) if found is not None), None)

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Unit]:
        """(physical offset, size, tags code) of the messages `[queue_offset, queue_offset + count)` that exist."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return []
        return list(queue.units(max(queue_offset, queue.min_offset(self.commitlog.min_offset)), count))

    def units_at(self, topic: str, queue_id: int, queue_offsets: Sequence[int]) -> list[Unit]:
        """The same of the messages at these offsets, in any order, up to the first that does not exist."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None or not queue_offsets:
            return []
        low = queue.min_offset(self.commitlog.min_offset)
        if min(queue_offsets) < low:
            queue_offsets = list(takewhile(lambda offset: offset >= low, queue_offsets))
        return queue.units_at(queue_offsets)

    def read_encoded_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> bytes:
        """Some of these as a queue has them, from that offset on, which exists: at least one, and `count` at most."""
        queue = self.queues.table.get((topic, queue_id))
        return b"" if queue is None else queue.read(queue_offset, count)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The first readable queue offset; 0 for a queue that does not exist."""
        local = self.local_min_offset(topic, queue_id)
        return local if self.cold is None else readable_min(self.cold, topic, queue_id, local)

    def local_min_offset(self, topic: str, queue_id: int) -> int:
        """The first queue offset whose message is in this broker's files; 0 for a queue that does not exist."""
        queue = self.queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset(self.commitlog.min_offset)

    def is_cold(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether a read from there on does not begin in this broker's files, which have none before theirs, or is not to; False
        without the queue."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return False
        if queue_offset < queue.min_offset(self.commitlog.min_offset):
            return True
        return self.cold_first is not None and self.cold_first.end(queue, queue_offset) > 0

    def is_in_memory(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether a message, which files have, can be read without the disk, as far as that can be told."""
        try:
            unit = next(iter(queue.units(queue_offset, 1)), None)
        except StorageError:  # who reads it from files meets it, and says so
            return True
        segment = self.commitlog.reads.segment_of(unit[0]) if unit is not None else None
        mapped = self.commitlog.reads.mapped(unit[0]) if unit is not None else None
        if unit is None or segment is None or mapped is None:
            return True
        (memory, begin), address = mapped, segment.address()
        with memory:
            at, size = unit[0] - begin, unit[1]
            # what is blank, or damaged, names more than there is: who reads it from files says what it is
            return not address or not 0 < size <= len(memory) - at or is_in_memory(address + at, size)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset behind the last readable one; 0 for a queue that does not exist."""
        queue = self.queues.table.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """The queue offset for a store time, always in `[min, max]`; store times do not decrease along a queue.

        Raises ColdMiss when the answer is in the tier, and RequestError when it cannot be had from there.
        """
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low = queue.min_offset(self.commitlog.min_offset)
        if boundary is Boundary.LOWER:
            return self._first_at(queue, timestamp_ms, low)
        first = self._first_at(queue, timestamp_ms + 1, low)
        if first <= low and self.cold is not None:
            before = self.cold.last_before(topic, queue_id, first)
            return first if before is None else before
        return max(low, first - 1)

    def _first_at(self, queue: ConsumeQueue, timestamp_ms: int, low: int) -> int:
        """The first message that was stored then or later; the files have those from `low` on."""
        stored_at = self.commitlog.store_timestamp_at
        if self.cold is not None and not any(stored_at(unit[0]) < timestamp_ms for unit in queue.units(low, 1)):
            found = self.cold.offset_by_time(queue.topic, queue.queue_id, timestamp_ms, low)
            if found is not None:
                return found
        return queue.first_where(lambda unit: stored_at(unit[0]) >= timestamp_ms, low, queue.max_offset)

    def offset_behind(self, topic: str, queue_id: int, physical_offset: int) -> int:
        """The queue offset of the first message that is stored at or behind a position of the log."""
        queue = self.queues.table.get((topic, queue_id))
        if queue is None:
            return 0
        low = queue.min_offset(self.commitlog.min_offset)
        return queue.first_where(lambda unit: unit[0] >= physical_offset, low, queue.max_offset)

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored, -1 when it is not there.

        Raises ColdMiss when it is in the tier and not the first or the last one of a segment, and RequestError when it cannot
        be had from there.
        """
        if self.cold is not None and 0 <= queue_offset < self.local_min_offset(topic, queue_id):
            return self.cold.store_timestamp(topic, queue_id, queue_offset)
        units = self.read_units(topic, queue_id, queue_offset, 1) if queue_offset >= 0 else []
        return self.commitlog.store_timestamp_at(units[0][0]) if units else -1

    def queue_ids(self, topic: str) -> list[int]:
        """The ids of the queues that a topic has messages in."""
        return sorted(queue_id for name, queue_id in self.queues.table if name == topic)
