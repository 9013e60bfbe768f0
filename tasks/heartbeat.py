"""The heartbeat of a Celery worker: from its event loop, as long as it is connected to its queue."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from tasks.heartbeat_file import beat

EVERY_S = 5.0


class WorkerHeartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the worker's consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._entry: Any = None

    def start(self, parent: Any) -> None:
        """The worker consumes from now on."""
        beat()
        self._entry = parent.timer.call_repeatedly(EVERY_S, beat)

    def stop(self, parent: Any) -> None:
        """The worker lost its connection, or ends."""
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None
