"""Records as clients and checks look at them: what every replica has, and many read, is taken apart once (pure)."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from brokerd.store.log.derive import RecordShape, derive_range
from remoting.record.codec import Record, body_is_intact, decode_record


class Looked(NamedTuple):
    """A decoded record, and whether its body is what was stored."""

    record: Record
    is_intact: bool


@lru_cache(maxsize=8192)
def look_at(encoded: bytes) -> Looked:
    """Raises ProtocolError for what is no record."""
    record = decode_record(encoded)
    return Looked(record, body_is_intact(record))


class Units(NamedTuple):
    """What the queues must hold by a log: (physical offset, size) by topic and queue. `damaged_at` is where the log is damaged;
    `gap` tells of the first record whose number does not follow the one before."""

    by_queue: dict[tuple[str, int], list[tuple[int, int]]]
    damaged_at: int | None
    gap: str
    firsts: dict[tuple[str, int], int]  # of a log without its begin: the number of the first unit, where that is not 0


@lru_cache(maxsize=2)
def units_of(log: bytes, start: int, shape: RecordShape) -> Units:
    """Of a whole log that begins at the offset `start`; the replicas of a group that has settled have the same one."""

    def read(offset: int, length: int) -> bytes:
        return log[offset - start : offset - start + length]

    by_queue: dict[tuple[str, int], list[tuple[int, int]]] = {}
    firsts: dict[tuple[str, int], int] = {}
    for derived in derive_range(read, start, start + len(log), shape.checked(), 1 << 16):
        if derived.stop.name == "DAMAGED":
            return Units(by_queue, derived.end_offset, "", firsts)
        for topic, queue_id, queue_offset, physical_offset, size, _, _, count in derived.entries:
            key = topic, queue_id
            if start and key not in by_queue and queue_offset:
                firsts[key] = queue_offset
            units = by_queue.setdefault(key, [])
            if queue_offset == 0:
                units.clear()  # the topic was deleted before
                firsts.pop(key, None)
            before = firsts.get(key, 0) + len(units) - 1
            if queue_offset != before + 1:
                return Units(by_queue, None, f"{topic}/{queue_id} has {queue_offset} after {before}", firsts)
            units += [(physical_offset + n * size, size) for n in range(count)]
    return Units(by_queue, None, "", firsts)
