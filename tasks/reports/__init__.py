"""The Spark reports: what runs them, watches over them and cleans up after them. One package per report.

`JOBS` names each report's job; the console knows the same names (`webapp.reports.catalogue`).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

JOBS: Final = {"throughput": "tasks.reports.throughput.job", "timers": "tasks.reports.timers.job"}


def job(report: str) -> Any:
    """The module that runs a report; raises KeyError for a name that is none. Loads Spark's client."""
    return import_module(JOBS[report])
