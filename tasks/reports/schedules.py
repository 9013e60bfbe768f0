"""The task that makes the runs which schedules ask for.

Beat calls for it every few seconds and knows nothing of schedules: what is due is decided by the rows of the database
(`webapp.reports.schedules`). So a call that is missed, comes twice or dies half-way changes only when the next one finds it.
"""

from __future__ import annotations

from django.utils import timezone

from tasks.app import MAKE_DUE_RUNS, REPORTS_QUEUE, app
from tasks.reports import runs
from webapp.reports import schedules


@app.task(name=MAKE_DUE_RUNS)  # type: ignore[untyped-decorator]
def make_due_runs() -> None:
    """Make what is due by now, and queue it. What is made and not queued, the janitor queues."""
    for made in schedules.make_due(timezone.now()):
        runs.run.apply_async([str(made.pk)], queue=REPORTS_QUEUE)
