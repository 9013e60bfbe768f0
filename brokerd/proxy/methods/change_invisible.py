"""ChangeInvisibleDuration: when a message comes back. Clients take the handle of the answer before they look at its status, so a
failure gives them their old one."""

from __future__ import annotations

from typing import Any, Final

from brokerd.pop.requests import InvisibleTimeOutcome
from brokerd.pop.service import PopService
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.ack_message import STATUS_FIELDS
from brokerd.proxy.methods.base import each
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code, Refusal, encode_length, status_field

MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000


def change_invisible_duration(popper: PopService) -> Handler:
    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic = topic_name(request.topic)
        duration = request.invisible_duration
        invisible_time_ms = duration.seconds * 1000 + duration.nanos // 1_000_000
        if not 0 <= invisible_time_ms <= MAX_INVISIBLE_MS:
            size = "small" if invisible_time_ms < 0 else "large"
            raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {size}; it may be from 0 to 12 hours")

        def changed(outcome: InvisibleTimeOutcome) -> None:
            call.answer(STATUS_FIELDS[outcome.status] + _handle_field(outcome.receipt_handle))

        popper.change_invisible_time(group, topic, request.receipt_handle, invisible_time_ms, changed)

    return each(service.ChangeInvisibleDurationRequest, handle, refuse)


def refuse(call: Call, request: Any, refusal: Refusal) -> None:
    handle = "" if request is None else request.receipt_handle
    call.answer(status_field(refusal.code, refusal.text) + _handle_field(handle))


def _handle_field(handle: str) -> bytes:
    """Field 2 of the response."""
    encoded = handle.encode()
    return b"\x12" + encode_length(len(encoded)) + encoded
