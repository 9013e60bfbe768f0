"""Consumer offsets and the ranges of queues: codes 14, 15, 29, 30, 31, 32, 43."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerd.metadata.names import check_committer
from brokerd.metadata.service import DataVersion, MetadataService
from brokerd.metadata.start_offsets import StartOffsets
from brokerd.processors import fields
from brokerd.processors.answers import when_done
from brokerd.processors.bodies import encode
from brokerd.store.queues.queue_reads import Boundary
from brokerd.store.store_reads import StoreReads
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

# (group, topic, queue) -> committed offset, whichever way the group consumes
ConsumerOffset = Callable[[str, str, int], int | None]


@dataclass(frozen=True, slots=True)
class OffsetProcessor:
    """The handlers. `version` is that of all committed offsets."""

    metadata: MetadataService
    consumer_offset: ConsumerOffset
    ranges: StoreReads
    starts: StartOffsets
    version: Callable[[], DataVersion]

    def query(self, connection: RemotingConnection, request: Command) -> None:
        """Code 14. A group without an offset on a young queue is told 0, so that it misses nothing."""
        group = fields.text(request.ext, "consumerGroup")
        topic, queue_id = _queue(request)
        offset = self.consumer_offset(group, topic, queue_id)
        if offset is None:
            if not fields.flag(request.ext, "setZeroIfNotFound", True) or not self.starts.begins_recently(
                topic, queue_id
            ):
                raise RequestError(codes.QUERY_NOT_FOUND, f"{group} has no offset in queue {queue_id} of {topic}")
            offset = 0
        connection.respond(request, ext={"offset": str(offset)})

    def all(self, connection: RemotingConnection, request: Command) -> None:
        """Code 43: every committed offset, as a slave of the original asks its master."""
        table = {
            f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in queues.items()}
            for (group, topic), queues in self.metadata.tables.offsets.items()
        }
        connection.respond(request, body=encode({"dataVersion": self.version().as_json(), "offsetTable": table}))

    def update(self, connection: RemotingConnection, request: Command) -> None:
        """Code 15. An offset may go back."""
        group = fields.text(request.ext, "consumerGroup")
        topic, queue_id = _queue(request)
        offset = fields.integer(request.ext, "commitOffset")
        check_committer(group)
        if self.metadata.group(group) is None:
            raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {group} does not exist")
        config = self.metadata.topic(topic)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {topic} does not exist")
        if queue_id >= config.read_queue_nums:
            raise InvalidParameter(f"topic {topic} has queues 0 to {config.read_queue_nums - 1}, not {queue_id}")
        done = None if request.is_oneway else when_done(connection, request)
        self.metadata.commit_offset(group, topic, queue_id, offset, done)

    def search(self, connection: RemotingConnection, request: Command) -> None:
        """Code 29: by store time; the first message at or after it, or the last at or before it."""
        topic, queue_id = _queue(request)
        timestamp_ms = fields.integer(request.ext, "timestamp", low=fields.MIN_LONG)
        upper = request.ext.get("boundaryType", "").upper() == "UPPER"
        boundary = Boundary.UPPER if upper else Boundary.LOWER
        offset = self.ranges.offset_by_time(topic, queue_id, timestamp_ms, boundary)
        connection.respond(request, ext={"offset": str(offset)})

    def maximum(self, connection: RemotingConnection, request: Command) -> None:
        """Code 30."""
        connection.respond(request, ext={"offset": str(self.ranges.max_offset(*_queue(request)))})

    def minimum(self, connection: RemotingConnection, request: Command) -> None:
        """Code 31."""
        connection.respond(request, ext={"offset": str(self.ranges.min_offset(*_queue(request)))})

    def earliest(self, connection: RemotingConnection, request: Command) -> None:
        """Code 32: the store time of the first message, -1 without one."""
        topic, queue_id = _queue(request)
        low = self.ranges.min_offset(topic, queue_id)
        timestamp_ms = self.ranges.store_timestamp(topic, queue_id, low)
        connection.respond(request, ext={"timestamp": str(timestamp_ms)})


def _queue(request: Command) -> tuple[str, int]:
    return fields.text(request.ext, "topic"), fields.integer(request.ext, "queueId", high=fields.MAX_INT)
