"""Heartbeat and NotifyClientTermination: who is there, and who ends."""

from __future__ import annotations

from typing import Any

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import (
    CLIENT_ID,
    CLIENT_VERSION,
    LANGUAGE,
    answer_when_done,
    each,
    header,
    user_of,
)
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Session, Sessions
from brokerd.proxy.settings_merge import PRODUCER, refuse_lite
from brokerd.proxy.status import OK
from remoting.errors import RequestError


def heartbeat(clients: ClientRegistry, sessions: Sessions, groups: Groups) -> Handler:
    """A client without settings is a client all the same: it may have sent them to this broker's predecessor."""

    def handle(call: Call, request: Any) -> None:
        refuse_lite(request.client_type)
        group = _named_group(request)
        session = sessions.get(header(call, CLIENT_ID), call.peer.connection) or Session(group)
        clients.heartbeat(client_info(call, session, group), call.peer.connection)
        if not group or request.client_type == PRODUCER:
            call.answer(OK)
            return

        def ensured(error: RequestError | None) -> None:
            if error is None:
                groups.ensure_retry_topic(group)
            answer_when_done(call)(error)

        groups.ensure(group, ensured)

    return each(service.HeartbeatRequest, handle)


def notify_client_termination(clients: ClientRegistry, sessions: Sessions) -> Handler:
    """Ends what this connection announced; a client that another connection announced under the same id lives on."""

    def handle(call: Call, request: Any) -> None:
        group = _named_group(request)
        client_id, connection = header(call, CLIENT_ID), call.peer.connection
        sessions.forget(client_id, connection)
        clients.unregister(connection, client_id, group)
        call.answer(OK)

    return each(service.NotifyClientTerminationRequest, handle)


def _named_group(request: Any) -> str:
    return group_name(request.group) if request.group.name else ""


def client_info(call: Call, session: Session, group: str) -> ClientInfo:
    """The client that makes a call, for the registry."""
    return ClientInfo(
        header(call, CLIENT_ID),
        call.peer.address,
        header(call, LANGUAGE),
        header(call, CLIENT_VERSION),
        session.producer_topics,
        group or session.group,
        session.subscriptions,
        user_of(call),
    )
