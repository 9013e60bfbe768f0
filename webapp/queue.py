"""Handing work to Celery by the names of its tasks; the web process never imports them, so it never loads Spark."""

from __future__ import annotations

from functools import cache
from typing import Any

from celery import Celery
from django.conf import settings
from django.utils.module_loading import import_string
from kombu.exceptions import OperationalError

from webapp.errors import Unavailable

RUN_OPERATION = "tasks.operations.run"
RUN_REPORT = "tasks.reports.run"
CANCEL_REPORT = "tasks.reports.cancel"


class CeleryQueue:
    """A queue of tasks. A Redis that does not answer is reported within about a second instead of being waited for."""

    def __init__(self) -> None:
        self._celery = Celery("webapp", broker=settings.QUEUE_URL, set_as_current=False)
        self._celery.conf.update(
            task_ignore_result=True,
            task_default_queue="default",
            broker_connection_timeout=1,
            broker_transport_options={"socket_connect_timeout": 1, "socket_timeout": 3, "max_retries": 1},
            # as in tasks/app.py: reports wait for one another, and what is short never waits for them
            task_routes={"tasks.reports.run": {"queue": "reports"}},
        )

    def send(self, name: str, *arguments: Any) -> None:
        """Queue a task; raises Unavailable when the queue cannot be reached."""
        try:
            self._celery.send_task(name, args=arguments, retry=False)
        except (OperationalError, OSError) as error:
            raise Unavailable(
                "The task queue (Redis) does not answer; nothing was changed. Try again when it is back.",
                code="queue-unavailable",
            ) from error


@cache
def task_queue() -> CeleryQueue:
    """The queue of this process."""
    return import_string(settings.TASK_QUEUE)()
