"""Methods that this version does not have: each is refused with a status that clients understand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import each, parse
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code, Refusal, status_field


def declined(request_class: Any, code: Code, text: str) -> Handler:
    """A unary method that always refuses."""

    def handle(call: Call, request: Any) -> None:
        raise Refusal(code, text)

    return each(request_class, handle)


def end_transaction() -> Handler:
    """No transaction was ever begun here, so every id is a made-up one."""

    def handle(call: Call, request: Any) -> None:
        text = "this version takes transactions over remoting only, so there is none with this id"
        raise Refusal(Code.INVALID_TRANSACTION_ID, text if request.transaction_id else "the transaction id is missing")

    return each(service.EndTransactionRequest, handle)


def pull_message() -> Handler:
    """PullMessage is a stream: its only frame is the refusal."""

    def refuse(call: Call, request: Any, refusal: Refusal) -> None:
        call.send([status_field(refusal.code, refusal.text)])
        call.finish()

    def handler(calls: Sequence[Call]) -> None:
        for call in calls:
            if parse(call, service.PullMessageRequest, refuse) is not None:
                refuse(call, None, Refusal(Code.NOT_IMPLEMENTED, "PullMessage is not implemented; use ReceiveMessage"))

    return handler
