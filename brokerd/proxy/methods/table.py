"""The method table: every path that this endpoint answers, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from brokerd.proxy.calls import Handler, Kind
from brokerd.proxy.methods import change_invisible, send_message
from brokerd.proxy.methods.ack_message import ack_message
from brokerd.proxy.methods.base import Refuse, Services, refuse_unary
from brokerd.proxy.methods.dead_letter import forward_to_dead_letter
from brokerd.proxy.methods.declined import declined, end_transaction, pull_message
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.heartbeat import heartbeat, notify_client_termination
from brokerd.proxy.methods.offsets import get_offset, update_offset
from brokerd.proxy.methods.query_assignment import query_assignment
from brokerd.proxy.methods.query_route import query_route
from brokerd.proxy.methods.receive_message import ReceiveMessage
from brokerd.proxy.methods.telemetry import telemetry
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Sessions
from brokerd.proxy.status import Code

KINDS: Final = {
    "ReceiveMessage": Kind.SERVER_STREAM,
    "PullMessage": Kind.SERVER_STREAM,
    "Telemetry": Kind.BIDIRECTIONAL,
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
    not_yet = "this version does not have {}"
    handlers: dict[str, Handler] = {
        "QueryRoute": query_route(services.routes),
        "QueryAssignment": query_assignment(services.routes, groups),
        "Heartbeat": heartbeat(clients, sessions, groups),
        "NotifyClientTermination": notify_client_termination(clients),
        "Telemetry": telemetry(clients, sessions, groups),
        "SendMessage": send_message.send_message(services.sender, metadata, wall_ms),
        "ReceiveMessage": receive,
        "AckMessage": ack_message(popper),
        "ChangeInvisibleDuration": change_invisible.change_invisible_duration(popper),
        "ForwardMessageToDeadLetterQueue": forward_to_dead_letter(popper),
        "UpdateOffset": update_offset(metadata),
        "GetOffset": get_offset(metadata),
        "EndTransaction": end_transaction(),
        "RecallMessage": declined(
            service.RecallMessageRequest, Code.NOT_IMPLEMENTED, not_yet.format("delayed messages to recall")
        ),
        "QueryOffset": declined(service.QueryOffsetRequest, Code.NOT_IMPLEMENTED, not_yet.format("QueryOffset")),
        "PullMessage": pull_message(),
        "SyncLiteSubscription": declined(
            service.SyncLiteSubscriptionRequest, Code.UNSUPPORTED, not_yet.format("lite topics")
        ),
    }
    refusals: dict[str, tuple[Any, Refuse]] = {
        name: (getattr(service, f"{name}Request"), refuse_unary) for name in handlers if name != "Telemetry"
    }
    for name, refuse in (
        ("SendMessage", send_message.refuse),
        ("ReceiveMessage", receive.refuse),
        ("ChangeInvisibleDuration", change_invisible.refuse),
    ):
        refusals[name] = refusals[name][0], refuse
    return Methods(handlers, refusals, sessions, receive)
