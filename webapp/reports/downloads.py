"""A section of a run's result as a file to keep, for page and REST alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.http import HttpResponse

from webapp.errors import Conflict
from webapp.reports import catalogue, results
from webapp.reports.models import ReportRun
from webapp.rules import Rules

CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


def download(run: ReportRun, asked: Mapping[str, Any]) -> HttpResponse:
    """The section and the form that were asked for; only of a run that is over, so that a file is never half a result."""
    report = catalogue.report(run.report)
    rules = Rules(asked)
    form = rules.choice("as", tuple(CONTENT_TYPES), default="csv")
    name = rules.choice("section", tuple(section.name for section in report.sections), default=report.sections[0].name)
    rules.finish()
    if not run.finished:
        raise Conflict("The run is still going on; download it when it is over.", code="run-not-finished")
    section = report.section(name)
    whole = _whole_file(run) if section is report.sections[0] else None
    if whole is not None:
        content = results.csv_of_parquet(section, whole) if form == "csv" else whole.read_bytes()
    elif form == "csv":
        content = "".join(results.csv_lines(section, results.rows(run, section))).encode()
    else:
        content = results.parquet_bytes(section, results.rows(run, section))
    file_name = f"{run.report}-{name}-{run.created_at:%Y%m%d-%H%M%S}.{form}"
    return HttpResponse(
        content,
        content_type=CONTENT_TYPES[form],
        headers={"Content-Disposition": f'attachment; filename="{file_name}"'},
    )


def _whole_file(run: ReportRun) -> Path | None:
    """The file with all rows of the first section, if the worker left one and it is still there."""
    if not run.parquet_path:
        return None
    path = Path(run.parquet_path).resolve()
    return path if path.is_relative_to(Path(settings.REPORTS_DIR).resolve()) and path.is_file() else None
