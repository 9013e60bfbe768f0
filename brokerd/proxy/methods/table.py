"""The method table: every path that this endpoint answers, and what answers it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.loop.scheduler import Scheduler
from brokerd.proxy.calls import Handler, Kind
from brokerd.proxy.commands import Questions
from brokerd.proxy.methods import pull_message, send_message
from brokerd.proxy.methods.base import Refuse, Services, refuse_streamed, refuse_unary
from brokerd.proxy.methods.clients import heartbeat, notify_client_termination
from brokerd.proxy.methods.finishing import (
    ack_message,
    change_invisible_duration,
    forward_to_dead_letter,
    refuse_ack,
    refuse_change,
)
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.lite import not_for_lite, sync_lite_subscription
from brokerd.proxy.methods.offsets import get_offset, query_offset, update_offset
from brokerd.proxy.methods.placing import PLACED, RECALL, Anywhere, Placing
from brokerd.proxy.methods.pull_message import PullMessage
from brokerd.proxy.methods.quick_sends import Quick
from brokerd.proxy.methods.recall_message import recall_message
from brokerd.proxy.methods.receive_message import ReceiveMessage
from brokerd.proxy.methods.routes import query_assignment, query_route
from brokerd.proxy.methods.telemetry import Telemetry
from brokerd.proxy.methods.transactions import end_transaction
from brokerd.proxy.protobuf import service
from brokerd.proxy.received import Answers, answers_of
from brokerd.proxy.sessions import Sessions

KINDS: Final = {
    "ReceiveMessage": Kind.SERVER_STREAM,
    "PullMessage": Kind.SERVER_STREAM,
    "Telemetry": Kind.BIDIRECTIONAL,
}

# What a request may take: messages are bounded by the port's own limit, settings by that of streams
MAX_REQUEST_BYTES: Final = 512 * 1024
_WITHOUT_LIMIT: Final = frozenset({"SendMessage", "Telemetry"})

_ANYWHERE: Final = Anywhere()


@dataclass(frozen=True, slots=True)
class Methods:
    """The handlers by method name, and what has to be told when clients go or the broker stops."""

    handlers: dict[str, Handler]
    refusals: dict[str, tuple[Any, Refuse]]  # request class and how the method refuses
    sessions: Sessions
    receive: ReceiveMessage
    telemetry: Telemetry
    pull: PullMessage
    placed: dict[str, Handler]  # for calls that other broker groups pass on

    @property
    def forwarded_handlers(self) -> dict[str, Handler]:
        """For calls that other brokers pass on; a replica answers telemetry itself."""
        return {**self.handlers, "Telemetry": self.telemetry.noted, **self.placed}


def max_request_bytes(method: str) -> int:
    """For `calls.Method`: every two bytes may become an object, so what needs no more gets no more."""
    return 0 if method in _WITHOUT_LIMIT else MAX_REQUEST_BYTES


def build_methods(
    services: Services,
    *,
    scheduler: Scheduler,
    monotonic_ms: Callable[[], int],
    wall_ms: Callable[[], int],
    auto_create_groups: bool = True,
    answers: Answers = answers_of,
    new_secret: Callable[[], str] = send_message.draw_secret,
    placing: Placing = _ANYWHERE,
    received: Placing = _ANYWHERE,
    quick: Quick | None = None,
) -> Methods:
    """`new_secret` draws what the id of a transaction proves; `quick` carries out ordinary sends. `placing` says which sends and
    recalls of clients are this group's, `received` which of those that other broker groups pass on."""
    sessions = Sessions()
    metadata, clients, popper = services.metadata, services.clients, services.popper
    groups = Groups(metadata, auto_create_groups)
    telemetry = Telemetry(clients, sessions, groups, Questions(scheduler), scheduler, takes_metrics=True)
    receive = ReceiveMessage(popper, metadata, groups, monotonic_ms, wall_ms, answers)
    pull = PullMessage(services, groups, scheduler, monotonic_ms, answers)
    sends = partial(
        send_message.send_message,
        services.sender,
        metadata,
        services.broker_name,
        lambda: services.timed.max_ahead_ms,
        wall_ms,
        new_secret,
        quick,
    )
    recalls = partial(recall_message, services.timed, metadata, services.broker_name)
    handlers: dict[str, Handler] = {
        "QueryRoute": query_route(services.routes),
        "QueryAssignment": not_for_lite(sessions, query_assignment(services.routes, groups), refuse_unary),
        "Heartbeat": heartbeat(clients, sessions, groups),
        "NotifyClientTermination": notify_client_termination(clients, sessions),
        "Telemetry": telemetry.handler,
        "SendMessage": sends(placing),
        "RecallMessage": recalls(placing),
        "ReceiveMessage": not_for_lite(sessions, receive, receive.refuse),
        "AckMessage": ack_message(popper),
        "ChangeInvisibleDuration": change_invisible_duration(popper, groups),
        "ForwardMessageToDeadLetterQueue": forward_to_dead_letter(popper),
        "PullMessage": pull,
        "QueryOffset": query_offset(services, FetchWaits(scheduler)),
        "UpdateOffset": update_offset(services, groups),
        "GetOffset": get_offset(services),
        "SyncLiteSubscription": sync_lite_subscription(),
        "EndTransaction": end_transaction(services.transactions, services.broker_name, services.may_end),
    }
    refuses: dict[str, Refuse] = {
        "SendMessage": send_message.refuse,
        "ReceiveMessage": receive.refuse,
        "AckMessage": refuse_ack,
        "PullMessage": pull_message.refuse,
        "ChangeInvisibleDuration": refuse_change,
        "Telemetry": refuse_streamed,
    }
    refusals = {name: (_request_class(name), refuses.get(name, refuse_unary)) for name in handlers}
    return Methods(
        handlers, refusals, sessions, receive, telemetry, pull, {PLACED: sends(received), RECALL: recalls(received)}
    )


def _request_class(name: str) -> Any:
    return service.TelemetryCommand if name == "Telemetry" else getattr(service, f"{name}Request")
