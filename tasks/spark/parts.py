"""Where the parts of each record lie in a buffer of records, found for all of them at once (pure)

Fixed fields are gathered with the head of each record in one step and viewed as big-endian numbers; lengths that contradict each
other raise ProtocolError before anything is read by them. The meaning of each field is `remoting.record`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.layout import (
    HEAD_BYTES,
    LENGTH,
    LENGTH_BYTES,
    MAGIC_V2,
    SHORT_TOPIC_LENGTH_BYTES,
    SYS_V6_HOSTS,
    Field,
    heads,
)

Ints = npt.NDArray[np.int64]

_FIELDS: Final = [field for field in Field if not field.host_bit]
# A head with IPv4 hosts; in front of the hosts it is that of every record.
_HEAD: Final = np.dtype(
    {
        "names": [field.name for field in _FIELDS],
        "formats": [">" + field.kind for field in _FIELDS],
        "offsets": [field.at for field in _FIELDS],
        "itemsize": HEAD_BYTES,
    }
)


@dataclass(slots=True)
class Parts:
    """Where the parts of the records at `starts` lie in the buffer; ranges are [start, end)."""

    buffer: Bytes
    starts: Ints
    heads: npt.NDArray[Any]
    sys_flags: Ints
    hosts: Ints
    has_v6: bool
    body_start: Ints
    body_end: Ints
    topic_start: Ints
    topic_end: Ints
    properties_start: Ints
    properties_end: Ints

    def place(self, field: Field) -> Ints:
        """Where a field in the head of each record is."""
        return self.starts + _places(field)[self.hosts] if self.has_v6 else self.starts + field.at

    def field(self, field: Field) -> Ints:
        """A number in the head of each record."""
        return numbers(self.buffer, self.place(field), field.kind) if self.has_v6 else _of_heads(self.heads, field)


def measure(buffer: Bytes, starts: Ints) -> Parts:
    """The parts of the records, which are whole. Raises ProtocolError for one whose lengths do not add up to its size."""
    heads_ = gather(buffer, starts, HEAD_BYTES).view(_HEAD)
    ends = starts + _of_heads(heads_, Field.SIZE)
    sys_flags = _of_heads(heads_, Field.SYS_FLAG)
    hosts = sys_flags & SYS_V6_HOSTS
    has_v6 = bool(hosts.any())
    if has_v6:
        body_length_at = starts + _places(Field.BODY_LENGTH)[hosts]
        body_start = body_length_at + Field.BODY_LENGTH.size
        _require(body_start <= ends, starts)
        body_end = body_start + numbers(buffer, body_length_at, Field.BODY_LENGTH.kind)
    else:
        body_start = starts + HEAD_BYTES
        body_end = body_start + _of_heads(heads_, Field.BODY_LENGTH)
    long_topic = _of_heads(heads_, Field.MAGIC) == MAGIC_V2
    topic_start = body_end + np.where(long_topic, LENGTH_BYTES, SHORT_TOPIC_LENGTH_BYTES)
    _require((body_end >= body_start) & (topic_start <= ends), starts)
    topic_lengths = numbers(buffer, body_end, "B")
    if long_topic.any():
        topic_lengths[long_topic] = numbers(buffer, body_end[long_topic], LENGTH.format)
    topic_end = topic_start + topic_lengths
    properties_start = topic_end + LENGTH_BYTES
    _require((topic_lengths >= 0) & (properties_start <= ends), starts)
    lengths = numbers(buffer, topic_end, LENGTH.format)
    _require((lengths >= 0) & (properties_start + lengths == ends), starts)
    return Parts(
        buffer,
        starts,
        heads_,
        sys_flags,
        hosts,
        has_v6,
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


def _of_heads(heads_: npt.NDArray[Any], field: Field) -> Ints:
    return heads_[field.name].astype(np.int64)


def gather(buffer: Bytes, positions: Ints, length: int) -> npt.NDArray[Any]:
    """The `length` bytes at each of the positions, as items of one array. They must lie in the buffer."""
    if not len(positions):
        return np.empty(0, f"V{length}")
    # An item begins at each byte of the buffer, over those behind it: numpy copies the ones that are asked for whole.
    return np.ndarray((len(buffer) - length + 1,), f"V{length}", buffer, strides=(1,))[positions]


def numbers(buffer: Bytes, positions: Ints, kind: str) -> Ints:
    """The big-endian numbers at these positions; their kind is one of `struct`, which numpy calls the same."""
    of_kind = np.dtype(">" + kind.removeprefix(">"))
    return gather(buffer, positions, of_kind.itemsize).view(of_kind).astype(np.int64)


def slices(buffer: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """These ranges of the buffer, none of which begins before the one in front of it ends, as a binary array of its own."""
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    # The ranges and what is between them are the values of an array over the whole buffer, of which every second is taken.
    pairs = np.empty(2 * count, dtype=np.int32)
    pairs[0::2], pairs[1::2] = starts, ends
    over_all = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(pairs), pa.py_buffer(buffer)]
    )
    return over_all.take(pa.array(np.arange(0, 2 * count - 1, 2)))


def texts(buffer: Bytes, starts: Ints, ends: Ints) -> pa.Array:
    """These ranges as text; bytes that are not UTF-8 become the replacement character, as everywhere else."""
    found = slices(buffer, starts, ends)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([bytes(each).decode("utf-8", "replace") for each in found.to_pylist()], pa.string())
