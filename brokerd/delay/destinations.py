"""Where a delayed message goes when it is due: the topic may have changed while it waited."""

from __future__ import annotations

from typing import Protocol

from brokerd.delay.rules import Target, target_of
from brokerd.metadata.configs import GroupConfig, TopicConfig
from remoting.errors import RequestError, raise_refusal
from remoting.names import group_of_retry_topic
from remoting.record.codec import Record


class DestinationMetadata(Protocol):
    """What is needed of the metadata service."""

    def topic(self, name: str) -> TopicConfig | None: ...

    def group(self, name: str) -> GroupConfig | None: ...

    def ensure_topic(self, name: str, queues: int = 1) -> RequestError | None: ...

    def deleted_at(self, topic: str) -> int: ...


def destination_of(record: Record, metadata: DestinationMetadata) -> Target | None:
    """None when what the message was sent to is gone: a deleted topic, or a retry topic whose group is deleted.

    Raises RequestError when a retry topic that is needed cannot be made now.
    """
    target = target_of(record)
    if target is None or metadata.deleted_at(target.topic) > record.physical_offset:
        return None
    topic = metadata.topic(target.topic)
    returned_to = group_of_retry_topic(target.topic)
    if topic is None and returned_to is not None:
        topic = _retry_topic(target.topic, returned_to, metadata)
    if topic is None:
        return None
    if target.queue_id < topic.read_queue_nums:
        return target
    return target._replace(queue_id=target.queue_id % max(1, topic.write_queue_nums))  # it has fewer queues now


def _retry_topic(name: str, group_name: str, metadata: DestinationMetadata) -> TopicConfig | None:
    group = metadata.group(group_name)
    if group is None:
        return None
    raise_refusal(metadata.ensure_topic(name, max(1, group.retry_queue_nums)))
    return metadata.topic(name)
