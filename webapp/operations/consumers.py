"""`/ws/operations/<id>`: one operation as it moves on, rendered for its page."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from uuid import UUID

from django.template.loader import render_to_string

from webapp.feeds import Moment
from webapp.live import Viewpoint
from webapp.operations.models import Operation
from webapp.push import Message, WorkConsumer


class OperationConsumer(WorkConsumer):
    """One viewer of one operation."""

    permission = "operations.read"
    kind = Operation
    _sent = ""
    _seq = 0

    async def message(self, moment: Moment) -> Message | None:
        viewpoint = Viewpoint.of(self.actor)
        body = await moment.built(viewpoint, partial(_body, self.key, viewpoint))
        if body == self._sent:
            return None
        self._sent = body
        self._seq += 1
        return Message(self._seq, body)


def _body(key: UUID, viewpoint: Viewpoint) -> str:
    operation = Operation.objects.get(pk=key)
    with viewpoint.in_time_zone():
        html = render_to_string("operations/_operation.html", {"operation": operation, "actor": viewpoint.actor})
    message: dict[str, Any] = {
        "version": 1,
        "type": "operation",
        "state": operation.state,
        "finished": operation.finished,
        "html": html,
    }
    return json.dumps(message)
