"""UpdateOffset and GetOffset: a consumer group's position in a queue."""

from __future__ import annotations

from typing import Any

from brokerd.metadata.configs import Metadata
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import answer_when_done, each
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal


def update_offset(metadata: Metadata) -> Handler:
    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic, queue_id = _queue(metadata, request.message_queue)
        if request.offset < 0:
            raise Refusal(Code.ILLEGAL_OFFSET, "an offset is not negative")
        metadata.commit_offset(group, topic, queue_id, request.offset, answer_when_done(call))

    return each(service.UpdateOffsetRequest, handle)


def get_offset(metadata: Metadata) -> Handler:
    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic, queue_id = _queue(metadata, request.message_queue)
        offset = metadata.consumer_offset(group, topic, queue_id)
        if offset is None:
            raise Refusal(Code.OFFSET_NOT_FOUND, f"group {group} has no offset for queue {queue_id} of {topic}")
        call.answer(OK + service.GetOffsetResponse(offset=offset).SerializeToString())

    return each(service.GetOffsetRequest, handle)


def _queue(metadata: Metadata, queue: Any) -> tuple[str, int]:
    """The topic and queue id that a request names, checked."""
    topic = topic_name(queue.topic)
    config = metadata.topic(topic)
    if config is None:
        raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
    queue_id: int = queue.id
    if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums):
        raise Refusal(Code.BAD_REQUEST, f"topic {topic} has no queue {queue_id}")
    return topic, queue_id
