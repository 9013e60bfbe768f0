"""Telemetry: the stream that stays open. Settings are answered at once; what admins would ask of clients comes later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from brokerd.members.registry import ClientRegistry
from brokerd.proxy import settings_merge
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.methods.base import attempt, client_id
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.heartbeat import client_info
from brokerd.proxy.names import group_name
from brokerd.proxy.protobuf import service
from brokerd.proxy.sessions import Sessions, session_of
from brokerd.proxy.status import OK, Code, Refusal, status_field


def telemetry(clients: ClientRegistry, sessions: Sessions, groups: Groups) -> Handler:
    def handle(call: Call, command: Any) -> None:
        if not command.HasField("settings"):
            # results of commands that nobody waits for (any more): nothing to answer
            client_id(call)
            return
        settings = command.settings
        identity = client_id(call)
        group = group_name(settings.subscription.group) if settings.HasField("subscription") else ""
        merged = settings_merge.merge(settings, groups.get(group) if group else None)
        session = session_of(settings)
        sessions.remember(identity, call.peer.connection, session)
        clients.heartbeat(client_info(call, session, group), call.peer.connection)
        call.send([OK + service.TelemetryCommand(settings=merged).SerializeToString()])

    def handler(calls: Sequence[Call]) -> None:
        for call in calls:
            try:
                command = service.TelemetryCommand.FromString(call.message)
            except DecodeError as error:
                _refuse(call, None, Refusal(Code.BAD_REQUEST, f"undecodable command: {error}"))
                continue
            attempt(call, command, _refuse, handle, call, command)

    return handler


def _refuse(call: Call, command: Any, refusal: Refusal) -> None:
    call.send([status_field(refusal.code, refusal.text)])
