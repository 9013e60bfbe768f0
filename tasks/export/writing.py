"""Batches of messages -> one Parquet file in memory, which ends where its rule says, whoever writes it and when.

A file ends in front of the first message of another day, and behind the message with which it has so many bytes of records. Both
follow from the messages alone: two that write from the same message on write the same ranges.
"""

from __future__ import annotations

import io
from typing import Final

import numpy as np
import pyarrow.parquet as pq

from remoting.record.layout import Field
from tasks.spark import records
from tasks.spark.parts import Ints, measure
from tasks.tier.exports import DAY_MS

FILE_BYTES: Final = 64 << 20  # of records, before they are packed
COLUMNS: Final = tuple(records.COLUMN_TYPES)


class ExportWriter:
    """Makes one file of a queue's messages from `first` on; `add` until `is_full`, then `finish`."""

    def __init__(self, broker_name: str, first: int, file_bytes: int = FILE_BYTES) -> None:
        self.end = self.first = first
        self.is_full = False
        self.day = -1  # since 1970; -1 before the first message
        self._broker_name = broker_name
        self._room = file_bytes
        self._output = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None

    def add(self, body: bytes) -> None:
        """Those of these records, which follow, that belong to the file. Raises ProtocolError."""
        assert not self.is_full, "the file is full"
        starts = records.scan(body)
        count = self._count(body, starts)
        if count:
            batch = records.decode(body, starts[:count], self._broker_name, COLUMNS)
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._output, batch.schema, compression="zstd")
            self._writer.write_batch(batch, row_group_size=max(1, batch.num_rows))
            self.end += count
        self.is_full = count < len(starts) or self._room <= 0

    def finish(self) -> bytes:
        """The file, which has a message at least."""
        assert self._writer is not None, "there is a message"
        self._writer.close()
        return self._output.getvalue()

    def _count(self, body: bytes, starts: Ints) -> int:
        """How many of the records belong to the file; and they are counted."""
        days = store_times(body, starts) // DAY_MS
        if self.day < 0:
            self.day = int(days[0])
        other = np.flatnonzero(days != self.day)
        count = int(other[0]) if len(other) else len(starts)
        sizes = np.diff(np.append(starts, len(body)))[:count].cumsum()
        count = min(count, int(np.searchsorted(sizes, self._room)) + 1)
        if count:
            self._room -= int(sizes[count - 1])
        return count


def store_times(body: bytes, starts: Ints) -> Ints:
    """When each of the records was stored, in milliseconds."""
    return measure(body, starts).field(Field.STORE_TIMESTAMP)
