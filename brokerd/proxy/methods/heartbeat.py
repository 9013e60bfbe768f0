"""Heartbeat and NotifyClientTermination: who is there."""

from __future__ import annotations

from typing import Any

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import CLIENT_VERSION, LANGUAGE, client_id, each, header
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Session, Sessions
from brokerd.proxy.settings_merge import PRODUCER, refuse_unsupported
from brokerd.proxy.status import OK, refusal_of, status_field
from remoting.errors import RequestError


def heartbeat(clients: ClientRegistry, sessions: Sessions, groups: Groups) -> Handler:
    """A client without settings is a client all the same: it may have sent them to this broker's predecessor."""

    def handle(call: Call, request: Any) -> None:
        refuse_unsupported(request.client_type)
        group = group_name(request.group) if request.HasField("group") and request.group.name else ""
        session = sessions.get(client_id(call)) or Session(request.client_type, group)
        clients.heartbeat(client_info(call, session, group), call.peer.connection)
        if not group or request.client_type == PRODUCER:
            call.answer(OK)
            return

        def ensured(error: RequestError | None) -> None:
            refusal = None if error is None else refusal_of(error)
            call.answer(OK if refusal is None else status_field(refusal.code, refusal.text))

        groups.ensure(group, ensured)

    return each(service.HeartbeatRequest, handle)


def notify_client_termination(clients: ClientRegistry) -> Handler:
    def handle(call: Call, request: Any) -> None:
        group = group_name(request.group) if request.HasField("group") and request.group.name else ""
        clients.unregister(client_id(call), group)
        call.answer(OK)

    return each(service.NotifyClientTerminationRequest, handle)


def client_info(call: Call, session: Session, group: str) -> ClientInfo:
    return ClientInfo(
        client_id(call),
        call.peer.address,
        header(call, LANGUAGE),
        header(call, CLIENT_VERSION),
        session.producer_topics,
        group or session.group,
        session.subscriptions,
    )
