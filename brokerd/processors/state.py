"""BROKER_STATE (code 12002): everything about this broker that the console shows, as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import GroupConfig, Metadata, TopicConfig
from brokerd.metadata.names import SystemNames
from brokerd.processors.bodies import encode
from brokerd.processors.offsets import ConsumerOffset, QueueRanges
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What replication says of this broker. Offsets are physical; `epochs` are (epoch, start offset), oldest first."""

    broker_id: int
    role: str
    master_epoch: int
    sync_state_set: Sequence[int]
    min_offset: int
    end_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatched_offset: int
    epochs: Sequence[tuple[int, int]]
    last_error: str | None = None
    learner: bool = False
    quorum: Mapping[str, Any] | None = None  # of a master: how many copies an acknowledgement means, and who is missing
    weaknesses: Sequence[str] = ()  # what its settings give up of the promise, as sentences
    channel: Mapping[str, Any] = field(
        default_factory=dict
    )  # who replicates with it, in which layout, and who was refused
    loop: Mapping[str, int] = field(default_factory=dict)  # how late the event loop's tick was, in milliseconds


@dataclass(frozen=True, slots=True)
class StateSources:
    """Where the document's parts come from. `counters` are running totals; `connections` = open remoting connections."""

    replica: Callable[[], ReplicaState]
    counters: Callable[[], Mapping[str, int]]
    connections: Callable[[], int]
    consumer_offset: ConsumerOffset
    in_flight: Callable[[str, str, int], int]
    consumed: Callable[[], Mapping[str, Collection[tuple[str, int]]]]  # group -> (topic, queue) of what it consumes
    transactions: Callable[[], Mapping[str, Any]]
    schedule: Callable[[], Mapping[str, Any]]  # delayed messages and those that come back
    index_lag_bytes: Callable[[], int]  # what of the log is not in the index of keys yet


class StateMetadata(Metadata, Protocol):
    """What is needed of the metadata service."""

    def forbidden(self) -> Mapping[str, Sequence[str]]: ...

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...


class StateProcessor:
    """The handler."""

    def __init__(
        self,
        cluster_name: str,
        broker_name: str,
        metadata: StateMetadata,
        names: SystemNames,
        clients: ClientRegistry,
        ranges: QueueRanges,
        sources: StateSources,
    ) -> None:
        self._cluster_name = cluster_name
        self._broker_name = broker_name
        self._metadata = metadata
        self._names = names
        self._clients = clients
        self._ranges = ranges
        self._sources = sources

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=encode(self.document()))

    def document(self) -> dict[str, Any]:
        replica = self._sources.replica()
        consumed = self._sources.consumed()
        forbidden = self._metadata.forbidden()
        return {
            "clusterName": self._cluster_name,
            "brokerName": self._broker_name,
            "brokerId": replica.broker_id,
            "role": replica.role,
            "masterEpoch": replica.master_epoch,
            "syncStateSet": list(replica.sync_state_set),
            "minOffset": replica.min_offset,
            "endOffset": replica.end_offset,
            "flushedOffset": replica.flushed_offset,
            "confirmOffset": replica.confirm_offset,
            "dispatchedOffset": replica.dispatched_offset,
            "epochs": [{"epoch": epoch, "startOffset": start} for epoch, start in replica.epochs],
            "counters": dict(self._sources.counters()),
            "topics": [self._topic(config) for _, config in sorted(self._metadata.topics().items())],
            "groups": [
                self._group(config, consumed.get(name, ()), forbidden.get(name, ()))
                for name, config in sorted(self._metadata.groups().items())
            ],
            "transactions": dict(self._sources.transactions()),
            "schedule": dict(self._sources.schedule()),
            "indexLagBytes": self._sources.index_lag_bytes(),
            "connections": self._sources.connections(),
            "lastError": replica.last_error,
            "learner": replica.learner,
            "quorum": dict(replica.quorum) if replica.quorum is not None else None,
            "weaknesses": list(replica.weaknesses),
            "channel": dict(replica.channel),
            "loop": dict(replica.loop),
        }

    def _topic(self, config: TopicConfig) -> dict[str, Any]:
        return {
            "name": config.name,
            "type": config.message_type,
            "perm": config.perm,
            "readQueues": config.read_queue_nums,
            "writeQueues": config.write_queue_nums,
            "system": self._names.is_system_topic(config.name),
            "queues": [self._queue(config.name, queue_id) for queue_id in range(config.read_queue_nums)],
        }

    def _queue(self, topic: str, queue_id: int) -> dict[str, Any]:
        high = self._ranges.max_offset(topic, queue_id)
        return {
            "queueId": queue_id,
            "minOffset": self._ranges.min_offset(topic, queue_id),
            "maxOffset": high,
            "lastStoreMs": self._ranges.store_timestamp(topic, queue_id, high - 1) if high else -1,
        }

    def _group(
        self, config: GroupConfig, consumed: Collection[tuple[str, int]], forbidden: Sequence[str]
    ) -> dict[str, Any]:
        name = config.name
        topics: dict[str, list[dict[str, Any]]] = {}
        for topic, queue_id in sorted(consumed):
            topics.setdefault(topic, []).append(
                {
                    "queueId": queue_id,
                    "consumerOffset": self._sources.consumer_offset(name, topic, queue_id),
                    "inFlight": self._sources.in_flight(name, topic, queue_id),
                    "pendingReset": self._metadata.pending_reset(name, topic, queue_id),
                }
            )
        return {
            "name": name,
            "fifo": config.fifo,
            "retryMaxTimes": config.retry_max_times,
            "system": self._names.is_system_group(name),
            "topics": [{"topic": topic, "queues": queues} for topic, queues in topics.items()],
            "forbidden": list(forbidden),
            "members": [
                {
                    "clientId": each.client_id,
                    "address": each.address,
                    "language": each.language,
                    "version": each.version,
                }
                for each in self._clients.members(name)
            ],
        }
