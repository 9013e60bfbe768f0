"""From entries of the delay levels that are due to what is appended for them at once."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from brokerd.delay.destinations import destination_of
from brokerd.delay.ordinary import LEAST_TOGETHER, MOST_DECODED, NAMES, Ordinary
from brokerd.delay.rules import deliver
from brokerd.delay.waiting import WaitingLevel
from brokerd.journal.record_log import RecordLog
from brokerd.metadata.service import MetadataService
from brokerd.store.again import Copies
from brokerd.store.draft import Draft
from brokerd.store.unit import BLANK_SIZE, Unit
from remoting.errors import LogboomError, StorageError
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import decode_record

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Batch:
    """What one append does, and what it still has room for; the first message fits always."""

    room_messages: int
    room_bytes: int
    pieces: list[Draft | Copies] = field(default_factory=list)
    entries: int = 0
    delivered: int = 0
    lost: int = 0
    size_bytes: int = 0
    decoded: int = 0

    @property
    def has_room(self) -> bool:
        return self.entries < self.room_messages and self.size_bytes < self.room_bytes and self.decoded < MOST_DECODED


class Batches:
    """Takes what is due off the levels. Nothing else is changed by that, but that a retry topic which is needed is created."""

    def __init__(self, record_log: RecordLog, metadata: MetadataService) -> None:
        self._log = record_log
        self._metadata = metadata

    def take_due(self, batch: Batch, level: WaitingLevel, queue_id: int, now_ms: int, wall_ms: int) -> int | None:
        """Add to the batch the first messages of a level that may be delivered, as many as fit; the level moves behind them.

        Since when the last one of them may be delivered, None without one. Raises LogboomError when the next one cannot be read,
        or has nowhere to go now; what is before it is in the batch.
        """
        low, end = self._log.queue_range(SCHEDULE_TOPIC, queue_id)
        if level.position < low:
            batch.lost += low - level.position
            level.move(low)
        since_ms = None
        while batch.has_room and level.position < end:
            before = level.position
            wanted = min(batch.room_messages - batch.entries, end - before)
            units = self._log.read_units(SCHEDULE_TOPIC, queue_id, before, wanted)
            if not units:
                raise StorageError(f"queue {queue_id} of {SCHEDULE_TOPIC} cannot be read at {before}, its end is {end}")
            count = level.count_released([due_ms for _, _, due_ms in units], now_ms, wall_ms)
            if count:
                self._take(batch, level, units[:count])
                last = level.position - 1
                since_ms = level.release_ms(last, units[last - before][2], now_ms, wall_ms)
            if count < len(units):
                break
        return since_ms

    def _take(self, batch: Batch, level: WaitingLevel, units: Sequence[Unit]) -> None:
        """Add as many of the first as fit."""
        ends = list(accumulate(0 if size == BLANK_SIZE else size for _, size, _ in units))
        count = min(len(units), bisect_right(ends, batch.room_bytes - batch.size_bytes) + 1)
        ordinary = self._ordinary(units[:count]) if count >= LEAST_TOGETHER else None
        at = 0
        while at < count and batch.has_room:
            end = at if ordinary is None else ordinary.end(at, count)
            if ordinary is not None and end > at:
                batch.pieces.append(ordinary.copies(at, end))
                batch.delivered += end - at
            else:
                end = at + 1
                self._add(batch, units[at])
            batch.entries += end - at
            batch.size_bytes += ends[end - 1] - (ends[at - 1] if at else 0)
            level.move(level.position + end - at)
            at = end

    def _ordinary(self, units: Sequence[Unit]) -> Ordinary | None:
        """None when they cannot be read together."""
        try:
            return Ordinary(self._log.look_again, units, range(len(units)), NAMES, self._metadata)
        except LogboomError as error:
            log.warning("delayed messages from %d of the log on are read one by one: %s", units[0][0], error)
            return None

    def _add(self, batch: Batch, unit: Unit) -> None:
        physical_offset, size, _ = unit
        if size == BLANK_SIZE:
            batch.lost += 1
            return
        record = decode_record(self._log.record_at(physical_offset, size))
        batch.decoded += 1
        target = destination_of(record.property_map(), physical_offset, self._metadata)
        if target is None:
            batch.lost += 1
        else:
            batch.pieces.append(deliver(record, target))
            batch.delivered += 1
