"""How a report's progress and rows reach the tables and then the viewers; called by the worker.

Everything is stored before it is announced, and the announcement says only that there is something new: a consumer reads it from
the tables, so a lost announcement loses nothing and a burst of them costs one read. What is over raises `lifecycle.WorkOver`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from webapp import lifecycle
from webapp.lifecycle import State
from webapp.reports.catalogue import Row
from webapp.reports.line import tell_places_after_commit
from webapp.reports.models import ReportRow, ReportRun

log = logging.getLogger(__name__)


def starting(run_id: UUID | str, spark_session_id: str = "", spark_tag: str = "") -> ReportRun:
    """The worker took the run; with the names by which its Spark jobs can be interrupted."""
    names = {"spark_session_id": spark_session_id, "spark_tag": spark_tag}
    run = lifecycle.move(ReportRun, run_id, State.STARTING, progress={"text": "a worker took it"}, **names)
    tell_places_after_commit()
    return run


def running(run_id: UUID | str) -> ReportRun:
    """The first Spark job was submitted."""
    return lifecycle.move(ReportRun, run_id, State.RUNNING)


def publish(run_id: UUID | str, rows: Iterable[Row] = (), progress: dict[str, Any] | None = None) -> ReportRun:
    """Store rows, which may be replaced later, and progress of a run that is going on."""
    with lifecycle.changing(ReportRun, run_id) as run:
        _store(run, rows, final=False)
        if progress is not None:
            run.progress = progress
    return run


def succeeded(run_id: UUID | str, rows: Iterable[Row] = (), parquet_path: str = "") -> ReportRun:
    """The run ended well. `rows` are its last ones; partial rows that were not written again are removed."""
    with lifecycle.changing(ReportRun, run_id) as run:
        _store(run, rows, final=True)
        run.rows.filter(final=False).delete()
        lifecycle.enter(run, State.SUCCEEDED, parquet_path=parquet_path, rows_count=run.rows.count())
    tell_places_after_commit()
    return run


def failed(run_id: UUID | str, reason: str) -> ReportRun:
    """The run ended badly; `reason` is a sentence for the person who reads the page. What was streamed stays."""
    return _end(run_id, State.FAILED, reason)


def cancelled(run_id: UUID | str, reason: str = "") -> ReportRun:
    """The run was stopped on request. What was streamed stays."""
    return _end(run_id, State.CANCELLED, reason)


def end(run_id: UUID | str, reason: str, *, is_failure: bool = False) -> None:
    """End a run that has no result as failed or cancelled; one that is over stays as it is."""
    try:
        (failed if is_failure else cancelled)(run_id, reason)
    except lifecycle.WorkOver as error:
        log.info("report run %s was ended already: %s", run_id, error)


def request_cancel(run_id: UUID | str) -> ReportRun:
    """Ask the worker to stop; a run that nobody has taken yet is over at once."""
    reason = "cancelled before it started"
    run = lifecycle.request_cancel(ReportRun, run_id, reason=reason, progress={"text": reason})
    tell_places_after_commit()
    return run


def _end(run_id: UUID | str, state: State, reason: str) -> ReportRun:
    with lifecycle.changing(ReportRun, run_id) as run:
        lifecycle.enter(run, state, reason=reason[:4000], rows_count=run.rows.count())
    tell_places_after_commit()
    return run


def _store(run: ReportRun, rows: Iterable[Row], *, final: bool) -> None:
    """Keep rows; one with the section and key of an earlier one replaces it.

    PostgreSQL takes no NUL in text, and keys of messages may hold anything.
    """
    by_name = {(row.section, _text(row.key)): row for row in rows}  # one statement may not touch a name twice
    ReportRow.objects.bulk_create(
        [
            ReportRow(run=run, section=section, key=key, seq=run.last_seq, final=final, data=_data(row.data))
            for (section, key), row in by_name.items()
        ],
        update_conflicts=True,
        unique_fields=["run", "section", "key"],
        update_fields=["seq", "final", "data"],
        batch_size=200,
    )


def _text(value: str) -> str:
    assert len(value) <= 300, "a row's key has at most 300 characters"
    return value.replace("\x00", "\ufffd")


def _data(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.replace("\x00", "\ufffd") if isinstance(value, str) else value for name, value in data.items()}
