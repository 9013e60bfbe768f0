"""RecallMessage: a message that waits for its delivery time is taken back.

Some clients ask the access point, whatever broker group holds the message; its handle names the group, which is asked then.
"""

from __future__ import annotations

from typing import Any

from brokerd.metadata.configs import Metadata
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import each, refuse_unary
from brokerd.proxy.methods.placing import RECALL, Placing, Unplaced
from brokerd.proxy.names import topic_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import OK, Code, Refusal, encode_length, refusal_of
from brokerd.timers.clients import TimedMessages
from brokerd.timers.handles import broker_of_handle
from remoting.errors import RequestError


def recall_message(timed: TimedMessages, metadata: Metadata, broker_name: str, placing: Placing) -> Handler:
    """`broker_name` is that of the broker group; `placing` hands over what belongs to another one."""

    def handle(call: Call, request: Any) -> None:
        topic, shown = topic_name(request.topic), request.recall_handle
        where = broker_of_handle(shown)
        if where is None:
            raise Refusal(
                Code.BAD_REQUEST,
                "this is no recall handle: pass the one of the send's receipt"
                if shown
                else "the recall handle is missing",
            )
        if where != broker_name:
            placing.elsewhere(Unplaced(call, topic, frozenset(), where, broker_name, handler, RECALL, refuse_unary))
            return
        if metadata.topic(topic) is None:
            raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        timed.recall(topic, shown, lambda result: _answer(call, result))

    handler = each(service.RecallMessageRequest, handle)
    return handler


def _answer(call: Call, result: str | RequestError) -> None:
    """RecallMessageResponse{status 1, message_id 2}."""
    if isinstance(result, RequestError):
        call.answer(refusal_of(result).status)
    else:
        identity = result.encode()
        call.answer(OK + b"\x12" + encode_length(len(identity)) + identity)
