"""When beat calls for which task: `tasks.app` says so.

Beat keeps nothing. It calls for tasks at their intervals, and those find in the database what there is to do; of the schedules
that people made it knows nothing (`tasks.reports.schedules`).
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from celery import beat
from django.utils import timezone

from tasks import heartbeat_file

log = logging.getLogger(__name__)


class Scheduler(beat.Scheduler):  # type: ignore[misc]
    """Celery's scheduler without a memory, with a heartbeat from the loop that sends what is due."""

    _seen_at = datetime.fromtimestamp(0, UTC)

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Send what is due."""
        heartbeat_file.beat()
        now = timezone.now()
        if now < self._seen_at:
            self._begin_anew()
        self._seen_at = now
        return super().tick(*args, **kwargs)

    def _begin_anew(self) -> None:
        """The clock was set back. Intervals are counted by it, so none would end before it is where it was."""
        log.warning("the clock was set back; all intervals begin anew")
        self.data.clear()
        self.setup_schedule()
        self._heap = None
