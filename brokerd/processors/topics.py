"""Topics: codes 17, 21, 202, 215."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brokerd.metadata.service import DataVersion, topic_json
from brokerd.processors import fields
from brokerd.processors.bodies import encode, encode_object_map, message_queue
from brokerd.processors.offsets import QueueRanges
from brokerd.services import Metadata, TopicConfig
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class TopicProcessor:
    """The handlers."""

    def __init__(
        self, metadata: Metadata, broker_name: str, data_version: Callable[[], DataVersion], ranges: QueueRanges
    ) -> None:
        self._metadata = metadata
        self._broker_name = broker_name
        self._data_version = data_version
        self._ranges = ranges

    def put(self, connection: RemotingConnection, request: Command) -> None:
        """Code 17: create or change. An equal configuration is answered with the remark `unchanged`."""
        ext = request.ext
        name = fields.text(ext, "topic")
        current = self._metadata.topic(name)
        config = TopicConfig(
            name,
            fields.integer(ext, "readQueueNums", high=fields.MAX_INT),
            fields.integer(ext, "writeQueueNums", high=fields.MAX_INT),
            fields.integer(ext, "perm", high=fields.MAX_INT),
            fields.integer(ext, "topicSysFlag", 0, high=fields.MAX_INT),
            fields.flag(ext, "order"),
            change_attributes(current.attributes if current is not None else {}, ext.get("attributes", "")),
        )
        self._metadata.put_topic(config, respond_when_done(connection, request, config == current))

    def delete(self, connection: RemotingConnection, request: Command) -> None:
        """Code 215. An unknown topic is deleted already."""
        name = fields.text(request.ext, "topic")
        unchanged = self._metadata.topic(name) is None
        self._metadata.delete_topic(name, respond_when_done(connection, request, unchanged))

    def all(self, connection: RemotingConnection, request: Command) -> None:
        """Code 21: everything in one page."""
        body = {
            "dataVersion": self._data_version().as_json(),
            "topicConfigTable": {name: topic_json(config) for name, config in self._metadata.topics().items()},
        }
        connection.respond(request, body=encode(body))

    def statistics(self, connection: RemotingConnection, request: Command) -> None:
        """Code 202: the range of each queue, and when it got its last message."""
        name = fields.text(request.ext, "topic")
        config = self._metadata.topic(name)
        if config is None:
            raise RequestError(codes.TOPIC_NOT_EXIST, f"topic {name} does not exist")
        entries = [
            (message_queue(name, self._broker_name, queue_id), self._queue_statistics(name, queue_id))
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
        ]
        connection.respond(request, body=b'{"offsetTable":' + encode_object_map(entries) + b',"topicPutTps":0.0}')

    def _queue_statistics(self, name: str, queue_id: int) -> dict[str, Any]:
        high = self._ranges.max_offset(name, queue_id)
        return {
            "lastUpdateTimestamp": max(0, self._ranges.store_timestamp(name, queue_id, high - 1)) if high else 0,
            "maxOffset": high,
            "minOffset": self._ranges.min_offset(name, queue_id),
        }


def change_attributes(current: Mapping[str, str], changes: str) -> dict[str, str]:
    """Attributes after changes written as `+key=value,-key`. Raises InvalidParameter with the form."""
    attributes = dict(current)
    for change in filter(None, map(str.strip, changes.split(","))):
        key, equals, value = change[1:].partition("=")
        if change[0] == "+" and key and equals:
            attributes[key] = value
        elif change[0] == "-" and key and not equals:
            attributes.pop(key, None)
        else:
            raise InvalidParameter(f"write attributes as +key=value or -key, separated by commas, not {change[:64]!r}")
    return attributes


def respond_when_done(
    connection: RemotingConnection, request: Command, unchanged: bool
) -> Callable[[RequestError | None], None]:
    """The `done` of a change that is answered when it is acknowledged."""

    def done(error: RequestError | None) -> None:
        if error is None:
            connection.respond(request, remark="unchanged" if unchanged else None)
        else:
            connection.respond_error(request, error)

    return done
