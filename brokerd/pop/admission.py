"""Whether a pop may be served at all: topic, queue, group, limits and filter."""

from __future__ import annotations

from brokerd.filters.message_filter import MessageFilter, compile_filter
from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.metadata.configs import PERM_READ
from brokerd.metadata.groups import ensure_group
from brokerd.metadata.invisible_times import invisible_times
from brokerd.metadata.service import MetadataService
from brokerd.pop.batch import MAX_BATCH
from brokerd.pop.requests import PopRequest
from brokerd.pop.settings import PopSettings
from remoting import codes
from remoting.errors import InvalidParameter, RequestError


def check_invisible_time(request: PopRequest, metadata: MetadataService, settings: PopSettings) -> None:
    """Raise InvalidParameter for a receive that hides messages for shorter or longer than its group allows. Leases, which the
    broker renews, are not bounded so."""
    if request.auto_renew:
        return
    least_ms, longest_ms = _bounds(request.group, metadata, settings)
    _check_bounds(request.group, request.invisible_time_ms, least_ms, longest_ms)


def check_changed_time(group: str, invisible_time_ms: int, metadata: MetadataService, settings: PopSettings) -> None:
    """Raise InvalidParameter for a change of that time that is longer than the group allows; a short one lets the message come
    again soon."""
    _, longest_ms = _bounds(group, metadata, settings)
    _check_bounds(group, invisible_time_ms, 0, longest_ms)


def _bounds(group: str, metadata: MetadataService, settings: PopSettings) -> tuple[int, int]:
    """The shortest and the longest time."""
    config = metadata.group(group)
    times = invisible_times({} if config is None else config.attributes, 0, settings.max_invisible_time_ms)
    return times.least_ms, times.longest_ms


def _check_bounds(group: str, asked_ms: int, least_ms: int, longest_ms: int) -> None:
    if not least_ms <= asked_ms <= longest_ms:
        raise InvalidParameter(
            f"the invisible time of consumer group {group} is from {least_ms} to {longest_ms} ms, not {asked_ms}"
        )


def admit(request: PopRequest, metadata: MetadataService, settings: PopSettings) -> MessageFilter:
    """The request's filter, compiled; its group is there afterwards. Raises RequestError with the rule that it breaks."""
    topic = metadata.topic(request.topic)
    if topic is None:
        raise RequestError(
            codes.TOPIC_NOT_EXIST, f"topic {request.topic} does not exist; create it before receiving from it"
        )
    if not topic.perm & PERM_READ:
        raise RequestError(codes.NO_PERMISSION, f"topic {request.topic} is not readable")
    if not 1 <= request.max_count <= MAX_BATCH:
        raise InvalidParameter(f"a receive asks for 1 to {MAX_BATCH} messages, not {request.max_count}")
    longest_ms = settings.max_invisible_time_ms
    if not 0 <= request.invisible_time_ms <= longest_ms:
        raise InvalidParameter(f"the invisible time is from 0 to {longest_ms} ms, not {request.invisible_time_ms}")
    if not ANY_QUEUE <= request.queue_id < topic.read_queue_nums:
        raise InvalidParameter(
            f"topic {request.topic} has queues 0 to {topic.read_queue_nums - 1} to read, not {request.queue_id}"
        )
    if not ensure_group(metadata, request.group, settings.auto_create_groups).consume_enable:
        raise RequestError(codes.NO_PERMISSION, f"consumer group {request.group} is disabled")
    if metadata.is_forbidden(request.group, request.topic):
        raise RequestError(
            codes.NO_PERMISSION, f"consumer group {request.group} is forbidden to read topic {request.topic}"
        )
    return compile_filter(request.expression_type, request.expression)
