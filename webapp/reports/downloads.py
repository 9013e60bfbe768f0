"""A section of a run's result as a file to keep, for page and REST alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    data = results.rows(run, section)
    content = (
        "".join(results.csv_lines(section, data)).encode() if form == "csv" else results.parquet_bytes(section, data)
    )
    file_name = f"{run.report}-{name}-{run.created_at:%Y%m%d-%H%M%S}.{form}"
    return HttpResponse(
        content,
        content_type=CONTENT_TYPES[form],
        headers={"Content-Disposition": f'attachment; filename="{file_name}"'},
    )
