"""ForwardMessageToDeadLetterQueue: an ordered consumer gives a message up."""

from __future__ import annotations

from typing import Any

from brokerd.pop.requests import AckStatus
from brokerd.pop.service import PopService
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.ack_message import STATUS_FIELDS
from brokerd.proxy.methods.base import each
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import service


def forward_to_dead_letter(popper: PopService) -> Handler:
    def handle(call: Call, request: Any) -> None:
        def forwarded(status: AckStatus) -> None:
            call.answer(STATUS_FIELDS[status])

        popper.forward_to_dead_letter(
            group_name(request.group), topic_name(request.topic), request.receipt_handle, forwarded
        )

    return each(service.ForwardMessageToDeadLetterQueueRequest, handle)
