"""A run's rows as tables and as files.

CSV cells that a spreadsheet would run as a formula get an apostrophe in front. Parquet columns have the types of the catalogue.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from webapp.reports.catalogue import Column, Section
from webapp.reports.models import ReportRow, ReportRun

MAX_SHOWN_ROWS = 500
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
MAX_CHART_POINTS = 10_000
_BATCH_ROWS = 5000


def rows(run: ReportRun, section: Section) -> list[dict[str, Any]]:
    """All rows of a section in the order in which they are shown."""
    data = [row for row in run.rows.filter(section=section.name).values_list("data", flat=True)]
    for name in reversed(section.sort):
        falling = name.startswith("-")
        column = name.lstrip("-")
        data.sort(key=lambda row: _sort_key(row.get(column)), reverse=falling)
    return data


def rows_after(run: ReportRun, seq: int, most: int, section: str = "") -> tuple[QuerySet[ReportRow], int]:
    """Rows of a run, or of a section, that were written after `seq`: about `most` of them, and up to which seq these are all.

    Rows of one seq stay together: "everything after n" could not tell them apart.
    """
    found = run.rows.filter(seq__gt=seq, seq__lte=run.last_seq).order_by("seq", "section", "key")
    if section:
        found = found.filter(section=section)
    border = list(found.values_list("seq", flat=True)[most : most + 1])
    upto = border[0] if border else run.last_seq
    return found.filter(seq__lte=upto), upto


def _sort_key(value: Any) -> tuple[bool, bool, Any]:
    is_text = isinstance(value, str)
    return (value is not None, is_text, value if value is not None else 0)


def csv_lines(section: Section, data: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The section as CSV (RFC 4180), header first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([column.name for column in section.columns])
    for row in data:
        writer.writerow([csv_cell(row.get(column.name)) for column in section.columns])
        if buffer.tell() > 64 * 1024:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def csv_cell(value: Any) -> Any:
    """A value as a spreadsheet may see it: text that looks like a formula is made plain text; unknown is empty."""
    if value is None:
        return ""
    if isinstance(value, str) and value.startswith(FORMULA_STARTS):
        return "'" + value
    return value


def parquet_bytes(section: Section, data: list[dict[str, Any]]) -> bytes:
    """The section as one Parquet file."""
    import pyarrow as pa  # large, and only downloads need it
    import pyarrow.parquet as pq

    types = {
        "text": pa.string(),
        "integer": pa.int64(),
        "bytes": pa.int64(),
        "number": pa.float64(),
        "share": pa.float64(),
        "time": pa.timestamp("ms", tz="UTC"),
    }
    schema = pa.schema([pa.field(column.name, types[column.type]) for column in section.columns])
    sink = io.BytesIO()
    columns = [[_typed(column, row.get(column.name)) for row in data] for column in section.columns]
    pq.write_table(pa.table(columns, schema=schema), sink, row_group_size=_BATCH_ROWS, compression="zstd")
    return sink.getvalue()


def csv_of_parquet(section: Section, path: Path) -> bytes:
    """A Parquet file of the section as CSV, read in parts."""
    import pyarrow.parquet as pq

    def parts() -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    yield {name: _text_of(value) for name, value in row.items()}

    return "".join(csv_lines(section, parts())).encode()


def _text_of(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return value


def _typed(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.type == "time":
        return datetime.fromisoformat(value)
    if column.type in {"integer", "bytes"}:
        return int(value)
    return float(value) if column.type in {"number", "share"} else str(value)


def chart_data(section: Section, data: Iterable[dict[str, Any]], most_series: int = 8) -> dict[str, Any] | None:
    """The section's chart as columns: times in seconds, then one list per series; the smaller series are summed."""
    chart = section.chart
    if chart is None:
        return None
    sums: dict[str, dict[float, float | None]] = {}
    for row in data:
        if row.get(chart.x) is None:
            continue
        at = datetime.fromisoformat(row[chart.x]).timestamp()
        _add(sums.setdefault(str(row.get(chart.series)), {}), at, row.get(chart.value), chart.largest)
    if not sums:
        return None
    by_size = sorted(sums, key=lambda name: (-sum(value or 0 for value in sums[name].values()), name))
    named, rest = by_size[:most_series], by_size[most_series:]
    if rest:
        others: dict[float, float | None] = {}
        for name in rest:
            for at, value in sums[name].items():
                _add(others, at, value, chart.largest)
        sums["(others)"] = others
        named = [*named, "(others)"]
    times = _times({at for name in named for at in sums[name]}, chart.step_s)
    absent = 0 if chart.step_s and not chart.largest else None
    return {
        "title": section.title,
        "series": named,
        "data": [times, *[[sums[name].get(at, absent) for at in times] for name in named]],
    }


def _add(series: dict[float, float | None], at: float, value: float | None, largest: bool) -> None:
    """Add a value, or take it if it is the largest; what is not known stays so until something known comes."""
    known = series.get(at)
    if value is None or known is None:
        series[at] = known if value is None else value
    else:
        series[at] = max(known, value) if largest else known + value


def _times(found: set[float], step_s: int) -> list[float]:
    """The times in order; with a step also those in between, unless they are too many to draw."""
    first, last = min(found), max(found)
    if not step_s or (last - first) / step_s > MAX_CHART_POINTS:
        return sorted(found)
    steps = int((last - first) // step_s)
    return sorted(found | {first + number * step_s for number in range(steps + 1)})
