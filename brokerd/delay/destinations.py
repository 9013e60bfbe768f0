"""Where a message that waited is delivered, as things are when it is due."""

from __future__ import annotations

from collections.abc import Mapping

from brokerd.delay.rules import Target, target_of
from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.service import MetadataService
from remoting.errors import raise_refusal
from remoting.names import group_of_retry_topic


def destination_of(properties: Mapping[str, str], physical_offset: int, metadata: MetadataService) -> Target | None:
    """Where a message goes that waited at that offset of the log. None when what it was sent to is gone: a deleted topic, or a
    retry topic whose group is deleted.

    Raises RequestError when a retry topic that is needed cannot be made now.
    """
    target = target_of(properties)
    if target is None or metadata.deleted_at(target.topic) > physical_offset:
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


def _retry_topic(name: str, group_name: str, metadata: MetadataService) -> TopicConfig | None:
    group = metadata.group(group_name)
    if group is None:
        return None
    raise_refusal(metadata.ensure_topic(name, max(1, group.retry_queue_nums)))
    return metadata.topic(name)
