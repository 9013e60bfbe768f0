"""What becomes of a message that was received: AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

All acks of one read event for the same group and topic become one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome
from brokerd.pop.service import PopService
from brokerd.proxy.ack_results import encode_results, result_status
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import attempt, each, parse
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.invisible_time import check_change
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import milliseconds, service
from brokerd.proxy.status import Code, Refusal, encode_length, status_field

MAX_ENTRIES: Final = 1024

_STATUSES: Final = {
    AckStatus.OK: (Code.OK, "OK"),
    AckStatus.INVALID_HANDLE: (
        Code.INVALID_RECEIPT_HANDLE,
        "INVALID_RECEIPT_HANDLE: the handle is malformed, expired, or replaced by a newer one; the message may be "
        "delivered again",
    ),
    AckStatus.FAILED: (Code.INTERNAL_SERVER_ERROR, "the ack could not be recorded; try again"),
}
_STATUS_FIELDS: Final = {ack_status: status_field(code, text) for ack_status, (code, text) in _STATUSES.items()}
_RESULTS: Final = {ack_status: result_status(code, text) for ack_status, (code, text) in _STATUSES.items()}
_MULTIPLE: Final = status_field(Code.MULTIPLE_RESULTS, "see the entries")


def ack_message(popper: PopService) -> Handler:
    def handler(calls: Sequence[Call]) -> None:
        batches: dict[tuple[str, str], list[tuple[Call, Any]]] = {}
        for call in calls:
            request = parse(call, service.AckMessageRequest, refuse_ack)
            if request is not None:
                attempt(call, request, refuse_ack, _sort_in, batches, call, request)
        for (group, topic), batch in batches.items():
            acknowledge(group, topic, batch)

    def acknowledge(group: str, topic: str, batch: Sequence[tuple[Call, Any]]) -> None:
        handles = [entry.receipt_handle for _, request in batch for entry in request.entries]
        popper.ack(group, topic, handles, lambda statuses: _answer(batch, statuses))

    return handler


def _sort_in(batches: dict[tuple[str, str], list[tuple[Call, Any]]], call: Call, request: Any) -> None:
    """Check a request and put it to those of the same group and topic."""
    key = group_name(request.group), topic_name(request.topic)
    if not 0 < len(request.entries) <= MAX_ENTRIES:
        raise Refusal(Code.BAD_REQUEST, f"an ack has from 1 to {MAX_ENTRIES} entries, not {len(request.entries)}")
    batches.setdefault(key, []).append((call, request))


def _answer(batch: Sequence[tuple[Call, Any]], statuses: Sequence[AckStatus]) -> None:
    start = 0
    for call, request in batch:
        end = start + len(request.entries)
        call.answer(_encode_response(request, statuses[start:end]))
        start = end


def _encode_response(request: Any, statuses: Sequence[AckStatus]) -> bytes:
    """One result per entry, and their common status, or that there are several."""
    different = set(statuses)
    overall = _STATUS_FIELDS[different.pop()] if len(different) == 1 else _MULTIPLE
    return overall + encode_results(request.entries, [_RESULTS[status] for status in statuses])


def refuse_ack(call: Call, request: Any, refusal: Refusal) -> None:
    """Refuse a whole request: overall, and for each handle."""
    entries = () if request is None else request.entries[:MAX_ENTRIES]
    result = result_status(refusal.code, refusal.text)
    call.answer(refusal.status + encode_results(entries, [result] * len(entries)))


def change_invisible_duration(popper: PopService, groups: Groups) -> Handler:
    """Clients take the handle of the answer before they look at its status, so a failure gives them their old one."""

    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic = topic_name(request.topic)
        invisible_time_ms = milliseconds(request.invisible_duration)
        check_change(group, invisible_time_ms, groups, popper.settings)

        def changed(outcome: InvisibleTimeOutcome) -> None:
            call.answer(_STATUS_FIELDS[outcome.status] + _handle_field(outcome.receipt_handle))

        popper.change_invisible_time(group, topic, request.receipt_handle, invisible_time_ms, changed)

    return each(service.ChangeInvisibleDurationRequest, handle, refuse_change)


def refuse_change(call: Call, request: Any, refusal: Refusal) -> None:
    handle = "" if request is None else request.receipt_handle
    call.answer(refusal.status + _handle_field(handle))


def _handle_field(handle: str) -> bytes:
    """Field 2 of the response."""
    encoded = handle.encode()
    return b"\x12" + encode_length(len(encoded)) + encoded


def forward_to_dead_letter(popper: PopService) -> Handler:
    """An ordered consumer gives a message up."""

    def handle(call: Call, request: Any) -> None:
        def forwarded(status: AckStatus) -> None:
            call.answer(_STATUS_FIELDS[status])

        popper.forward_to_dead_letter(
            group_name(request.group), topic_name(request.topic), request.receipt_handle, forwarded
        )

    return each(service.ForwardMessageToDeadLetterQueueRequest, handle)
