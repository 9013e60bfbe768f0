"""Where the queues of a topic are, as the endpoints ask for it (pure). `Routes` is the implementation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from remoting.errors import RequestError


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker group in a topic's route. `grpc_addresses`: master first, then the replicas, as host:port."""

    broker_name: str
    addresses: Mapping[int, str]  # role id (0 = master) -> remoting address
    grpc_addresses: Sequence[str]
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    message_type: str


class RouteSource(Protocol):
    def route(self, topic: str, done: Callable[[Sequence[BrokerRoute] | RequestError], None]) -> None:
        """Who has the topic, cluster-wide; TOPIC_NOT_EXIST when nobody has. Own group from own tables, the rest cached."""
