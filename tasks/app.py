"""The Celery app: where its tasks are, which queue each goes to, and the rules that all of them obey.

Two queues, each with a worker of its own: `default` for what is short (changes, elections, housekeeping) and `reports` for
Spark jobs, so that an election never waits behind a report. Rules:

- arguments are ids, as JSON; what a task needs to know is in the row that the id names;
- a message is acknowledged after the work (`acks_late`), so a task may be delivered twice: each one claims its row first and
  finds out whether the work was done or is being done;
- every task has a time limit, and the visibility timeout of the queue is longer than the longest of them;
- results are rows in the database, never Celery results.
"""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
# Django's checks load every view and the REST schema, which no worker needs: a third of its start and of its memory.
# What they look at is the code, so a test runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

from celery import Celery
from celery.schedules import crontab
from celery.signals import worker_before_create_process
from django.conf import settings

from tasks.heartbeat import WorkerHeartbeat
from tasks.transport import ScriptlessAmqp

DEFAULT_QUEUE = "default"
REPORTS_QUEUE = "reports"
MAKE_DUE_RUNS = "tasks.reports.make_due_runs"
MAKE_DUE_EXPORTS = "tasks.due_exports.make"
ANCHOR_AUDIT = "tasks.audit.anchor"

OPERATION_SOFT_LIMIT_S = 60
REPORT_SOFT_LIMIT_S = 2 * 3600
GRACE_S = 30
LOOK_EVERY_S = 5.0
EXPORTS_EVERY_S = 120.0
ANCHOR_EVERY_S = 60.0
VISIBILITY_TIMEOUT_S = REPORT_SOFT_LIMIT_S + 10 * GRACE_S

app = Celery("tasks", broker=settings.QUEUE_URL, amqp=ScriptlessAmqp)
app.conf.update(
    include=[
        "tasks.operations",
        "tasks.reports.runs",
        "tasks.reports.schedules",
        "tasks.schedule",
        "tasks.due_exports",
        "tasks.audit",
    ],
    accept_content=["json"],
    task_ignore_result=True,
    task_default_queue=DEFAULT_QUEUE,
    task_routes={"tasks.reports.run": {"queue": REPORTS_QUEUE}},
    task_acks_late=True,
    # A child that is killed leaves its row to the janitor: running the same thing again at once would kill the next child too.
    task_reject_on_worker_lost=False,
    task_soft_time_limit=OPERATION_SOFT_LIMIT_S,
    task_time_limit=OPERATION_SOFT_LIMIT_S + GRACE_S,
    worker_prefetch_multiplier=1,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_transport_options={"visibility_timeout": VISIBILITY_TIMEOUT_S, "socket_keepalive": True},
    beat_scheduler="tasks.beat_scheduler:Scheduler",
    beat_max_loop_interval=LOOK_EVERY_S,
    timezone="UTC",
)


# All that beat calls for. The first is due at once when beat starts: it makes good what its predecessor did not call for.
app.conf.beat_schedule = {
    "due runs": {
        "task": MAKE_DUE_RUNS,
        "schedule": LOOK_EVERY_S,
        "last_run_at": datetime.fromtimestamp(0, UTC),
        "options": {"queue": DEFAULT_QUEUE, "expires": LOOK_EVERY_S},
    },
    "due exports": {
        "task": MAKE_DUE_EXPORTS,
        "schedule": EXPORTS_EVERY_S,
        "options": {"queue": DEFAULT_QUEUE, "expires": EXPORTS_EVERY_S},
    },
    "audit": {
        "task": ANCHOR_AUDIT,
        "schedule": ANCHOR_EVERY_S,
        "options": {"queue": DEFAULT_QUEUE, "expires": ANCHOR_EVERY_S},
    },
    "janitor": {
        "task": "tasks.schedule.janitor",
        "schedule": 15.0,
        # one that could not be taken in time is worth nothing: the next comes anyway
        "options": {"queue": DEFAULT_QUEUE, "expires": 15},
    },
    "retention": {
        "task": "tasks.schedule.retention",
        "schedule": crontab(minute="17"),  # by the clock: beat does not remember when it was last
        "options": {"queue": DEFAULT_QUEUE, "expires": 3600},
    },
}
app.steps["consumer"].add(WorkerHeartbeat)


@worker_before_create_process.connect  # type: ignore[untyped-decorator]
def share_memory(**_: object) -> None:
    """A child shares its parent's pages for as long as neither writes to them. The collector writes to every object that it looks
    at, and Celery collects before each child; so it has to leave alone what is there by then."""
    gc.collect()
    gc.freeze()
