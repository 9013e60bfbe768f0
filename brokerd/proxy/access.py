"""What each gRPC call needs, and the check in front of the methods.

A replica checks what it forwards, under its own copy of users and permissions; the master trusts it, as forwarded calls come
under the cluster's own signature.

A refusal has the shape of the method's answers, with a result for each message or handle of the request: clients look there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import Refuse, decode, user_of
from brokerd.proxy.names import full_name
from brokerd.proxy.sessions import MAX_TOPICS_PER_SESSION
from brokerd.proxy.status import Code, Refusal
from brokerd.transactions.records import asked_about
from remoting import codes
from remoting.access.decision import Demand
from remoting.access.demands import group_demand, topic_demand
from remoting.access.model import GET, PUB, SUB, UPDATE
from remoting.errors import RequestError
from remoting.guarding.guard import Guard
from remoting.record.codec import Record
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
    """For as many topics as are remembered: nothing follows from the others."""
    settings = command.settings
    found = [topic_demand(full_name(each), PUB) for each in settings.publishing.topics[:MAX_TOPICS_PER_SESSION]]
    if settings.HasField("subscription"):
        subscription = settings.subscription
        if subscription.group.name:
            found.append(group_demand(full_name(subscription.group), SUB))
        subscribed = subscription.subscriptions[:MAX_TOPICS_PER_SESSION]
        found += [topic_demand(full_name(each.topic), SUB) for each in subscribed]
    return found


# The push consumers of some languages ask these again every second until they succeed, or the code is this one
_ASKED_FOR_EVER: Final = frozenset({"AckMessage", "ChangeInvisibleDuration"})

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


def may_end(guard: Guard) -> Callable[[Call], Callable[[Record], None]]:
    """What raises RequestError for a half message whose topic who calls may not publish."""

    def rights_of(call: Call) -> Callable[[Record], None]:
        def check(half: Record) -> None:
            demand = topic_demand(asked_about(half).topic, PUB)
            if not guard.may(user_of(call), demand, split_address(call.peer.address)[0]):
                raise RequestError(codes.NO_PERMISSION, f"the transaction needs {demand}")

        return check

    return rights_of


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
                refuse(call, _request_of(call, request_class), _refusal(name, error))
            else:
                allowed.append(call)
        if allowed:
            handler(allowed)

    return guarded


def _refusal(name: str, error: RequestError) -> Refusal:
    if name in _ASKED_FOR_EVER:
        return Refusal(Code.INVALID_RECEIPT_HANDLE, f"UNAUTHORIZED: {error.message}")
    return Refusal(Code.UNAUTHORIZED, error.message)


def _request_of(call: Call, request_class: Any) -> Any:
    """What a refused call asked, for the shape of the answer; None when it cannot be read."""
    try:
        return decode(call, request_class)
    except Refusal:
        return None
