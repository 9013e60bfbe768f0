"""Message records, back to back as a broker answers them -> one Arrow record batch, without a Python object per field (pure)

The positions of records are found in one pass; after that each field of all records is read at once, where `parts` says it is:
fixed fields as numbers, variable ones by laying `[start, end]` pairs over the buffer as the offsets of a binary array and taking
every second slot. The meaning of each field is `remoting.record`'s; a test holds the two together.

The columns of timers (`timer_...`) are properties of the records in the timer topic, and of the messages that were delivered from
it; they are null without the property, and without a number in one that is to be one.

Only what is asked for is decoded. Lengths that contradict each other raise ProtocolError before anything is read by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remoting.disk import Bytes
from remoting.record.compression import unpack
from remoting.record.hosts import offset_message_id
from remoting.record.layout import (
    HOST_BYTES,
    HOST_V6_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_OVERHEAD_BYTES,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    Field,
    heads,
)
from remoting.record.walk import records_in
from remoting.timer_names import DELETE_KEY, DUE_MS, OUT_MS, PLACE, REAL_TOPIC, ROLL_TIMES, SLOT_MS
from tasks.spark.parts import Ints, Parts, gather, measure, numbers, slices, texts
from tasks.spark.record_properties import Properties

_SIZE: Final = heads(Field.SIZE)[0]

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
COLUMN_TYPES: Final[Mapping[str, pa.DataType]] = {
    "topic": pa.string(),
    "broker_name": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "born_ts": TIMESTAMP,
    "store_ts": TIMESTAMP,
    "reconsume_times": pa.int32(),
    "tags": pa.string(),
    "keys": pa.string(),
    "msg_id": pa.string(),
    "body_size": pa.int32(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "timer_place": pa.int64(),  # the offset in the timer topic's queue at which the message waited first
    "timer_due_ms": pa.int64(),
    "timer_slot_ms": pa.int64(),  # of the original's: due within the second behind
    "timer_rolled": pa.int32(),  # how often it was appended again on its way
    "timer_topic": pa.string(),  # where it goes
    "timer_recalls": pa.string(),  # topic+key of what a delete marker takes back
}
# What a reader gets who does not say which columns; those of timers have to be asked for.
USUAL_COLUMNS: Final = tuple(name for name in COLUMN_TYPES if not name.startswith("timer_"))

_INT64: Final = pa.int64()
MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
_HEX = np.array([list(f"{byte:02X}".encode()) for byte in range(256)], dtype=np.uint8)


def scan(buffer: Bytes) -> Ints:
    """Where each record starts. Raises ProtocolError when a size is impossible or a record is cut off."""
    starts = []
    position, end = 0, len(buffer)
    last, size_at = end - RECORD_OVERHEAD_BYTES, _SIZE.unpack_from
    while position <= last:  # as little as possible for each: what they begin with is looked at together
        starts.append(position)
        (size,) = size_at(buffer, position)
        if size < RECORD_OVERHEAD_BYTES:
            break
        position += size
    found = np.array(starts, dtype=np.int64)
    if position == end and _are_records(numbers(buffer, found + Field.MAGIC.at, Field.MAGIC.kind)):
        return found
    return np.array(records_in(buffer), dtype=np.int64)  # which says what is wrong, and where


def _are_records(magics: Ints) -> bool:
    return bool(((magics == MAGIC_V1) | (magics == MAGIC_V2)).all())


def queue_offsets(buffer: Bytes, starts: Ints) -> Ints:
    """The queue offset of each record."""
    return numbers(buffer, starts + Field.QUEUE_OFFSET.at, Field.QUEUE_OFFSET.kind)


def decode(buffer: Bytes, starts: Ints, broker_name: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns of the records that start at `starts`, in the order asked for."""
    if not len(starts):
        return pa.RecordBatch.from_pylist([], schema(columns))
    layout = _Layout(measure(buffer, starts))
    arrays = []
    for name in columns:
        if name == "broker_name":
            arrays.append(pa.repeat(pa.scalar(broker_name), len(starts)))
        else:
            arrays.append(_DECODERS[name](layout))
    return pa.RecordBatch.from_arrays(arrays, schema=schema(columns))


