"""Message records, back to back as a broker answers them -> one Arrow record batch, without a Python object per field (pure)

The positions of records are found in one pass; after that each field of all records is read at once: fixed fields by gathering
their bytes and viewing them as big-endian numbers, variable ones by laying `[start, end]` pairs over the buffer as the offsets of
a binary array and taking every second slot. The meaning of each field is `remoting.record`'s; a test holds the two together.

Only what is asked for is decoded. Lengths that contradict each other raise ProtocolError before anything is read by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record import checksum
from remoting.record.compression import unpack
from remoting.record.hosts import offset_message_id
from remoting.record.layout import (
    HOST_BYTES,
    HOST_V6_BYTES,
    LENGTH,
    LENGTH_BYTES,
    MAGIC_V2,
    SHORT_TOPIC_LENGTH_BYTES,
    SYS_COMPRESSED,
    SYS_STORE_HOST_V6,
    SYS_V6_HOSTS,
    Field,
    heads,
)
from remoting.record.walk import records_in

Ints = npt.NDArray[np.int64]

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
}

MAX_UNPACKED_BYTES: Final = 32 * 1024 * 1024
_HEX = np.array([list(f"{byte:02X}".encode()) for byte in range(256)], dtype=np.uint8)


def scan(buffer: Bytes) -> Ints:
    """Where each record starts. Raises ProtocolError when a size is impossible or a record is cut off."""
    return np.array(records_in(buffer), dtype=np.int64)


def queue_offsets(buffer: Bytes, starts: Ints) -> Ints:
    """The queue offset of each record."""
    return _field(np.frombuffer(buffer, np.uint8), starts, Field.QUEUE_OFFSET)


def decode(buffer: Bytes, starts: Ints, broker_name: str, columns: Sequence[str]) -> pa.RecordBatch:
    """The columns of the records that start at `starts`, in the order asked for."""
    layout = _measure(buffer, starts)
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


@dataclass(slots=True)
class _Layout:
    """Where the parts of each record lie in the buffer; ranges are [start, end)."""

    buffer: Bytes
    data: npt.NDArray[np.uint8]
    starts: Ints
    sys_flags: Ints
    hosts: Ints
    body_start: Ints
    body_end: Ints
    topic_start: Ints
    topic_end: Ints
    properties_start: Ints
    properties_end: Ints
    parsed: _Properties | None = None

    def place(self, field: Field) -> Ints:
        """Where a field in the head of each record is."""
        return self.starts + _places(field)[self.hosts]

    def field(self, field: Field) -> Ints:
        """A number in the head of each record."""
        return _numbers(self.data, self.place(field), field.kind)

    def properties(self) -> _Properties:
        """The properties, taken apart once for all columns that come from them."""
        if self.parsed is None:
            self.parsed = _parse_properties(self)
        return self.parsed


class _Properties(NamedTuple):
    """All properties of all records, in order; `rows` says whose each one is."""

    rows: Ints
    names: pa.Array
    values: pa.Array


def _measure(buffer: Bytes, starts: Ints) -> _Layout:
    data = np.frombuffer(buffer, np.uint8)
    ends = starts + _field(data, starts, Field.SIZE)
    sys_flags = _field(data, starts, Field.SYS_FLAG)
    hosts = sys_flags & SYS_V6_HOSTS
    body_length_at = starts + _places(Field.BODY_LENGTH)[hosts]
    body_start = body_length_at + Field.BODY_LENGTH.size
    _require(body_start <= ends, starts)
    body_end = body_start + _numbers(data, body_length_at, Field.BODY_LENGTH.kind)
    long_topic = _field(data, starts, Field.MAGIC) == MAGIC_V2
    topic_start = body_end + np.where(long_topic, LENGTH_BYTES, SHORT_TOPIC_LENGTH_BYTES)
    _require((body_end >= body_start) & (topic_start <= ends), starts)
    topic_lengths = data[body_end].astype(np.int64)
    if long_topic.any():
        topic_lengths[long_topic] = _numbers(data, body_end[long_topic], LENGTH.format)
    topic_end = topic_start + topic_lengths
    properties_start = topic_end + LENGTH_BYTES
    _require((topic_lengths >= 0) & (properties_start <= ends), starts)
    lengths = _numbers(data, topic_end, LENGTH.format)
    _require((lengths >= 0) & (properties_start + lengths == ends), starts)
    return _Layout(
        buffer,
        data,
        starts,
        sys_flags,
        hosts,
        body_start,
        body_end,
        topic_start,
        topic_end,
        properties_start,
        ends,
    )


def _require(holds: npt.NDArray[np.bool_], starts: Ints) -> None:
    if not holds.all():
        raise ProtocolError(f"the parts of the record at byte {starts[~holds][0]} do not add up to its size")


@lru_cache
def _places(field: Field) -> Ints:
    """Where a field is in a record, by its hosts."""
    places = np.zeros(SYS_V6_HOSTS + 1, dtype=np.int64)
    for hosts in heads(field):
        places[hosts] = field.place(hosts)
    return places


def _field(data: npt.NDArray[np.uint8], starts: Ints, field: Field) -> Ints:
    """A number in the head of each record, in front of the hosts."""
    return _numbers(data, starts + field.at, field.kind)


def _numbers(data: npt.NDArray[np.uint8], positions: Ints, kind: str) -> Ints:
    """The big-endian numbers at these positions; their kind is one of `struct`, which numpy calls the same."""
    kind = ">" + kind.removeprefix(">")
    gathered = data[positions[:, None] + np.arange(np.dtype(kind).itemsize)]
    return np.ascontiguousarray(gathered).view(kind)[:, 0].astype(np.int64)


def _slices(layout: _Layout, starts: Ints, ends: Ints) -> pa.Array:
    """These ranges of the buffer as a binary array."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    pairs = np.empty(2 * count, dtype=np.int32)
    pairs[0::2], pairs[1::2] = starts, ends
    over_all = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(pairs), pa.py_buffer(layout.buffer)]
    )
    return over_all.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def _text(layout: _Layout, starts: Ints, ends: Ints) -> pa.Array:
    """These ranges as text; bytes that are not UTF-8 become the replacement character, as everywhere else."""
    found = _slices(layout, starts, ends)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(each).decode("utf-8", "replace") for each in found.to_pylist()], pa.string())


