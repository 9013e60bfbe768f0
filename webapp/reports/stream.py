"""How a report's progress and rows reach the tables and then the viewers; called by the worker.

Everything is stored before it is announced. The announcement on the channels group `report.<run id>` is only
`{"type": "report.tick", "seq": n}`: a consumer reads what is new from the tables, so a lost announcement loses nothing and
a burst of them costs one read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from webapp.announce import announce_after_commit
from webapp.reports.models import ReportRow, ReportRun

State = ReportRun.State


class RunFinished(Exception):
    """The run is already over (cancelled, say): the caller should stop working on it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row to store; an earlier one with the same section and key is replaced."""

    section: str
    key: str
    data: dict[str, Any]
    final: bool = False


def starting(run_id: UUID | str, spark_session_id: str = "", spark_tag: str = "") -> ReportRun:
    """The worker took the run; with the names by which its Spark jobs can be interrupted."""
    return _move(
        run_id, State.STARTING, spark_session_id=spark_session_id, spark_tag=spark_tag, started_at=timezone.now()
    )


def running(run_id: UUID | str) -> ReportRun:
    """The first Spark job was submitted."""
    return _move(run_id, State.RUNNING)


def publish(run_id: UUID | str, rows: Iterable[Row] = (), progress: dict[str, Any] | None = None) -> ReportRun:
    """Store rows and progress of a run that is going on; raises RunFinished when it is not."""
    with transaction.atomic():
        run = _lock(run_id)
        if run.finished:
            raise RunFinished(f"run {run_id} is {run.state}")
        run.last_seq += 1
        _store(run, rows)
        if progress is not None:
            run.progress = progress
        run.save(update_fields=["last_seq", "progress"])
        _announce_after_commit(run)
    return run


def succeeded(run_id: UUID | str, rows: Iterable[Row] = (), parquet_path: str = "") -> ReportRun:
    """The run ended well. `rows` are its last ones; rows that are still partial and were not written again are removed."""
    with transaction.atomic():
        run = _lock(run_id)
        if run.finished:
            raise RunFinished(f"run {run_id} is {run.state}")
        run.last_seq += 1
        _store(run, [Row(row.section, row.key, row.data, final=True) for row in rows])
        run.rows.filter(final=False).delete()
        run.rows_count = run.rows.count()
        run.parquet_path = parquet_path
        run.state = State.SUCCEEDED
        run.finished_at = timezone.now()
        run.save()
        _announce_after_commit(run)
    return run


def failed(run_id: UUID | str, reason: str) -> ReportRun:
    """The run ended badly; `reason` is a sentence for the person who reads the page. What was streamed stays."""
    return _move(run_id, State.FAILED, reason=reason[:4000], finished_at=timezone.now())


def cancelled(run_id: UUID | str, reason: str = "") -> ReportRun:
    """The run was stopped on request. What was streamed stays."""
    return _move(run_id, State.CANCELLED, reason=reason[:4000], finished_at=timezone.now())


def request_cancel(run_id: UUID | str) -> ReportRun:
    """Ask the worker to stop; a run that nobody has taken yet is over at once."""
    with transaction.atomic():
        run = _lock(run_id)
        if run.finished:
            raise RunFinished(f"run {run_id} is {run.state}")
        run.cancel_requested = True
        run.last_seq += 1
        if run.state == State.QUEUED:
            run.state = State.CANCELLED
            run.reason = "cancelled before it started"
            run.finished_at = timezone.now()
        run.save()
        _announce_after_commit(run)
    return run


def _move(run_id: UUID | str, state: ReportRun.State, **fields: Any) -> ReportRun:
    with transaction.atomic():
        run = _lock(run_id)
        if state not in ReportRun.TRANSITIONS[State(run.state)]:
            raise RunFinished(f"run {run_id} is {run.state} and cannot become {state}")
        run.state = state
        for name, value in fields.items():
            setattr(run, name, value)
        run.last_seq += 1
        if state in ReportRun.FINISHED:
            run.rows_count = run.rows.count()
        run.save()
        _announce_after_commit(run)
    return run


def _lock(run_id: UUID | str) -> ReportRun:
    return ReportRun.objects.select_for_update().get(pk=run_id)


def _store(run: ReportRun, rows: Iterable[Row]) -> None:
    """Keep rows. PostgreSQL takes no NUL in text, and keys of messages may hold anything."""
    by_name = {(row.section, _text(row.key)): row for row in rows}  # one statement may not touch a name twice
    ReportRow.objects.bulk_create(
        [
            ReportRow(run=run, section=section, key=key, seq=run.last_seq, final=row.final, data=_data(row.data))
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


def _data(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace("\x00", "\ufffd") if isinstance(value, str) else value for name, value in data.items()}


def group_name(run_id: UUID | str) -> str:
    """The channels group that hears of this run."""
    return f"report.{run_id}"


def _announce_after_commit(run: ReportRun) -> None:
    announce_after_commit(group_name(run.pk), {"type": "report.tick", "seq": run.last_seq})
