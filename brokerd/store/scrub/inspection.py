"""Holds what is derived from the log against the log: the units of consume queues, and the index of keys.

A record that passed its own checks says what its unit must be, and which items the index must have of it. So nothing needs a
checksum that the log does not have already, and what is wrong is known together with what belongs there. The loop's thread calls
everything; queue and index files are read as they are on disk, in as few reads as that takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from brokerd.store.index.key_index import KeyIndex
from brokerd.store.index.postings import WalkMemory, derive_postings
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import CodeRules, Derived, Entry, derive
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES, Unit
from remoting.record.walk import Stop


class WrongUnits(NamedTuple):
    """Units of a queue's files, from `first` on, that are not what the log says; `units` are what belongs there."""

    queue: ConsumeQueue
    generation: int
    first: int
    units: bytes

    def __str__(self) -> str:
        count = len(self.units) // UNIT_BYTES
        return f"{count} of queue {self.queue.queue_id} of {self.queue.topic} from offset {self.first} on"


class Inspection(NamedTuple):
    """What was found in some bytes of the log. `derived.end_offset` is where they were understood to; when `derived.stop` is
    DAMAGED, no intact record starts there. `index_begin` is the offset of the log from which the index must be made again."""

    derived: Derived
    wrong_units: Sequence[WrongUnits]
    index_begin: int | None


class Inspector:
    """`begin_of` gives the position of the log before which a topic's records belong to an older, deleted topic of that name."""

    def __init__(
        self,
        log: CommitLog,
        queues: ConsumeQueues,
        index: KeyIndex | None,
        rules: CodeRules,
        begin_of: Callable[[str], int],
    ) -> None:
        self._log = log
        self._queues = queues
        self._index = index
        self._rules = rules
        self._begin_of = begin_of

    def inspect(self, data: bytes, start: int) -> Inspection:
        """Look at the log bytes that start at the record boundary `start`, and at what was derived from them."""
        derived = derive(data, start, self._log.shape.checked(), self._rules)
        whole = data[: derived.end_offset - start]
        return Inspection(derived, list(self._wrong_units(derived.entries)), self._wrong_index(whole, start))

    # -- consume queues ----------------------------------------------------------------------------------------------------

    def _wrong_units(self, entries: Sequence[Entry]) -> Iterator[WrongUnits]:
        for queue, first, expected in self._runs(entries):
            stored = queue.read_written(first, len(expected) // UNIT_BYTES)
            if stored == expected[: len(stored)]:
                continue
            yield from self._differing(queue, first, stored, expected)

    def _runs(self, entries: Sequence[Entry]) -> Iterator[tuple[ConsumeQueue, int, bytes]]:
        """The units that are in files and must be those of the entries, neighbours together: (queue, first offset, units)."""
        runs: dict[ConsumeQueue, list[tuple[int, bytearray]]] = {}
        begins: dict[str, int] = {}
        for topic, queue_id, queue_offset, physical_offset, size, code, _, _ in entries:
            queue = self._queues.table.get((topic, queue_id))
            if queue is None or not queue.first_offset <= queue_offset < queue.written_offset:
                continue
            begin = begins.get(topic)
            if begin is None:
                begin = begins[topic] = self._begin_of(topic)
            if physical_offset < begin:
                continue
            known = runs.setdefault(queue, [])
            unit = UNIT.pack(physical_offset, size, code)
            if known and known[-1][0] + len(known[-1][1]) // UNIT_BYTES == queue_offset:
                known[-1][1].extend(unit)
            else:
                known.append((queue_offset, bytearray(unit)))
        for queue, known in runs.items():
            for first, units in known:
                yield queue, first, bytes(units)

    def _differing(self, queue: ConsumeQueue, first: int, stored: bytes, expected: bytes) -> Iterator[WrongUnits]:
        for at in range(0, len(stored), UNIT_BYTES):
            present, right = stored[at : at + UNIT_BYTES], expected[at : at + UNIT_BYTES]
            offset = first + at // UNIT_BYTES
            if present != right and not self._matches_a_record(queue, offset, UNIT.unpack(present)):
                yield WrongUnits(queue, queue.generation, offset, right)

    def _matches_a_record(self, queue: ConsumeQueue, offset: int, unit: Unit) -> bool:
        """Whether the log has another record that the unit is right for: that one came first, or its topic is a newer one."""
        physical_offset, size, code = unit
        if not self._log.min_offset <= physical_offset < self._log.complete_offset or size <= 0:
            return False
        record = self._log.record_at(physical_offset)
        if record is None:
            return False
        entries = derive(record, physical_offset, self._log.shape.checked(), self._rules).entries
        return bool(entries) and entries[0][:6] == (queue.topic, queue.queue_id, offset, physical_offset, size, code)

    def uncovered(self, entries: Sequence[Entry]) -> Iterator[tuple[ConsumeQueue, int]]:
        """The queues, each with a unit, in which these entries are the last ones of a block that no checksum covers."""
        last: dict[tuple[str, int], int] = {(entry[0], entry[1]): entry[2] for entry in entries}
        for key, offset in last.items():
            queue = self._queues.table.get(key)
            if (
                queue is not None
                and queue.first_offset <= offset < queue.written_offset
                and self._queues.unproven(queue, offset)
            ):
                yield queue, offset

    def block_is_right(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether the log bears out all written units of a block; a blank one says nothing that could be wrong."""
        first, end = self._queues.block_of(queue, offset)
        return all(
            unit[1] == BLANK_SIZE or self._matches_a_record(queue, at, unit)
            for at, unit in enumerate(UNIT.iter_unpack(queue.read_written(first, end - first)), first)
            if unit[0] >= self._log.min_offset
        )

    def neighbours(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """From where to where in the log the record of a unit must be, which may be wrong itself: the records of the nearest
        units on both sides that the log bears out."""
        before = next(
            (
                unit[0]
                for at in range(offset - 1, queue.first_offset - 1, -1)
                if self._matches_a_record(queue, at, unit := queue.unit(at))
            ),
            self._log.min_offset,
        )
        behind = next(
            (
                unit[0]
                for at in range(offset + 1, queue.max_offset)
                if self._matches_a_record(queue, at, unit := queue.unit(at))
            ),
            self._log.complete_offset,
        )
        return before, behind

    # -- the index ---------------------------------------------------------------------------------------------------------

    def _wrong_index(self, whole: bytes, start: int) -> int | None:
        index = self._index
        if index is None or not whole or start + len(whole) > index.offset:
            return None
        found = derive_postings(whole, start, self._log.segment_size_bytes, WalkMemory())
        return index.first_wrong(found) if found.stop is Stop.END else None
