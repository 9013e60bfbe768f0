"""`/ws/report-runs/<id>`: a run's progress and rows; first everything that is stored, then what comes.

Each message holds the state, the progress and the rows written after the message before, up to `seq`. A client that missed one
asks `{"type": "resync", "after": n}` with the last `seq` that it has.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID

from webapp.feeds import Moment
from webapp.push import Message, WorkConsumer
from webapp.reports.models import ReportRun
from webapp.reports.results import rows_after

MAX_ROWS = 1000


class RunConsumer(WorkConsumer):
    """One viewer of one run."""

    permission = "reports.read"
    kind = ReportRun
    _sent_seq = -1

    async def on_client_message(self, message: dict[str, Any]) -> None:
        after = message.get("after")
        if message.get("type") == "resync" and isinstance(after, int) and not isinstance(after, bool) and after >= -1:
            self._sent_seq = min(after, self._sent_seq)
            self.wake()

    async def message(self, moment: Moment) -> Message | None:
        after = self._sent_seq
        step = await moment.built(after, partial(_step, self.key, after))
        if step is not None and self._sent_seq == after:  # else the client asked for older ones in the meantime
            self._sent_seq = step.seq
        return step


def _step(key: UUID, after: int) -> Message | None:
    """What was written after `after`, for all viewers who have what was written before."""
    run = ReportRun.objects.get(pk=key)
    if run.last_seq <= after:
        return None
    found, upto = rows_after(run, after, MAX_ROWS)
    complete = upto == run.last_seq
    message: dict[str, Any] = {
        "version": 1,
        "type": "report",
        "complete": complete,
        "state": run.state,
        "finished": run.finished,
        "reason": run.reason,
        "cancel_requested": run.cancel_requested,
        "progress": run.progress,
        "rows": [
            {"section": row.section, "key": row.key, "final": row.final, "data": row.data} for row in found.iterator()
        ],
    }
    return Message(upto, json.dumps(message), complete)
