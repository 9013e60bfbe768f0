"""Consumer groups and how far they are: codes 200, 201, 207, 208, 225, 352."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from brokerd.metadata.service import DataVersion
from brokerd.processors import bodies, fields
from brokerd.processors.bodies import encode, encode_object_map, message_queue
from brokerd.processors.group_bodies import decode_group, group_json
from brokerd.processors.offsets import ConsumerOffset, QueueRanges
from brokerd.processors.pages import page
from brokerd.processors.topics import MAX_LIST, check_different, respond_when_done
from brokerd.services import GroupConfig, Metadata
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class GroupMetadata(Metadata, Protocol):
    """What is needed of the metadata service."""

    def put_groups(self, configs: Sequence[GroupConfig], done: Callable[[RequestError | None], None]) -> None: ...

    def delete_group(
        self, name: str, done: Callable[[RequestError | None], None], clean_offsets: bool = True
    ) -> None: ...


class GroupProcessor:
    """The handlers. `consumed(group)` gives (topic, queue) of all that a group has an offset in."""

    def __init__(
        self,
        metadata: GroupMetadata,
        broker_name: str,
        data_version: Callable[[], DataVersion],
        consumer_offset: ConsumerOffset,
        consumed: Callable[[str], Sequence[tuple[str, int]]],
        ranges: QueueRanges,
    ) -> None:
        self._metadata = metadata
        self._broker_name = broker_name
        self._data_version = data_version
        self._consumer_offset = consumer_offset
        self._consumed = consumed
        self._ranges = ranges

    def put(self, connection: RemotingConnection, request: Command) -> None:
        """Code 200: create or change."""
        config = self._decode(bodies.decode_object(request.body, "a consumer group"))
        unchanged = self._metadata.group(config.name) == config
        self._metadata.put_group(config, respond_when_done(connection, request, unchanged))

    def put_list(self, connection: RemotingConnection, request: Command) -> None:
        """Code 225: create or change several, all or none."""
        document = bodies.decode_object(request.body, "a list of consumer groups")
        configs = [self._decode(each) for each in bodies.objects(document, "groupConfigList", MAX_LIST)]
        check_different(config.name for config in configs)
        unchanged = all(self._metadata.group(config.name) == config for config in configs)
        self._metadata.put_groups(configs, respond_when_done(connection, request, unchanged))

    def _decode(self, document: dict[str, Any]) -> GroupConfig:
        present = self._metadata.group(bodies.text(document, "groupName"))
        return decode_group(document, present.attributes if present is not None else {})

    def one(self, connection: RemotingConnection, request: Command) -> None:
        """Code 352: a group's configuration."""
        name = fields.text(request.ext, "group")
        config = self._metadata.group(name)
        if config is None:
            raise RequestError(codes.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name} does not exist; create it")
        connection.respond(request, body=encode(group_json(config)))

    def delete(self, connection: RemotingConnection, request: Command) -> None:
        """Code 207. An unknown group is deleted already."""
        name = fields.text(request.ext, "groupName")
        clean = fields.flag(request.ext, "cleanOffset")
        unchanged = self._metadata.group(name) is None
        self._metadata.delete_group(name, respond_when_done(connection, request, unchanged), clean)

    def all(self, connection: RemotingConnection, request: Command) -> None:
        """Code 201: everything, or a page of it."""
        version, groups = self._data_version(), self._metadata.groups()
        chosen, is_part = page(groups, version, request.ext, "groupSeq", "maxGroupNum")
        body = {
            "dataVersion": version.as_json(),
            "forbiddenTable": {},
            "subscriptionGroupTable": {name: group_json(each) for name, each in chosen.items()},
        }
        connection.respond(request, ext={"totalGroupNum": str(len(groups))} if is_part else {}, body=encode(body))

    def progress(self, connection: RemotingConnection, request: Command) -> None:
        """Code 208: how far a group is in each queue of a topic, of several, or of all that it consumes."""
        group = fields.text(request.ext, "consumerGroup")
        asked = {name for name in (request.ext.get("topicList") or "").split(";") if name}
        if request.ext.get("topic"):
            asked.add(request.ext["topic"])
        topics = asked or {topic for topic, _ in self._consumed(group)}
        entries = []
        for topic in sorted(topics):
            config = self._metadata.topic(topic)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                key = message_queue(topic, self._broker_name, queue_id)
                entries.append((key, self._queue_progress(group, topic, queue_id)))
        connection.respond(request, body=b'{"consumeTps":0.0,"offsetTable":' + encode_object_map(entries) + b"}")

    def _queue_progress(self, group: str, topic: str, queue_id: int) -> dict[str, Any]:
        consumer_offset = self._consumer_offset(group, topic, queue_id)
        last_ms = 0
        if consumer_offset:
            last_ms = max(0, self._ranges.store_timestamp(topic, queue_id, consumer_offset - 1))
        offset = consumer_offset if consumer_offset is not None else -1
        return {
            "brokerOffset": self._ranges.max_offset(topic, queue_id),
            "consumerOffset": offset,
            "lastTimestamp": last_ms,
            "pullOffset": offset,
        }
