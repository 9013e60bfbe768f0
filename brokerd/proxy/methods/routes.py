"""QueryRoute and QueryAssignment: which queues a topic has, on which brokers, how to reach them, and from which to receive."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from brokerd.cluster.routes import BrokerRoute, Routes
from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.metadata.configs import PERM_READ, PERM_WRITE
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import LANGUAGE, attempt, each, header, refuse_unary
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.names import group_name, name_of_one_address, topic_name
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import OK, Code, Refusal, refusal_of
from remoting.errors import RequestError
from remoting.transport.client import split_address

NONE, READ, WRITE, READ_WRITE = (definition.Permission.Value(name) for name in ("NONE", "READ", "WRITE", "READ_WRITE"))
_TYPES: Final = {
    name: [definition.MessageType.Value(name)]
    for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "LITE", "PRIORITY")
}
_MIXED: Final = [definition.MessageType.Value(name) for name in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")]
_UNSPECIFIED: Final = [0]
_IPV4, _IPV6, _DOMAIN_NAME = (definition.AddressScheme.Value(name) for name in ("IPv4", "IPv6", "DOMAIN_NAME"))
_MAX_ADDRESSES: Final = 16
# Clients that try the addresses of one `Endpoints` in turn, as their header names them. Node.js ("HTTP") makes one name of all
# addresses, which its library cannot resolve; C# ("DOTNET") takes the first alone.
_TRY_SEVERAL: Final = frozenset({"JAVA", "GO", "GOLANG", "PYTHON", "CPP", "RUST"})
# Those that, over TLS, look in a certificate for what their channel is called, which is all addresses as one name where there are
# several; C++ does so with certificates that it does not verify.
_LOOK_FOR_NAME: Final = frozenset({"PYTHON", "CPP"})
# Clients that do not start before they reached every address of their route, and look at it again twice a minute.
_REACH_ALL: Final = frozenset({"DOTNET"})


def query_route(routes: Routes) -> Handler:
    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)

        def answer(found: Sequence[BrokerRoute]) -> None:
            response = service.QueryRouteResponse()
            several = _tries_several(call)
            living = header(call, LANGUAGE) in _REACH_ALL
            for route in found:
                for broker in [route] if several else _one_address_each(route, living=living):
                    response.message_queues.extend(message_queues(broker, request.topic))
            if not response.message_queues:
                raise Refusal(Code.TOPIC_NOT_FOUND, f"no broker that has topic {topic} can be reached over gRPC")
            call.answer(OK + response.SerializeToString())

        _when_routed(routes, topic, call, answer)

    return each(service.QueryRouteRequest, handle)


def query_assignment(routes: Routes, groups: Groups) -> Handler:
    """Every client gets the same, the broker shares messages by popping."""

    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)
        group = group_name(request.group)

        def answer(found: Sequence[BrokerRoute]) -> None:
            config = groups.get(group)
            several = _tries_several(call)
            masters = found if several else [next(iter(_one_address_each(route)), route) for route in found]
            call.answer(_assignments(masters, request.topic, topic, fifo=config is not None and config.fifo))

        _when_routed(routes, topic, call, answer)

    return each(service.QueryAssignmentRequest, handle)


def _when_routed(routes: Routes, topic: str, call: Call, answer: Callable[[Sequence[BrokerRoute]], None]) -> None:
    def routed(found: Sequence[BrokerRoute] | RequestError) -> None:
        if isinstance(found, RequestError):
            refuse_unary(call, None, refusal_of(found))
        else:
            attempt(call, None, refuse_unary, answer, found)

    routes.route(topic, routed)


def _tries_several(call: Call) -> bool:
    """Whether the client that calls tries the addresses of one `Endpoints` in turn."""
    language = header(call, LANGUAGE)
    looks_for_name = language in _LOOK_FOR_NAME and call.metadata.get(":scheme") == "https"
    return language in _TRY_SEVERAL and not looks_for_name


def _one_address_each(route: BrokerRoute, *, living: bool = False) -> list[BrokerRoute]:
    """The group as so many brokers as it has addresses, for clients that take one address of a broker.

    All of them send to another broker when one fails, and some never look at a route again. The master has all queues; a
    replica, which forwards to the master, stands there with one, as the broker chooses the queue itself. A name belongs to an
    address for good, as some clients look for nothing else when they compare. `living` leaves out what is down.
    """
    brokers: list[BrokerRoute] = []
    addresses = [each for each in route.grpc_addresses if not (living and each in route.down)]
    for address in addresses[:_MAX_ADDRESSES]:
        most = 1 if brokers else max(route.read_queue_nums, route.write_queue_nums)
        brokers.append(
            replace(
                route,
                broker_name=name_of_one_address(route.broker_name, address),
                grpc_addresses=[address],
                read_queue_nums=min(route.read_queue_nums, most),
                write_queue_nums=min(route.write_queue_nums, most),
            )
        )
    return brokers


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


def _assignments(found: Sequence[BrokerRoute], resource: Any, topic: str, *, fifo: bool) -> bytes:
    """An ordered group gets every queue, so that a client runs one loop for each; any other one entry per broker."""
    if not any(route.perm & PERM_READ and route.read_queue_nums for route in found):
        raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")
    response = service.QueryAssignmentResponse()
    for route in found:
        if not route.perm & PERM_READ or not route.grpc_addresses:
            continue
        for queue_id in range(route.read_queue_nums) if fifo else [ANY_QUEUE] if route.read_queue_nums else []:
            response.assignments.add().message_queue.CopyFrom(message_queue(route, resource, queue_id, READ))
    encoded: bytes = response.SerializeToString()
    return OK + encoded


def endpoints(addresses: Sequence[str]) -> Any:
    """The endpoints of host:port addresses, in their order.

    A client tries several addresses in turn, so it survives the loss of the first one by itself. Several are only allowed as
    literal addresses of one family; a host name stands alone (a client fails on a second one).
    """
    answer = definition.Endpoints()
    parsed = [split_address(address) for address in addresses[:_MAX_ADDRESSES]]
    versions = {_version(host) for host, _ in parsed}
    if versions == {4} or versions == {6}:
        answer.scheme = _IPV4 if versions == {4} else _IPV6
    else:
        answer.scheme = _DOMAIN_NAME
        del parsed[1:]
    for host, port in parsed:
        answer.addresses.add(host=host, port=port)
    return answer


def _version(host: str) -> int:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return 0
