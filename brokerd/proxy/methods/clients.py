"""Heartbeat, NotifyClientTermination and Telemetry: who is there, and what it said about itself.

The telemetry stream stays open. Settings are answered at once; what admins would ask of clients comes later.
"""

from __future__ import annotations

from typing import Any

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from brokerd.proxy import settings_merge
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import (
    CLIENT_ID,
    CLIENT_VERSION,
    LANGUAGE,
    answer_when_done,
    each,
    header,
    refuse_streamed,
)
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Session, Sessions, session_of
from brokerd.proxy.settings_merge import PRODUCER, refuse_unsupported
from brokerd.proxy.status import OK


def heartbeat(clients: ClientRegistry, sessions: Sessions, groups: Groups) -> Handler:
    """A client without settings is a client all the same: it may have sent them to this broker's predecessor."""

    def handle(call: Call, request: Any) -> None:
        refuse_unsupported(request.client_type)
        group = _named_group(request)
        session = sessions.get(header(call, CLIENT_ID)) or Session(group)
        clients.heartbeat(_client_info(call, session, group), call.peer.connection)
        if not group or request.client_type == PRODUCER:
            call.answer(OK)
        else:
            groups.ensure(group, answer_when_done(call))

    return each(service.HeartbeatRequest, handle)


def notify_client_termination(clients: ClientRegistry) -> Handler:
    def handle(call: Call, request: Any) -> None:
        group = _named_group(request)
        clients.unregister(header(call, CLIENT_ID), group)
        call.answer(OK)

    return each(service.NotifyClientTerminationRequest, handle)


def telemetry(clients: ClientRegistry, sessions: Sessions, groups: Groups) -> Handler:
    def handle(call: Call, command: Any) -> None:
        if not command.HasField("settings"):
            return  # results of commands that nobody waits for (any more): nothing to answer
        settings = command.settings
        group = group_name(settings.subscription.group) if settings.HasField("subscription") else ""
        merged = settings_merge.merge(settings, groups.get(group) if group else None)
        session = session_of(settings)
        sessions.remember(header(call, CLIENT_ID), call.peer.connection, session)
        clients.heartbeat(_client_info(call, session, group), call.peer.connection)
        call.send([OK + service.TelemetryCommand(settings=merged).SerializeToString()])

    return each(service.TelemetryCommand, handle, refuse_streamed)


def _named_group(request: Any) -> str:
    return group_name(request.group) if request.group.name else ""


def _client_info(call: Call, session: Session, group: str) -> ClientInfo:
    return ClientInfo(
        header(call, CLIENT_ID),
        call.peer.address,
        header(call, LANGUAGE),
        header(call, CLIENT_VERSION),
        session.producer_topics,
        group or session.group,
        session.subscriptions,
    )
