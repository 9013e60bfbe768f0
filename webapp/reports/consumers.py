"""`/ws/report-runs/<id>`: a run's progress and rows; first everything that is stored, then what comes.

Each message holds the state, the progress and the rows written after the message before, up to `seq`. A client that missed one
asks `{"type": "resync", "after": n}` with the last `seq` that it has.
"""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async

from webapp.push import PushConsumer
from webapp.reports.models import ReportRun

MAX_ROWS = 1000


class RunConsumer(PushConsumer):
    """One viewer of one run."""

    permission = "reports.read"

    def announcement_groups(self) -> list[str]:
        return [ReportRun.group_of(self._id)]

    async def open(self) -> bool:
        self._id = self.scope["url_route"]["kwargs"]["run_id"]
        self._sent_seq = -1
        return await ReportRun.objects.filter(pk=self._id).aexists()

    async def work_changed(self, event: dict[str, Any]) -> None:
        self.wake()

    async def on_client_message(self, message: dict[str, Any]) -> None:
        after = message.get("after")
        if message.get("type") == "resync" and isinstance(after, int) and not isinstance(after, bool) and after >= -1:
            self._sent_seq = min(after, self._sent_seq)
            self.wake()

    async def next_message(self) -> dict[str, Any] | None:
        message = await database_sync_to_async(self._build)()
        if message is not None and not message["complete"]:
            self.wake()
        return message

    def _build(self) -> dict[str, Any] | None:
        run = ReportRun.objects.get(pk=self._id)
        if run.last_seq <= self._sent_seq:
            return None
        rows = run.rows.filter(seq__gt=self._sent_seq, seq__lte=run.last_seq).order_by("seq", "section", "key")
        # rows of one seq stay together, or "everything after n" would lose some
        border = list(rows.values_list("seq", flat=True)[MAX_ROWS : MAX_ROWS + 1])
        upto = border[0] if border else run.last_seq
        found = rows.filter(seq__lte=upto)
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
