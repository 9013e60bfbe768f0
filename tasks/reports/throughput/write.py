"""What the report leaves behind: rows for the page, and one Parquet file with every minute."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.reports.throughput.minutes import Minute, Minutes
from webapp.reports.catalogue import Row

MOST_ROWS: Final = 20_000
_WRITE_ROWS: Final = 50_000
_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("group", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("minute", pa.timestamp("ms", tz="UTC")),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)


def minute_rows(minutes: Minutes, wanted: Iterable[Minute]) -> list[Row]:
    """Rows of the section `throughput`."""
    return [Row("throughput", minute.key, minutes.row(minute)) for minute in wanted]


def size_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of the section `sizes`."""
    return [Row("sizes", row["topic"][:300], dict(row)) for row in rows]


def key_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of the section `keys`; a key may be longer than a row's name, so its place names it."""
    return [Row("keys", f"{place:06d}", dict(row)) for place, row in enumerate(rows)]


def write_parquet(path: Path, minutes: Minutes) -> None:
    """Every minute, oldest first. The file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    ordered = sorted(minutes.counts)
    try:
        with pq.ParquetWriter(draft, _SCHEMA, compression="zstd") as writer:
            for start in range(0, len(ordered), _WRITE_ROWS):
                writer.write_table(_table(minutes, ordered[start : start + _WRITE_ROWS]))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _table(minutes: Minutes, part: list[Minute]) -> pa.Table:
    rows = ((each.topic, each.group, each.queue_id, each.minute, *minutes.counts[each]) for each in part)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)
