"""A run's row, as the worker's threads use it: progress and partial rows out, the wish to cancel in.

Each call stores first and announces afterwards (`webapp.reports.stream`); all but `end` raise WorkOver when the run is over. The
job's thread and the watching thread use one `Store`; Django gives each thread a connection of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from django.db import connections

from tasks.reports.context import Stop
from webapp.lifecycle import FINISHED, WorkOver
from webapp.reports import stream
from webapp.reports.catalogue import Row
from webapp.reports.models import ReportRun

ROWS_AT_ONCE: Final = 2_000


class Store:
    """One run."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def set_spark(self, session_id: str) -> None:
        """Remember by which session the run's jobs can be interrupted."""
        ReportRun.objects.filter(pk=self._run_id).update(spark_session_id=session_id)

    def publish_progress(self, progress: dict[str, Any]) -> bool:
        """Store and announce the progress; True when somebody asked for the end."""
        return bool(stream.publish(self._run_id, progress=progress).cancel_requested)

    def publish_rows(self, rows: Iterable[Row]) -> None:
        """Show rows that may be replaced later."""
        partial = list(rows)
        for start in range(0, len(partial), ROWS_AT_ONCE):
            stream.publish(self._run_id, rows=partial[start : start + ROWS_AT_ONCE])

    def succeed(self, rows: Sequence[Row], result_path: Path) -> None:
        """The final rows, in the place of all partial ones."""
        stream.succeeded(self._run_id, rows=rows, parquet_path=str(result_path))

    def end(self, stop: Stop) -> None:
        """End the run as it was asked for; nothing happens when it is over."""
        stream.end(self._run_id, stop.reason, is_failure=stop.failed)

    def wants_cancel(self) -> bool:
        """Whether somebody asked for the end."""
        found = ReportRun.objects.filter(pk=self._run_id).values_list("state", "cancel_requested").first()
        if found is None or found[0] in FINISHED:
            raise WorkOver(f"run {self._run_id} was ended by somebody else")
        return bool(found[1])

    def close(self) -> None:
        """Close this thread's database connections."""
        connections.close_all()
