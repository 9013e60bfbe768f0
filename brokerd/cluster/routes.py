"""Who has a topic, cluster-wide: the own group from its own tables, the other groups from the name servers.

What the name servers say is kept for a few seconds, and one question at a time is asked per topic, whoever waits for it. When
they do not answer, the own group's part is the answer: a client that talks to this broker can use this broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import orjson

from brokerd.metadata.configs import Metadata, TopicConfig
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import LogboomError, RequestError

log = logging.getLogger(__name__)

_FRESH_MS: Final = 3000
_MAX_CACHED: Final = 10_000
_MAX_BROKERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker group in a topic's route. `grpc_addresses`: master first, then the replicas, as host:port.

    `down`: those of them whose replica is not alive, as far as that is known here.
    """

    broker_name: str
    addresses: Mapping[int, str]  # role id (0 = master) -> remoting address
    grpc_addresses: Sequence[str]
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str
    down: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OwnGroup:
    """The addresses of this broker's group: role id (0 = master) -> remoting address; `grpc_addresses` and `down` as above."""

    broker_name: str
    addresses: Mapping[int, str]
    grpc_addresses: Sequence[str]
    down: Set[str] = frozenset()


Routed = Callable[[Sequence[BrokerRoute] | RequestError], None]
# (topic, answered): ask a name server for the route document of a topic
QueryRoute = Callable[[str, Callable[[Bytes | LogboomError], None]], None]


class Routes:
    """`now_ms` is monotonic."""

    def __init__(
        self, metadata: Metadata, own_group: Callable[[], OwnGroup], query: QueryRoute, now_ms: Callable[[], int]
    ) -> None:
        self._metadata = metadata
        self._own_group = own_group
        self._query = query
        self._now_ms = now_ms
        self._cached: dict[str, tuple[int, Sequence[BrokerRoute]]] = {}
        self._asking: dict[str, list[Routed]] = {}

    def route(self, topic: str, done: Routed) -> None:
        """The routes of a topic, at once or when a name server answered; TOPIC_NOT_EXIST when nobody has it."""
        cached = self._cached.get(topic)
        if cached is not None and self._now_ms() - cached[0] < _FRESH_MS:
            self._answer(topic, cached[1], done)
            return
        waiting = self._asking.get(topic)
        if waiting is not None:
            waiting.append(done)
            return
        self._asking[topic] = [done]
        self._query(topic, lambda answer: self._answered(topic, answer))

    def forget(self, topic: str) -> None:
        """The topic was created or deleted here: what was known of it elsewhere may be outdated too."""
        self._cached.pop(topic, None)

    # ---- inside

    def _answered(self, topic: str, answer: Bytes | LogboomError) -> None:
        others: Sequence[BrokerRoute] = ()
        if isinstance(answer, LogboomError):
            if answer.code != codes.TOPIC_NOT_EXIST:
                log.info("the name servers gave no route for %s: %s", topic, answer)
                stale = self._cached.get(topic)
                others = stale[1] if stale is not None else ()
        else:
            try:
                others = decode_route(answer)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("the name servers gave an unreadable route for %s: %s", topic, error)
        if len(self._cached) >= _MAX_CACHED:
            self._cached.clear()
        self._cached[topic] = self._now_ms(), others
        for done in self._asking.pop(topic, ()):
            self._answer(topic, others, done)

    def _answer(self, topic: str, others: Sequence[BrokerRoute], done: Routed) -> None:
        own = self._own_group()
        config = self._metadata.topic(topic)
        routes = [each for each in others if each.broker_name != own.broker_name]
        if config is not None:
            routes.insert(0, _own_route(own, config))
        if routes:
            done(routes)
        else:
            done(RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist; create it first"))


def _own_route(own: OwnGroup, config: TopicConfig) -> BrokerRoute:
    return BrokerRoute(
        own.broker_name,
        own.addresses,
        own.grpc_addresses,
        config.read_queue_nums,
        config.write_queue_nums,
        config.perm,
        config.message_type,
        own.down,
    )


def decode_route(body: Bytes) -> list[BrokerRoute]:
    """The groups in a name server's route document (code 105). Raises ValueError, KeyError, TypeError or AttributeError."""
    document: dict[str, Any] = orjson.loads(body)
    brokers = {each["brokerName"]: each for each in document["brokerDatas"][:_MAX_BROKERS]}
    routes = []
    for queues in document["queueDatas"][:_MAX_BROKERS]:
        broker = brokers.get(queues["brokerName"])
        if broker is None:
            continue
        grpc = broker.get("grpcAddrs") or {}
        routes.append(
            BrokerRoute(
                queues["brokerName"],
                {int(role_id): address for role_id, address in broker["brokerAddrs"].items()},
                [grpc[role_id] for role_id in sorted(grpc, key=int)],
                queues["readQueueNums"],
                queues["writeQueueNums"],
                queues["perm"],
                queues.get("messageType") or "NORMAL",
            )
        )
    return routes
