"""Saying "I am alive" to the supervisor: touching the file that LOGBOOM_HEARTBEAT_FILE names.

Touched from the loop that does the work, never from a thread of its own: a process whose loop hangs must be seen to hang.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from celery import bootsteps

log = logging.getLogger(__name__)

VARIABLE = "LOGBOOM_HEARTBEAT_FILE"
EVERY_S = 5.0


def beat() -> None:
    """Touch the file now; nothing happens when nobody asked for it."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        Path(path).touch()
    except OSError as error:
        log.warning("cannot touch the heartbeat file %s: %s", path, error)


class WorkerHeartbeat(bootsteps.StartStopStep):  # type: ignore[misc]
    """Beats from the event loop of a Celery worker as long as it is connected to its queue."""

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
