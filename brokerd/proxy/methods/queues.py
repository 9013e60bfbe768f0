"""The queue that a request names: it must be one of this broker group, whichever of the group's names the client knows it by."""

from __future__ import annotations

from typing import Any

from brokerd.metadata.configs import PERM_READ, TopicConfig
from brokerd.proxy.methods.base import Services
from brokerd.proxy.names import broker_group, topic_name
from brokerd.proxy.status import Code, Refusal


def named_queue(services: Services, queue: Any) -> tuple[str, int]:
    """Topic and queue id, for who looks at a queue. Raises Refusal when there is no such queue here."""
    topic, config = _topic_here(services, queue)
    return topic, _queue_id(topic, queue.id, max(config.read_queue_nums, config.write_queue_nums))


def consumed_queue(services: Services, queue: Any) -> tuple[str, int]:
    """The same, for who consumes the queue: only one that can be read."""
    topic, config = _topic_here(services, queue)
    if not config.perm & PERM_READ:
        raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")
    return topic, _queue_id(topic, queue.id, config.read_queue_nums)


def _topic_here(services: Services, queue: Any) -> tuple[str, TopicConfig]:
    topic = topic_name(queue.topic)
    named = broker_group(queue.broker.name)
    if named and named != services.broker_name:
        raise Refusal(
            Code.BAD_REQUEST,
            f"the queue is one of broker group {named[:128]}, this is {services.broker_name}: ask the endpoints that the "
            "topic's route gives for it",
        )
    config = services.metadata.topic(topic)
    if config is None:
        raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
    return topic, config


def _queue_id(topic: str, queue_id: int, count: int) -> int:
    if not 0 <= queue_id < count:
        raise Refusal(Code.BAD_REQUEST, f"topic {topic} has queues 0 to {count - 1} here, not {queue_id}")
    return queue_id
