"""`/ws/report-runs/<id>`: a run's progress and rows; first everything that is stored, then what comes.

Each message holds the state, the progress and the rows written after the message before, up to `seq`. A client that missed one
asks `{"type": "resync", "after": n}` with the last `seq` that it has.
"""

from __future__ import annotations

from typing import Any

from webapp.push import WorkConsumer
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

    def build(self) -> dict[str, Any] | None:
        run = ReportRun.objects.get(pk=self.key)
        if run.last_seq <= self._sent_seq:
            return None
        found, upto = rows_after(run, self._sent_seq, MAX_ROWS)
        self._sent_seq = upto
        return {
            "version": 1,
            "type": "report",
            "seq": upto,
            "complete": upto == run.last_seq,
            "state": run.state,
            "finished": run.finished,
            "reason": run.reason,
            "cancel_requested": run.cancel_requested,
            "progress": run.progress,
            "rows": [
                {"section": row.section, "key": row.key, "final": row.final, "data": row.data}
                for row in found.iterator()
            ],
        }
