"""What the report leaves behind: rows for the page, and one Parquet file with every hour of every topic."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from remoting.facts.broker_state import BrokerState, TimerState
from tasks.reports.timers.hours import COUNTS, PERCENTILES, Hour, Hours
from tasks.reports.timers.transforms import EARLY, LATE_BOUNDS_MS
from webapp.reports.catalogue import Row

MOST_ROWS: Final = 20_000
ALL_TOPICS: Final = "(all)"
_WRITE_ROWS: Final = 50_000
_NUMBERS: Final = ("delivered", *PERCENTILES, "max_ms", *COUNTS[1:])
_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("hour", pa.timestamp("ms", tz="UTC")),
        *(pa.field(name, pa.int64()) for name in _NUMBERS),
    ]
)


def hour_rows(hours: Hours, wanted: Iterable[Hour]) -> list[Row]:
    """Rows of the section `hours`."""
    return [Row("hours", hour.key, hours.row(hour)) for hour in wanted]


def topic_row(topic: str | None, values: Mapping[str, Any]) -> Row:
    """A row of the section `topics`; None is all topics together, which comes first."""
    shown = ALL_TOPICS if topic is None else topic
    return Row("topics", shown, {"topic": shown, "order": 0 if topic is None else 1, **values})


def lateness_rows(found: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows of the section `lateness`: every bucket from the first to the last in which there is something."""
    counts = {row["bucket"]: row["delivered"] for row in found}
    total = sum(counts.values())
    first, last = min(counts, default=0), max(counts, default=-1)
    rows, so_far = [], 0
    for bucket in range(min(first, 0), last + 1):
        count = counts.get(bucket, 0)
        so_far += count
        values = {"late": _late(bucket), "delivered": count, "share": count / total, "up_to_here": so_far / total}
        rows.append(Row("lateness", f"{bucket + 1:02d}", {**values, "order": bucket}))
    return rows


def group_rows(states: Mapping[str, BrokerState]) -> list[Row]:
    """Rows of the section `groups`."""
    return [Row("groups", name[:300], _group(name, state.timers)) for name, state in states.items()]


def _group(name: str, timers: TimerState | None) -> dict[str, Any]:
    columns = ("waiting", "aside", "overdue_ms", "delivered", "rolled", "recalled", "lost")
    return {"group": name, **{column: getattr(timers, column, None) for column in columns}}


def write_parquet(path: Path, hours: Hours) -> None:
    """Every hour, oldest first. The file is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    ordered = sorted(hours.found)
    try:
        with pq.ParquetWriter(draft, _SCHEMA, compression="zstd") as writer:
            for start in range(0, len(ordered), _WRITE_ROWS):
                writer.write_table(_table(hours, ordered[start : start + _WRITE_ROWS]))
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _table(hours: Hours, part: list[Hour]) -> pa.Table:
    columns = [
        [each.topic for each in part],
        [datetime.fromtimestamp(each.hour_ms / 1000, UTC) for each in part],
        *([hours.found[each][name] for each in part] for name in _NUMBERS),
    ]
    return pa.Table.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _late(bucket: int) -> str:
    if bucket == EARLY:
        return "early"
    if bucket == len(LATE_BOUNDS_MS):
        return f"over {_words(LATE_BOUNDS_MS[-1])}"
    return f"up to {_words(LATE_BOUNDS_MS[bucket])}"


def _words(late_ms: int) -> str:
    for unit_ms, unit in ((3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if late_ms % unit_ms == 0:
            return f"{late_ms // unit_ms} {unit}"
    return f"{late_ms} ms"
