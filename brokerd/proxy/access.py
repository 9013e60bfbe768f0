"""What each gRPC call needs, and the check in front of the methods.

A replica checks what it forwards, under its own copy of users and permissions; the master trusts it, as forwarded calls come
under the cluster's own signature.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import Refuse, decode
from brokerd.proxy.names import full_name
from brokerd.proxy.status import Code, Refusal
from remoting.access.decision import Demand
from remoting.access.demands import group_demand, topic_demand
from remoting.access.model import GET, PUB, SUB, UPDATE
from remoting.errors import RequestError
from remoting.guarding.guard import Guard
from remoting.transport.client import split_address

log = logging.getLogger(__name__)

Demands = Callable[[Any], list[Demand]]  # of a request message


def _topic(*actions: str) -> Demands:
    return lambda request: [topic_demand(full_name(request.topic), *actions)]


def _consumes(*actions: str) -> Demands:
    """A request with a group, and a topic or a queue."""

    def demands(request: Any) -> list[Demand]:
        has_queue = "message_queue" in request.DESCRIPTOR.fields_by_name
        topic = request.message_queue.topic if has_queue else request.topic
        return [group_demand(full_name(request.group), *actions), topic_demand(full_name(topic), *actions)]

    return demands


def _group(request: Any) -> list[Demand]:
    """Producers name no group."""
    return [group_demand(full_name(request.group), SUB)] if request.group.name else []


def _send(request: Any) -> list[Demand]:
    return [topic_demand(name, PUB) for name in sorted({full_name(each.topic) for each in request.messages})]


def _telemetry(command: Any) -> list[Demand]:
    settings = command.settings
    found = [topic_demand(full_name(each), PUB) for each in settings.publishing.topics]
    if settings.HasField("subscription"):
        subscription = settings.subscription
        if subscription.group.name:
            found.append(group_demand(full_name(subscription.group), SUB))
        found += [topic_demand(full_name(each.topic), SUB) for each in subscription.subscriptions]
    return found


DEMANDS: Final[Mapping[str, Demands]] = {
    "QueryRoute": _topic(PUB, SUB, GET),
    "QueryAssignment": _consumes(SUB),
    "Heartbeat": _group,
    "NotifyClientTermination": _group,
    "Telemetry": _telemetry,
    "SendMessage": _send,
    "ReceiveMessage": _consumes(SUB),
    "AckMessage": _consumes(SUB),
    "ChangeInvisibleDuration": _consumes(SUB),
    "ForwardMessageToDeadLetterQueue": _consumes(SUB),
    "PullMessage": _consumes(SUB),
    "UpdateOffset": _consumes(SUB, UPDATE),
    "GetOffset": _consumes(SUB, GET),
    "QueryOffset": lambda request: [topic_demand(full_name(request.message_queue.topic), SUB, GET)],
    "EndTransaction": _topic(PUB),
    "RecallMessage": _topic(PUB),
    "SyncLiteSubscription": _consumes(SUB),
}


def protect(
    guard: Guard, handlers: Mapping[str, Handler], refusals: Mapping[str, tuple[Any, Refuse]]
) -> Mapping[str, Handler]:
    """The methods' handlers behind the checks; the very same while there are none. `refusals`: see `table.Methods`."""
    if not guard.is_on:
        return handlers
    return {name: _guarded(guard, name, handler, *refusals[name]) for name, handler in handlers.items()}


def _guarded(guard: Guard, name: str, handler: Handler, request_class: Any, refuse: Refuse) -> Handler:
    demands = DEMANDS[name]

    def guarded(calls: Sequence[Call]) -> None:
        allowed = []
        for call in calls:
            try:
                user = guard.check_call(call.metadata)
                if guard.settings.authorization:
                    host = split_address(call.peer.address)[0]
                    for demand in demands(decode(call, request_class)):
                        guard.demand(user, demand, host)
            except Refusal as refusal:
                refuse(call, None, refusal)
            except RequestError as error:
                guard.refused += 1
                log.info("refused a call of %s by %s: %s", name, call.peer.address, error)
                refuse(call, None, Refusal(Code.UNAUTHORIZED, error.message))
            else:
                allowed.append(call)
        if allowed:
            handler(allowed)

    return guarded
