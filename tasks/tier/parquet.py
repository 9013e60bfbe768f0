"""Reading exported files: some columns of some messages, a row group at a time."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from remoting.tier.complaints import reason_of
from tasks.tier.objects import Objects, TierError

OFFSET: Final = "queue_offset"


class ObjectFile(io.RawIOBase):
    """An object as a file: each read is a request. Raises TierError."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name
        self._size = objects.size(name)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size < 0 else min(size, left)
        content = self._objects.get(self._name, self._position, length) if length else b""
        self._position += length
        return content


def rows(objects: Objects, name: str, start: int, end: int, schema: pa.Schema) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The messages `[start, end)` of a file, in the columns of the schema; and how many bytes each batch was read of.

    Raises TierError, also when one is missing.
    """
    file = _opened(objects, name)
    position = start
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        low, high = _offsets(group)
        if low < end and high >= start:
            batch, whole_bytes = _rows(file, name, number, start, end, schema)
            position += batch.num_rows
            yield batch, whole_bytes
    if position != end:
        raise TierError(f"{name} has {position - start} of the messages {start} to {end}")


def _opened(objects: Objects, name: str) -> pq.ParquetFile:
    source = ObjectFile(objects, name)
    try:
        return pq.ParquetFile(source)
    except Exception as error:  # of the library below, through that above
        raise TierError(f"{name} cannot be read: {reason_of(error)}") from error


def _offsets(group: Any) -> tuple[int, int]:
    """The first and the last offset of a row group; all there may be when it does not say."""
    for at in range(group.num_columns):
        column = group.column(at)
        if column.path_in_schema == OFFSET and column.statistics is not None and column.statistics.has_min_max:
            return column.statistics.min, column.statistics.max
    return 0, 2**63 - 1


def _rows(
    file: pq.ParquetFile, name: str, number: int, start: int, end: int, schema: pa.Schema
) -> tuple[pa.RecordBatch, int]:
    wanted: Sequence[str] = schema.names
    try:
        table = file.read_row_group(number, columns=sorted({*wanted, OFFSET}))
        offsets = table[OFFSET]
        table = table.filter(pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end)))
        batches = table.select(wanted).cast(schema).combine_chunks().to_batches()
    except Exception as error:  # of the library below, through that above
        raise TierError(f"{name} cannot be read: {reason_of(error)}") from error
    batch = batches[0] if batches else pa.RecordBatch.from_pylist([], schema)
    return batch, file.metadata.row_group(number).total_byte_size
