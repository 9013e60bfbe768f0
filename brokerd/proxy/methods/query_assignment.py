"""QueryAssignment: what a push consumer should receive from.

Every client gets the same, the broker shares messages by popping.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokerd.cluster.routes import BrokerRoute, Routes
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import attempt, each, refuse_unary
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.query_route import PERM_READ, READ, message_queue, refuse_without_queue
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, refusal_of
from remoting.errors import RequestError

ANY_QUEUE: Final = -1


def query_assignment(routes: Routes, groups: Groups) -> Handler:
    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)
        group = group_name(request.group)

        def routed(found: Sequence[BrokerRoute] | RequestError) -> None:
            if isinstance(found, RequestError):
                refuse_unary(call, request, refusal_of(found))
            else:
                attempt(call, request, refuse_unary, answer, found)

        def answer(found: Sequence[BrokerRoute]) -> None:
            config = groups.get(group)
            call.answer(_assignments(found, request.topic, topic, fifo=config is not None and config.fifo))

        routes.route(topic, routed)

    return each(service.QueryAssignmentRequest, handle)


def _assignments(found: Sequence[BrokerRoute], resource: Any, topic: str, *, fifo: bool) -> bytes:
    """An ordered group gets every queue, so that a client runs one loop for each; any other one entry per broker."""
    refuse_without_queue(found, topic)
    response = service.QueryAssignmentResponse()
    for route in found:
        if not route.perm & PERM_READ or not route.grpc_addresses:
            continue
        for queue_id in range(route.read_queue_nums) if fifo else [ANY_QUEUE] if route.read_queue_nums else []:
            response.assignments.add().message_queue.CopyFrom(message_queue(route, resource, queue_id, READ))
    encoded: bytes = response.SerializeToString()
    return OK + encoded
