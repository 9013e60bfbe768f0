"""QueryRoute: which queues a topic has, on which brokers, and how to reach them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokerd.cluster.routes import BrokerRoute, Routes
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.endpoints import endpoints
from brokerd.proxy.methods.base import each
from brokerd.proxy.names import topic_name
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import OK, Code, Refusal, refusal_of, status_field
from remoting.errors import RequestError

PERM_READ: Final = 4
PERM_WRITE: Final = 2

NONE, READ, WRITE, READ_WRITE = (definition.Permission.Value(name) for name in ("NONE", "READ", "WRITE", "READ_WRITE"))
_TYPES: Final = {
    name: [definition.MessageType.Value(name)]
    for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
}
_MIXED: Final = [definition.MessageType.Value(name) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")]
_UNSPECIFIED: Final = [0]


def query_route(routes: Routes) -> Handler:
    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)

        def routed(found: Sequence[BrokerRoute] | RequestError) -> None:
            if isinstance(found, RequestError):
                refusal = refusal_of(found)
                call.answer(status_field(refusal.code, refusal.text))
                return
            response = service.QueryRouteResponse()
            for route in found:
                response.message_queues.extend(message_queues(route, request.topic))
            if response.message_queues:
                call.answer(OK + response.SerializeToString())
            else:
                text = f"no broker that has topic {topic} can be reached over gRPC"
                call.answer(status_field(Code.TOPIC_NOT_FOUND, text))

        routes.route(topic, routed)

    return each(service.QueryRouteRequest, handle)


def message_queues(route: BrokerRoute, topic: Any) -> list[Any]:
    """The queues of one broker group; none when it has no gRPC address."""
    if not route.grpc_addresses:
        return []
    return [message_queue(route, topic, queue_id, permission) for queue_id, permission in permissions(route)]


def permissions(route: BrokerRoute) -> list[tuple[int, int]]:
    """(queue id, permission) of every queue; a topic that is closed both ways shows one closed queue."""
    readable = route.read_queue_nums if route.perm & PERM_READ else 0
    writable = route.write_queue_nums if route.perm & PERM_WRITE else 0
    both = min(readable, writable)
    queues = [(queue_id, READ_WRITE) for queue_id in range(both)]
    queues += [(queue_id, READ) for queue_id in range(both, readable)]
    queues += [(queue_id, WRITE) for queue_id in range(both, writable)]
    return queues or [(0, NONE)]


def message_queue(route: BrokerRoute, topic: Any, queue_id: int, permission: int) -> Any:
    queue = definition.MessageQueue()
    queue.topic.CopyFrom(topic)
    queue.id = queue_id
    queue.permission = permission
    queue.broker.name = route.broker_name
    queue.broker.id = 0
    queue.broker.endpoints.CopyFrom(endpoints(route.grpc_addresses))
    queue.accept_message_types.extend(
        _MIXED if route.message_type == "MIXED" else _TYPES.get(route.message_type, _UNSPECIFIED)
    )
    return queue


def refuse_without_queue(found: Sequence[BrokerRoute], topic: str) -> None:
    """Consumers need a queue that can be read."""
    if not any(route.perm & PERM_READ and route.read_queue_nums for route in found):
        raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")
