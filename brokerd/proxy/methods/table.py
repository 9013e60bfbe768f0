"""The method table: every path that this endpoint answers, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from brokerd.proxy.calls import Call, Handler, Kind
from brokerd.proxy.methods import send_message
from brokerd.proxy.methods.base import Refuse, Services, each, refuse_streamed, refuse_unary
from brokerd.proxy.methods.clients import heartbeat, notify_client_termination, telemetry
from brokerd.proxy.methods.finishing import (
    ack_message,
    change_invisible_duration,
    forward_to_dead_letter,
    refuse_change,
)
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.offsets import get_offset, update_offset
from brokerd.proxy.methods.receive_message import ReceiveMessage
from brokerd.proxy.methods.routes import query_assignment, query_route
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Sessions
from brokerd.proxy.status import Code, Refusal

KINDS: Final = {
    "ReceiveMessage": Kind.SERVER_STREAM,
    "PullMessage": Kind.SERVER_STREAM,
    "Telemetry": Kind.BIDIRECTIONAL,
}

# Methods that this version does not have: always refused, with a status that clients understand
_DECLINED: Final = {
    "RecallMessage": (Code.NOT_IMPLEMENTED, "this version does not have delayed messages to recall"),
    "QueryOffset": (Code.NOT_IMPLEMENTED, "this version does not have QueryOffset"),
    "PullMessage": (Code.NOT_IMPLEMENTED, "PullMessage is not implemented; use ReceiveMessage"),
    "SyncLiteSubscription": (Code.UNSUPPORTED, "this version does not have lite topics"),
}


@dataclass(frozen=True, slots=True)
class Methods:
    """The handlers by method name, and what has to be told when clients go or the broker stops."""

    handlers: dict[str, Handler]
    refusals: dict[str, tuple[Any, Refuse]]  # request class and how the method refuses
    sessions: Sessions
    receive: ReceiveMessage


def build_methods(
    services: Services,
    *,
    monotonic_ms: Callable[[], int],
    wall_ms: Callable[[], int],
    auto_create_groups: bool = True,
) -> Methods:
    sessions = Sessions()
    metadata, clients, popper = services.metadata, services.clients, services.popper
    groups = Groups(metadata, auto_create_groups)
    receive = ReceiveMessage(popper, metadata, groups, monotonic_ms, wall_ms)
    handlers: dict[str, Handler] = {
        "QueryRoute": query_route(services.routes),
        "QueryAssignment": query_assignment(services.routes, groups),
        "Heartbeat": heartbeat(clients, sessions, groups),
        "NotifyClientTermination": notify_client_termination(clients),
        "Telemetry": telemetry(clients, sessions, groups),
        "SendMessage": send_message.send_message(services.sender, metadata, wall_ms),
        "ReceiveMessage": receive,
        "AckMessage": ack_message(popper),
        "ChangeInvisibleDuration": change_invisible_duration(popper),
        "ForwardMessageToDeadLetterQueue": forward_to_dead_letter(popper),
        "UpdateOffset": update_offset(metadata),
        "GetOffset": get_offset(metadata),
        "EndTransaction": each(service.EndTransactionRequest, _end_transaction),
    }
    handlers |= {name: _declined(name, code, text) for name, (code, text) in _DECLINED.items()}
    refuses: dict[str, Refuse] = {
        "SendMessage": send_message.refuse,
        "ReceiveMessage": receive.refuse,
        "ChangeInvisibleDuration": refuse_change,
        "Telemetry": refuse_streamed,
    }
    refusals = {name: (_request_class(name), refuses.get(name, refuse_unary)) for name in handlers}
    return Methods(handlers, refusals, sessions, receive)


def _request_class(name: str) -> Any:
    return service.TelemetryCommand if name == "Telemetry" else getattr(service, f"{name}Request")


def _declined(name: str, code: Code, text: str) -> Handler:
    def handle(call: Call, request: Any) -> None:
        raise Refusal(code, text)

    return each(_request_class(name), handle)


def _end_transaction(call: Call, request: Any) -> None:
    """No transaction was ever begun here, so every id is a made-up one."""
    text = "this version takes transactions over remoting only, so there is none with this id"
    raise Refusal(Code.INVALID_TRANSACTION_ID, text if request.transaction_id else "the transaction id is missing")