def schema(columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of a projection."""
    return pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])


class _Layout:
    """Where the parts of each record lie, and their properties, taken apart when the first column wants them."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    @cached_property
    def properties(self) -> Properties:
        parts = self.parts
        return Properties(texts(parts.buffer, parts.properties_start, parts.properties_end))


def _int32(field: Field) -> Callable[[_Layout], pa.Array]:
    return lambda layout: pa.array(layout.parts.field(field).astype(np.int32))


def _time(field: Field) -> Callable[[_Layout], pa.Array]:
    return lambda layout: _timestamps(layout.parts.field(field))


def _timestamps(milliseconds: Ints) -> pa.Array:
    """Timestamps; a time that a microsecond count cannot hold is unknown."""
    representable = np.abs(milliseconds) <= np.iinfo(np.int64).max // 1000
    micros = np.where(representable, milliseconds, 0) * 1000
    return pa.array(micros.view("M8[us]"), TIMESTAMP, mask=None if representable.all() else ~representable)


def _number(name: str, kind: pa.DataType = _INT64, most_digits: int = 16) -> Callable[[_Layout], pa.Array]:
    """A property that is a time, a count or an offset; null when it is missing or none of these."""

    def decode_number(layout: _Layout) -> pa.Array:
        values = layout.properties.values_of(name)
        is_number = pc.match_substring_regex(values, f"^[0-9]{{1,{most_digits}}}$")
        return pc.if_else(is_number, values, pa.scalar(None, pa.string())).cast(kind)

    return decode_number


def _due_ms(layout: _Layout) -> pa.Array:
    """When a timer is due. What the original stored says its slot only, which is over a second after it began; its delete markers
    have their effect before that."""
    due_ms = _number(DUE_MS)(layout)
    if not due_ms.null_count:
        return due_ms
    wait_ms = pc.if_else(layout.properties.values_of(DELETE_KEY).is_valid(), 0, SLOT_MS)
    return pc.coalesce(due_ms, pc.add(_number(OUT_MS)(layout), wait_ms))


def _message_id(layout: _Layout) -> pa.Array:
    """The client's unique id, or for a message without one the server's offset id."""
    unique = layout.properties.values_of("UNIQ_KEY")
    return pc.coalesce(unique, _offset_ids(layout.parts)) if unique.null_count else unique


def _offset_ids(parts: Parts) -> pa.Array:
    v6 = (parts.sys_flags & SYS_STORE_HOST_V6) != 0
    host_at = parts.place(Field.STORE_HOST)
    if v6.any():
        physical = parts.field(Field.PHYSICAL_OFFSET)
        return pa.array(
            [
                offset_message_id(bytes(parts.buffer[at : at + (HOST_V6_BYTES if long else HOST_BYTES)]), int(offset))
                for at, long, offset in zip(host_at.tolist(), v6.tolist(), physical.tolist(), strict=True)
            ],
            pa.string(),
        )
    packed = np.empty((len(parts.starts), HOST_BYTES + Field.PHYSICAL_OFFSET.size), np.uint8)
    host = gather(parts.buffer, host_at, HOST_BYTES)
    offset = gather(parts.buffer, parts.starts + Field.PHYSICAL_OFFSET.at, Field.PHYSICAL_OFFSET.size)
    packed[:, :HOST_BYTES] = host.view(np.uint8).reshape(-1, HOST_BYTES)
    packed[:, HOST_BYTES:] = offset.view(np.uint8).reshape(-1, Field.PHYSICAL_OFFSET.size)
    digits = np.ascontiguousarray(_HEX[packed])
    offsets = np.arange(len(parts.starts) + 1, dtype=np.int32) * (2 * packed.shape[1])
    return pa.StringArray.from_buffers(len(parts.starts), pa.py_buffer(offsets), pa.py_buffer(digits))


def _body(layout: _Layout) -> pa.Array:
    """The bodies as they were sent; null for one that cannot be unpacked."""
    parts = layout.parts
    stored = slices(parts.buffer, parts.body_start, parts.body_end)
    compressed = np.flatnonzero(parts.sys_flags & SYS_COMPRESSED)
    if not len(compressed):
        return stored
    bodies: list[Any] = stored.to_pylist()
    for row in compressed.tolist():
        bodies[row] = unpacked(bodies[row], int(parts.sys_flags[row]))
    return pa.array(bodies, pa.binary())


def unpacked(stored: bytes, sys_flag: int) -> bytes | None:
    """None when it cannot be unpacked, or only to more than the limit."""
    try:
        content = unpack(stored, sys_flag, MAX_UNPACKED_BYTES + 1)
    except ValueError:
        return None
    return content if len(content) <= MAX_UNPACKED_BYTES else None


_DECODERS: Final[Mapping[str, Callable[[_Layout], pa.Array]]] = {
    "topic": lambda layout: texts(layout.parts.buffer, layout.parts.topic_start, layout.parts.topic_end),
    "queue_id": _int32(Field.QUEUE_ID),
    "queue_offset": lambda layout: pa.array(layout.parts.field(Field.QUEUE_OFFSET)),
    "born_ts": _time(Field.BORN_TIMESTAMP),
    "store_ts": _time(Field.STORE_TIMESTAMP),
    "reconsume_times": _int32(Field.RECONSUME_TIMES),
    "tags": lambda layout: layout.properties.values_of("TAGS"),
    "keys": lambda layout: layout.properties.values_of("KEYS"),
    "msg_id": _message_id,
    "body_size": lambda layout: pa.array((layout.parts.body_end - layout.parts.body_start).astype(np.int32)),
    "properties": lambda layout: layout.properties.maps(),
    "body": _body,
    "timer_place": _number(PLACE),
    "timer_due_ms": _due_ms,
    "timer_slot_ms": _number(OUT_MS),
    "timer_rolled": _number(ROLL_TIMES, pa.int32(), most_digits=9),
    "timer_topic": lambda layout: layout.properties.values_of(REAL_TOPIC),
    "timer_recalls": lambda layout: layout.properties.values_of(DELETE_KEY),
}
