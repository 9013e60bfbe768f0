"""From log bytes to what is derived from them: the one loop behind running dispatch, recovery and rebuilding (pure).

`derive` walks records in a chunk of log bytes and returns an entry for each that belongs into a consume queue. It never
raises on any bytes: where no whole record starts, it stops and says why (`Stop`), and the caller, who knows what the bytes
should have been, decides. Prepared and rolled-back transaction records are walked over without an entry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from brokerd.delay.levels import DEFAULT_DELAYS, SCHEDULE_TOPIC_FIELD, Delays, schedule_code
from brokerd.store.log.layout import FILLER_BYTES, MIN_RECORD_BYTES, file_start
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record.checksum import is_intact
from remoting.record.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
)
from remoting.record.properties import tags_code

# topic, queue id, queue offset, physical offset, size, tags code, store timestamp, count. An entry stands for that many records
# of one size and tags code that lie one behind the other in the log and in the queue; its offsets are those of the first.
Entry = tuple[str, int, int, int, int, int, int, int]

_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
# size magic crc queueId queueOffset physicalOffset sysFlag storeTimestamp bodyLength, for IPv4 hosts
_HEAD: Final = struct.Struct(">iIIi4xqqi16xq20xi")
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_NO_QUEUE: Final = (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)


class Stop(Enum):
    """Why a walk ended where it ended."""

    END = "all bytes were walked"
    PARTIAL = "the last record continues beyond the bytes"
    DAMAGED = "no record starts there"


class Derived(NamedTuple):
    """What a chunk held. `end_offset` is where the next record or filler starts; `needs` is its size when the chunk ends inside
    it (0 when even that is unknown). `store_timestamp_ms` is that of the last record, -1 without one."""

    entries: list[Entry]
    end_offset: int
    stop: Stop
    needs: int
    store_timestamp_ms: int


class RecordShape(NamedTuple):
    """What bounds a record: its file's size and the largest size allowed. `check_content` also verifies checksums. `delays` is
    the table of delay levels."""

    file_size: int
    max_record_bytes: int
    check_content: bool = False
    delays: Delays = DEFAULT_DELAYS

    def checked(self) -> RecordShape:
        return self._replace(check_content=True)


def derive(data: Bytes, physical_offset: int, shape: RecordShape) -> Derived:
    """Walk the records in `data`, the log bytes that start at the record boundary `physical_offset`."""
    entries: list[Entry] = []
    position, length, view = 0, len(data), memoryview(data)
    file_size, max_record_bytes, check_content, delays = shape
    file_end = file_start(physical_offset, file_size) + file_size
    store_timestamp = -1
    needs = 0
    while True:
        if length - position < FILLER_BYTES:
            stop = Stop.PARTIAL if position < length else Stop.END
            break
        size, magic = _SIZE_AND_MAGIC.unpack_from(data, position)
        start = physical_offset + position
        if start >= file_end:
            file_end += file_size
        is_record = (
            magic in (MAGIC_V1, MAGIC_V2)
            and MIN_RECORD_BYTES <= size <= max_record_bytes
            and start + size + FILLER_BYTES <= file_end
        )
        if not is_record and (magic != MAGIC_BLANK or start + size != file_end):
            stop = Stop.DAMAGED
            break
        if position + size > length:
            stop, needs = Stop.PARTIAL, size
            break
        if is_record:
            parsed = _parse(data, view, position, size, start, check_content, delays)
            if parsed is None:
                stop = Stop.DAMAGED
                break
            entry, sys_flag = parsed
            store_timestamp = entry[6]
            if sys_flag & SYS_TRANSACTION_MASK not in _NO_QUEUE:
                entries.append(entry)
        position += size
    return Derived(entries, physical_offset + position, stop, needs, store_timestamp)


def _parse(
    data: Bytes, view: memoryview, at: int, size: int, start: int, check_content: bool, delays: Delays
) -> tuple[Entry, int] | None:
    """The entry and sysFlag of the record of that size at position `at` of the data, or None when its parts do not add up.

    `start` is the physical offset of that position, `view` a view of the data.
    """
    _, magic, crc, queue_id, queue_offset, physical_offset, sys_flag, timestamp, body_length = _HEAD.unpack_from(
        data, at
    )
    if physical_offset != start:
        return None
    end = at + size
    body_start = at + 88
    if sys_flag & (SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6):
        store_time_at = at + (68 if sys_flag & SYS_BORN_HOST_V6 else 56)
        body_start = store_time_at + (40 if sys_flag & SYS_STORE_HOST_V6 else 28) + 4
        if body_start > end:
            return None
        (timestamp,) = _LONG.unpack_from(data, store_time_at)
        (body_length,) = _INT.unpack_from(data, body_start - 4)
    body_end = body_start + body_length
    if body_length < 0 or body_end + 3 > end:
        return None
    if magic == MAGIC_V1:
        topic_start = body_end + 1
        topic_length = data[body_end]
    else:
        topic_start = body_end + 2
        (topic_length,) = _SHORT.unpack_from(data, body_end)
    topic_end = topic_start + topic_length
    if topic_length < 1 or topic_end + 2 > end:
        return None
    (properties_length,) = _SHORT.unpack_from(data, topic_end)
    if properties_length < 0 or topic_end + 2 + properties_length != end:
        return None
    topic, properties = bytes(data[topic_start:topic_end]), bytes(data[topic_end + 2 : end])
    if check_content:
        if crc32(view[body_start:body_end]) & 0x7FFFFFFF != crc:
            return None
        # Nothing else covers topic and properties, but a sector of zeros, which is what a torn write leaves, gives itself
        # away: no stored name or property holds a zero byte.
        if b"\0" in topic or b"\0" in properties:
            return None
        if not is_intact(view[at:end]):
            return None
    is_waiting = topic == SCHEDULE_TOPIC_FIELD
    code = schedule_code(properties, timestamp, delays) if is_waiting else tags_code(properties)
    return (_topic_name(topic), queue_id, queue_offset, start, size, code, timestamp, 1), sys_flag


@lru_cache(maxsize=4096)
def _topic_name(topic: bytes) -> str:
    return str(topic, "utf-8", "surrogateescape")


def walk(
    read: Callable[[int, int], bytes], start: int, end: int, shape: RecordShape, chunk_bytes: int
) -> Iterator[Derived]:
    """Derive from `[start, end)` of a log in chunks; ends after the first chunk that stopped at damage or at a cut record.

    `read(offset, length)` gives up to that many bytes and never crosses a file.
    """
    wanted = chunk_bytes
    while start < end:
        file_end = file_start(start, shape.file_size) + shape.file_size
        length = min(wanted, end - start, file_end - start)
        data = read(start, length)
        if not data:
            yield Derived([], start, Stop.PARTIAL, 0, -1)
            return
        derived = derive(data, start, shape)
        more_to_read = len(data) == length and start + length < min(end, file_end)
        if derived.stop is Stop.PARTIAL and more_to_read:
            if derived.entries or derived.end_offset > start:
                yield derived._replace(stop=Stop.END)
            start, wanted = derived.end_offset, max(chunk_bytes, derived.needs)
            continue
        yield derived
        if derived.stop is not Stop.END:
            return
        start, wanted = derived.end_offset, chunk_bytes
