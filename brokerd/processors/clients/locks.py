"""Locks of queues for consumers in order: codes 41 and 42. The master answers, or who stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from brokerd.consuming.queue_locks import Queue, QueueLocks
from brokerd.metadata.service import MetadataService
from brokerd.processors import bodies
from remoting.errors import NotMaster
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

MAX_QUEUES: Final = 10_000


@dataclass(frozen=True, slots=True)
class LockProcessor:
    """The handlers. `serves`: this broker is the master, or there is none."""

    locks: QueueLocks
    metadata: MetadataService
    broker_name: str
    serves: Callable[[], bool]
    now_ms: Callable[[], int]

    def lock(self, connection: RemotingConnection, request: Command) -> None:
        """Code 41. Queues of other brokers and of topics that are not there are not locked."""
        group, client_id, queues = self._asked(request)
        held = self.locks.lock(group, client_id, queues, self.now_ms())
        found = [bodies.message_queue(topic, self.broker_name, queue_id) for topic, queue_id in held]
        connection.respond(request, body=bodies.encode({"lockOKMQSet": found}))

    def unlock(self, connection: RemotingConnection, request: Command) -> None:
        """Code 42."""
        group, client_id, queues = self._asked(request)
        self.locks.unlock(group, client_id, queues)
        connection.respond(request)

    def _asked(self, request: Command) -> tuple[str, str, list[Queue]]:
        if not self.serves():
            raise NotMaster
        document = bodies.decode_object(request.body, "a set of queues to lock")
        group, client_id = bodies.name(document, "consumerGroup"), bodies.name(document, "clientId")
        queues = [
            queue for each in bodies.objects(document, "mqSet", MAX_QUEUES) if (queue := self._queue(each)) is not None
        ]
        return group, client_id, queues

    def _queue(self, each: dict[str, Any]) -> Queue | None:
        topic, queue_id = bodies.text(each, "topic"), bodies.integer(each, "queueId")
        config = self.metadata.topic(topic)
        if each.get("brokerName") != self.broker_name or config is None or not 0 <= queue_id < config.read_queue_nums:
            return None
        return topic, queue_id
