"""Lite topics, which this version does not have, and the clients that want them: told so by name, at the first thing they ask.

A client is known to be such a one by its settings. Its bound topic may be an ordinary one, of which it must not get what others
wait for: so it is given no queues and no messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.mapping import check_lite_topic
from brokerd.proxy.methods.base import CLIENT_ID, Refuse, each, header
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Sessions
from brokerd.proxy.status import Code, Refusal

MAX_LITE_TOPICS: Final = 1000  # of one request, looked at


def sync_lite_subscription() -> Handler:
    """What a consumer would get, if there were lite topics, refused."""

    def handle(call: Call, request: Any) -> None:
        topic = topic_name(request.topic)
        group_name(request.group)
        for name in request.lite_topic_set[:MAX_LITE_TOPICS]:
            check_lite_topic(name)
        raise Refusal(
            Code.UNSUPPORTED,
            f"this version does not have lite topics: subscribe to {topic}, or to topics of their own, with a push or simple "
            "consumer",
        )

    return each(service.SyncLiteSubscriptionRequest, handle)


def not_for_lite(sessions: Sessions, handler: Handler, refuse: Refuse) -> Handler:
    """The handler for every client but those whose settings say that they are lite consumers."""

    def handle(calls: Sequence[Call]) -> None:
        others = []
        for call in calls:
            session = sessions.get(header(call, CLIENT_ID), call.peer.connection)
            if session is not None and session.is_lite:
                text = "this version does not have lite topics: use a push or simple consumer"
                refuse(call, None, Refusal(Code.UNSUPPORTED, text))
            else:
                others.append(call)
        if others:
            handler(others)

    return handle
