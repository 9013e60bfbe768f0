"""`/ws/operations/<id>`: one operation as it moves on, rendered for its page."""

from __future__ import annotations

from typing import Any

from channels.db import database_sync_to_async
from django.template.loader import render_to_string

from webapp.operations.models import Operation
from webapp.push import PushConsumer


class OperationConsumer(PushConsumer):
    """One viewer of one operation."""

    permission = "operations.read"

    def announcement_groups(self) -> list[str]:
        return [Operation.group_of(self._id)]

    async def open(self) -> bool:
        self._id = self.scope["url_route"]["kwargs"]["operation_id"]
        self._sent = ""
        self._seq = 0
        return await Operation.objects.filter(pk=self._id).aexists()

    async def work_changed(self, event: dict[str, Any]) -> None:
        self.wake()

    async def next_message(self) -> dict[str, Any] | None:
        return await database_sync_to_async(self._build)()

    def _build(self) -> dict[str, Any] | None:
        operation = Operation.objects.get(pk=self._id)
        html = render_to_string("operations/_operation.html", {"operation": operation, "actor": self.actor})
        if html == self._sent:
            return None
        self._sent = html
        self._seq += 1
        return {
            "version": 1,
            "type": "operation",
            "seq": self._seq,
            "state": operation.state,
            "finished": operation.finished,
            "html": html,
        }
