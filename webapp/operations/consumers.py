"""`/ws/operations/<id>`: one operation as it moves on, rendered for its page."""

from __future__ import annotations

from typing import Any

from django.template.loader import render_to_string

from webapp.operations.models import Operation
from webapp.push import WorkConsumer


class OperationConsumer(WorkConsumer):
    """One viewer of one operation."""

    permission = "operations.read"
    kind = Operation
    _sent = ""
    _seq = 0

    def build(self) -> dict[str, Any] | None:
        operation = Operation.objects.get(pk=self.key)
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
