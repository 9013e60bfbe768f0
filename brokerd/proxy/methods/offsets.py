"""QueryOffset, UpdateOffset and GetOffset: where a queue begins and ends, and where a consumer group is in it."""

from __future__ import annotations

from functools import partial
from typing import Any

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.metadata.groups import ensure_group
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import Services, answer_when_done, each
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.queues import consumed_queue, named_queue
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import definition, milliseconds, service
from brokerd.proxy.status import OK, Code, Refusal, refusal_of
from brokerd.store.store_reads import StoreReads
from remoting.errors import LogboomError, as_request_error

_BEGINNING, _END, _TIMESTAMP = (definition.QueryOffsetPolicy.Value(name) for name in ("BEGINNING", "END", "TIMESTAMP"))


def query_offset(services: Services, waits: FetchWaits) -> Handler:
    """Of messages that can be read: the first one, behind the last one, or the first that was stored at a time or later."""

    def handle(call: Call, request: Any) -> None:
        topic, queue_id = named_queue(services, request.message_queue)

        def ask() -> None:
            offset = _offset(services.reads, topic, queue_id, request)
            call.answer(OK + service.QueryOffsetResponse(offset=offset).SerializeToString())

        def refuse(error: LogboomError) -> None:
            call.answer(refusal_of(as_request_error(error)).status)

        waiting = waits.attempt(call, ask, refuse)
        if waiting is not None:
            call.on_cancel = partial(waits.cancel, waiting)

    return each(service.QueryOffsetRequest, handle)


def _offset(reads: StoreReads, topic: str, queue_id: int, request: Any) -> int:
    policy = request.query_offset_policy
    if policy == _BEGINNING:
        return reads.min_offset(topic, queue_id)
    if policy == _END:
        return reads.max_offset(topic, queue_id)
    if policy != _TIMESTAMP:
        raise Refusal(Code.BAD_REQUEST, f"query_offset_policy is BEGINNING, END or TIMESTAMP, not {policy}")
    if not request.HasField("timestamp"):
        raise Refusal(Code.BAD_REQUEST, "query_offset_policy TIMESTAMP needs a timestamp")
    return reads.offset_by_time(topic, queue_id, milliseconds(request.timestamp))


def update_offset(services: Services, groups: Groups) -> Handler:
    """The group is made if it is not there: without one, nobody could say later whose offset it is. An offset may go back."""

    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic, queue_id = consumed_queue(services, request.message_queue)
        if request.offset < 0:
            raise Refusal(Code.ILLEGAL_OFFSET, "an offset is not negative")
        ensure_group(services.metadata, group, groups.auto_create)
        services.metadata.commit_offset(group, topic, queue_id, request.offset, answer_when_done(call))

    return each(service.UpdateOffsetRequest, handle)


def get_offset(services: Services) -> Handler:
    """Whichever way the group consumes: what it committed, or behind the last message that it popped and finished."""

    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group)
        topic, queue_id = named_queue(services, request.message_queue)
        offset = services.progress.consumer_offset(group, topic, queue_id)
        if offset is None:
            raise Refusal(Code.OFFSET_NOT_FOUND, f"group {group} has no offset for queue {queue_id} of {topic}")
        call.answer(OK + service.GetOffsetResponse(offset=offset).SerializeToString())

    return each(service.GetOffsetRequest, handle)
