"""The tasks around report runs: run one, cancel one. Those that schedules ask for are made by `tasks.reports.schedules`.

The row is the truth. A run is taken by a claim that its watching thread keeps, and by its transition to starting; a run whose
claim stays away has lost its worker, and the janitor ends it. Nothing is done twice by a message that comes twice: the second
finds the claim held or the row in another state.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded
from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist, ValidationError

from remoting.errors import LogboomError
from tasks.app import GRACE_S, REPORT_SOFT_LIMIT_S, REPORTS_QUEUE, app
from tasks.claims import Claim, claims
from tasks.reports import JOBS, job
from tasks.reports.context import Context, ReportFailed, Result, RunCancelled, Stop
from tasks.reports.progress import Progress
from tasks.reports.store import Store
from tasks.reports.watch import Watch
from tasks.spark.errors import is_cancelled, reason
from tasks.spark.lease import SparkUnavailable
from tasks.spark.session import SparkHandle, sessions
from tasks.spark.settings import SparkSettings
from tasks.stopping import is_worker_stopping
from webapp.lifecycle import State, WorkOver
from webapp.queue import CANCEL_REPORT, RUN_REPORT
from webapp.reports import line, stream
from webapp.reports.models import ReportRun

log = logging.getLogger(__name__)

CLAIM_TTL_S = 20.0
WAIT_FOR_TURN_S = 5
CANCELLED_WITHOUT_WORKER = "cancelled on request; no worker had it then"


def claim_name(run_id: object) -> str:
    """The claim that says that a worker has this run."""
    return f"report:{run_id}"


@app.task(name=RUN_REPORT, soft_time_limit=REPORT_SOFT_LIMIT_S, time_limit=REPORT_SOFT_LIMIT_S + GRACE_S)  # type: ignore[untyped-decorator]
def run(run_id: str) -> None:
    """Run one report."""
    with claims().held(claim_name(run_id), CLAIM_TTL_S) as claim:
        if claim is None:
            log.info("report run %s is at work already", run_id)
            return
        execute(run_id, claim)


def execute(run_id: str, claim: Claim) -> None:
    """Take the row, run the job, write how it ended."""
    found = _take(run_id)
    if found is None:
        return
    store, progress, stop = Store(run_id), Progress(), Stop()
    progress.wait("waiting for Spark")  # before anything that takes a while, such as loading its client
    try:
        with Watch(
            store,
            progress,
            stop,
            keep_claim=claim.keep,
            is_worker_stopping=is_worker_stopping,
            give_up=lambda: os._exit(os.EX_SOFTWARE),
        ) as watch:
            result = _run_job(found, store, progress, stop, watch)
        stop.check()
        progress.conclude(result.summary)
        store.publish_progress(progress.document())
        store.succeed(result.rows, _result_path(run_id))
    except WorkOver as error:
        log.info("report run %s was ended by somebody else: %s", run_id, error)
    except (RunCancelled, ReportFailed, SparkUnavailable, LogboomError, SoftTimeLimitExceeded) as error:
        _end_early(run_id, stop, error)
    except Exception as error:  # the outermost edge of a task: the row must not stay running
        log.exception("report run %s broke", run_id)
        sessions.close()  # whatever happened to it, the next run gets a client that works; the others keep theirs
        _end_early(run_id, stop, error)


def _end_early(run_id: str, stop: Stop, error: Exception) -> None:
    """Write how a run ended that has no result."""
    asked = stop.event.is_set()
    if isinstance(error, RunCancelled) or (asked and not stop.failed):
        stream.end(run_id, stop.reason or str(error))
    else:
        failure = stop.reason if asked else _failure(error)
        log.warning("report run %s failed: %s", run_id, failure)
        stream.end(run_id, failure, is_failure=True)


def _failure(error: Exception) -> str:
    """Why a run failed, for the person who reads its page."""
    if isinstance(error, SoftTimeLimitExceeded):
        return f"It took longer than {REPORT_SOFT_LIMIT_S // 60} minutes and was ended; choose a shorter time range."
    if isinstance(error, LogboomError):
        return f"The cluster did not give what the report needs: {error}"
    if isinstance(error, ReportFailed | SparkUnavailable):
        return str(error)
    if is_cancelled(error):
        return "Spark ended the job: it was interrupted from outside."
    if type(error).__module__.partition(".")[0] in ("pyspark", "grpc"):
        return reason(error)
    return f"An error in the worker: {type(error).__name__}: {error}"


def _result_path(run_id: str) -> Path:
    return Path(settings.REPORTS_DIR) / f"{run_id}.parquet"


def _take(run_id: str) -> ReportRun | None:
    try:
        found = ReportRun.objects.get(pk=run_id)
    except (ObjectDoesNotExist, ValidationError):
        log.error("there is no report run %s", run_id)
        return None
    if found.state == State.QUEUED and line.must_wait(found):
        run.apply_async([run_id], queue=REPORTS_QUEUE, countdown=WAIT_FOR_TURN_S)
        return None
    try:
        return stream.starting(run_id, spark_tag=_tag(run_id))
    except WorkOver as error:
        # delivered twice; if its first worker died, the janitor says so
        log.info("report run %s is not taken again: %s", run_id, error)
        return None


def _tag(run_id: str) -> str:
    return f"report-{run_id}"


def _run_job(found: ReportRun, store: Store, progress: Progress, stop: Stop, watch: Watch) -> Result:
    if found.report not in JOBS:
        raise ReportFailed(f"The worker knows no report {found.report}; are console and worker of one version?")
    run_id = str(found.pk)
    module = job(found.report)
    spark_settings = SparkSettings.read(os.environ, os.cpu_count() or 1)
    with sessions.use(spark_settings, waiting=progress.wait, is_cancelled=stop.event.is_set) as spark:
        store.set_spark(spark.session_id)
        stop.check()
        stream.running(run_id)
        assert found.as_of is not None
        context = Context(
            run_id=run_id,
            parameters=found.parameters,
            as_of_ms=int(found.as_of.timestamp() * 1000),
            controllers=settings.CONTROLLERS,
            spark=spark.session,
            tag=_tag(run_id),
            progress=progress,
            stop=stop,
            result_path=_result_path(run_id),
            publish=store.publish_rows,
        )
        return _within_spark(module, context, spark, watch)


def _within_spark(module: Any, context: Context, spark: SparkHandle, watch: Watch) -> Result:
    """The job with everything that may interrupt it or hear of it switched on, and off again."""
    session = spark.session

    def heard(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        context.progress.stages_changed(operation_id or "", stages or (), inflight_tasks, done)

    session.registerProgressHandler(heard)
    watch.use_spark(lambda: _interrupt(session, context.tag), spark.problem)
    try:
        result: Result = module.run(context)
        return result
    finally:
        watch.release_spark()
        session.removeProgressHandler(heard)


def _interrupt(session: Any, tag: str) -> None:
    from pyspark.errors import PySparkException

    try:
        session.interruptTag(tag)
    except PySparkException as error:
        log.warning("Spark could not be told to interrupt %s: %s", tag, str(error)[:200])


# ---- cancelling


@app.task(name=CANCEL_REPORT)  # type: ignore[untyped-decorator]
def cancel(run_id: str) -> None:
    """End a run that no worker has; a living worker has seen the request in the row by now, or will within a moment."""
    if claims().is_held(claim_name(run_id)):
        return
    try:
        stream.end(run_id, CANCELLED_WITHOUT_WORKER)
    except (ObjectDoesNotExist, ValidationError):
        log.error("there is no report run %s", run_id)