def _number_column(field: Field, name: str) -> Callable[[_Layout], pa.Array]:
    return lambda layout: pa.array(layout.field(field)).cast(COLUMN_TYPES[name])


def _time_column(field: Field) -> Callable[[_Layout], pa.Array]:
    return lambda layout: _time(layout.field(field))


def _time(milliseconds: Ints) -> pa.Array:
    """Timestamps; a time that a microsecond count cannot hold is unknown."""
    representable = np.abs(milliseconds) <= np.iinfo(np.int64).max // 1000
    micros = np.where(representable, milliseconds, 0) * 1000
    return pa.array(micros, mask=~representable).cast(TIMESTAMP)


def _parse_properties(layout: _Layout) -> _Properties:
    """Entries without a name or a value are dropped, and so is the record's checksum; a name may occur twice."""
    entries = pc.split_pattern(_text(layout, layout.properties_start, layout.properties_end), "\x02")
    rows = pc.list_parent_indices(entries).to_numpy().astype(np.int64)
    parts = pc.split_pattern(entries.flatten(), "\x01", max_splits=1)
    paired = np.diff(parts.offsets.to_numpy()) == 2
    flat = parts.flatten()
    name_at = parts.offsets.to_numpy()[:-1][paired]
    names, values = flat.take(pa.array(name_at)), flat.take(pa.array(name_at + 1))
    whole = (np.diff(_string_offsets(names)) > 0) & (np.diff(_string_offsets(values)) > 0)
    whole &= pc.not_equal(names, checksum.NAME).to_numpy(zero_copy_only=False)
    rows = rows[paired]
    if whole.all():
        return _Properties(rows, names, values)
    kept = pa.array(whole)
    return _Properties(rows[whole], names.filter(kept), values.filter(kept))


def _string_offsets(texts: pa.Array) -> npt.NDArray[np.int32]:
    """The offsets buffer of a string array: differences are lengths in bytes."""
    return np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]


def _property(name: str) -> Callable[[_Layout], pa.Array]:
    """The last value of a property; null without one."""

    def find(layout: _Layout) -> pa.Array:
        properties = layout.properties()
        found = np.flatnonzero(pc.equal(properties.names, name).to_numpy(zero_copy_only=False))
        places = np.full(len(layout.starts), -1, dtype=np.int64)
        places[properties.rows[found]] = found  # the last of a name wins, because it is assigned last
        return properties.values.take(pa.array(places, mask=places < 0))

    return find


