"""The housekeeping that beat calls for (`tasks.beat_scheduler`): the janitor and the retention of old rows."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from tasks import operations
from tasks.app import app
from tasks.claims import claims
from tasks.reports import runs
from webapp.history.models import HistoryRow
from webapp.lifecycle import FINISHED, State
from webapp.operations.models import Operation
from webapp.reports import stream
from webapp.reports.line import tell_places
from webapp.reports.models import ReportRun

log = logging.getLogger(__name__)

# A claim is taken before a row leaves `queued`; what stands longer than this without one has no worker.
LOST_AFTER = timedelta(seconds=30)
RESEND_AFTER = timedelta(seconds=20)
RESEND_EVERY_S = 600
REPORTS_KEPT = timedelta(days=90)
OPERATIONS_KEPT = timedelta(days=180)
HISTORY_KEPT = timedelta(days=365)
DELETE_AT_ONCE = 500
# A living worker takes again within a few seconds what a restarted Redis forgot; the janitor's next look comes after this.
MISSING_S = 12.0
LOST = (
    "The worker that ran this report gave no sign of life for {missing_s:.0f} s: it was killed, ran out of memory, or did not "
    "reach Redis. Run it again."
)


@app.task(name="tasks.schedule.janitor")  # type: ignore[untyped-decorator]
def janitor() -> None:
    """End runs whose worker is gone, and queue again what a restarted queue has forgotten."""
    end_lost_runs()
    queue_forgotten()
    tell_places()


def end_lost_runs() -> None:
    """Runs that are at work by their row, but nobody's by their claim, and have been for a while."""
    at_work = ReportRun.objects.filter(
        state__in=[State.STARTING, State.RUNNING], started_at__lt=timezone.now() - LOST_AFTER
    )
    for run in at_work:
        missing_s = claims().missing_for_s(runs.claim_name(run.pk))
        if missing_s < MISSING_S:
            continue
        log.warning("report run %s lost its worker", run.pk)
        why = runs.CANCELLED_WITHOUT_WORKER if run.cancel_requested else LOST.format(missing_s=missing_s)
        stream.end(run.pk, why, is_failure=not run.cancel_requested)


def queue_forgotten() -> None:
    """The embedded Redis forgets its queues when it restarts. Sending twice is harmless: rows are taken once.

    Runs go in the order of their line (`webapp.reports.line`).
    """
    before = timezone.now() - RESEND_AFTER
    for run in ReportRun.objects.filter(state=State.QUEUED, created_at__lt=before).order_by("created_at"):
        _resend(f"report:{run.pk}", lambda run=run: runs.run.apply_async([str(run.pk)]))
    unfinished = [State.QUEUED, State.RUNNING]
    for operation in Operation.objects.filter(state__in=unfinished, created_at__lt=before):
        if not claims().is_held(operations.claim_name(operation.pk)):
            _resend(f"operation:{operation.pk}", lambda operation=operation: operations.run.delay(str(operation.pk)))


def _resend(name: str, send: Any) -> None:
    """Send again, but not more often than now and then: it may be waiting behind others, not forgotten."""
    if claims().take(f"resent:{name}", RESEND_EVERY_S) is not None:
        log.info("queueing %s again", name)
        send()


@app.task(name="tasks.schedule.retention")  # type: ignore[untyped-decorator]
def retention() -> None:
    """Remove what is too old to be looked at. The audit trail is not touched: it is append-only."""
    delete_old_runs()
    Operation.objects.filter(state__in=FINISHED, finished_at__lt=timezone.now() - OPERATIONS_KEPT).delete()
    HistoryRow.objects.filter(ended_at__lt=timezone.now() - HISTORY_KEPT).delete()
    Session.objects.filter(expire_date__lt=timezone.now()).delete()
    delete_stray_files()


def delete_old_runs() -> None:
    """Old runs with their rows; files that belong to nobody go with `delete_stray_files`."""
    old = ReportRun.objects.filter(state__in=FINISHED, finished_at__lt=timezone.now() - REPORTS_KEPT)
    for run in old[:DELETE_AT_ONCE]:
        run.delete()


def delete_stray_files() -> None:
    """Result files whose run is gone."""
    if not settings.REPORTS_DIR.is_dir():
        return
    known = {f"{pk}.parquet" for pk in ReportRun.objects.values_list("pk", flat=True)}
    for path in settings.REPORTS_DIR.glob("*.parquet"):
        if path.name not in known:
            path.unlink(missing_ok=True)
            log.info("removed %s: its run is gone", path.name)