def _message_id(layout: _Layout) -> pa.Array:
    """The client's unique id, or for a message without one the server's offset id."""
    unique = _property("UNIQ_KEY")(layout)
    return pc.coalesce(unique, _offset_ids(layout)) if unique.null_count else unique


def _offset_ids(layout: _Layout) -> pa.Array:
    v6 = (layout.sys_flags & SYS_STORE_HOST_V6) != 0
    host_at = layout.place(Field.STORE_HOST)
    if v6.any():
        physical = layout.field(Field.PHYSICAL_OFFSET)
        return pa.array(
            [
                offset_message_id(bytes(layout.buffer[at : at + (HOST_V6_BYTES if long else HOST_BYTES)]), int(offset))
                for at, long, offset in zip(host_at.tolist(), v6.tolist(), physical.tolist(), strict=True)
            ],
            pa.string(),
        )
    host, place = np.arange(HOST_BYTES), Field.PHYSICAL_OFFSET.at + np.arange(Field.PHYSICAL_OFFSET.size)
    packed = np.concatenate([layout.data[host_at[:, None] + host], layout.data[layout.starts[:, None] + place]], axis=1)
    digits = np.ascontiguousarray(_HEX[packed])
    offsets = np.arange(len(layout.starts) + 1, dtype=np.int32) * (2 * packed.shape[1])
    return pa.StringArray.from_buffers(len(layout.starts), pa.py_buffer(offsets), pa.py_buffer(digits))


def _properties(layout: _Layout) -> pa.Array:
    """All properties as maps; the last of a name wins."""
    properties = layout.properties()
    chosen = np.arange(len(properties.rows))
    if len(chosen):
        coded = properties.names.dictionary_encode()
        identities = properties.rows * len(coded.dictionary) + coded.indices.to_numpy()
        _, last = np.unique(identities[::-1], return_index=True)
        if len(last) < len(chosen):
            chosen = np.sort(len(chosen) - 1 - last)
    counts = np.bincount(properties.rows[chosen], minlength=len(layout.starts))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    if len(chosen) == len(properties.rows):
        return pa.MapArray.from_arrays(offsets, properties.names, properties.values)
    kept = pa.array(chosen)
    return pa.MapArray.from_arrays(offsets, properties.names.take(kept), properties.values.take(kept))


def _body(layout: _Layout) -> pa.Array:
    """The bodies as they were sent; null for one that cannot be unpacked."""
    stored = _slices(layout, layout.body_start, layout.body_end)
    compressed = np.flatnonzero(layout.sys_flags & SYS_COMPRESSED)
    if not len(compressed):
        return stored
    bodies: list[Any] = stored.to_pylist()
    for row in compressed.tolist():
        bodies[row] = unpacked(bodies[row], int(layout.sys_flags[row]))
    return pa.array(bodies, pa.binary())


def unpacked(stored: bytes, sys_flag: int) -> bytes | None:
    """None when it cannot be unpacked, or only to more than the limit."""
    try:
        content = unpack(stored, sys_flag, MAX_UNPACKED_BYTES + 1)
    except ValueError:
        return None
    return content if len(content) <= MAX_UNPACKED_BYTES else None


_DECODERS: Final[Mapping[str, Callable[[_Layout], pa.Array]]] = {
    "topic": lambda layout: _text(layout, layout.topic_start, layout.topic_end),
    "queue_id": _number_column(Field.QUEUE_ID, "queue_id"),
    "queue_offset": _number_column(Field.QUEUE_OFFSET, "queue_offset"),
    "born_ts": _time_column(Field.BORN_TIMESTAMP),
    "store_ts": _time_column(Field.STORE_TIMESTAMP),
    "reconsume_times": _number_column(Field.RECONSUME_TIMES, "reconsume_times"),
    "tags": _property("TAGS"),
    "keys": _property("KEYS"),
    "msg_id": _message_id,
    "body_size": lambda layout: pa.array((layout.body_end - layout.body_start).astype(np.int32)),
    "properties": _properties,
    "body": _body,
}
