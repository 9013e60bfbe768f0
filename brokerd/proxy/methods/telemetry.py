"""Telemetry: a stream of each client, on which it says what it is, and on which we say what it should know or do.

Settings are answered at once, and told again when the group's configuration changes what they say. What clients answer to our
questions is handed to whoever asked. A replica answers settings itself and tells its master who is there (`noted`); what follows
from the groups, and from its own end, it tells its clients by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.loop.scheduler import Scheduler
from brokerd.members.registry import ClientRegistry
from brokerd.members.streams import Told
from brokerd.metadata.tables import Change
from brokerd.proxy import settings_merge
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.commands import Questions, TelemetryStream
from brokerd.proxy.mapping import check_lite_topic
from brokerd.proxy.methods.base import CLIENT_ID, LANGUAGE, each, header, refuse_streamed
from brokerd.proxy.methods.clients import client_info
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.telling_again import DEAF_AT_FIRST, TellingAgain
from brokerd.proxy.names import full_name, group_name
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.sessions import MAX_TOPICS_PER_SESSION, Announced, Sessions, session_of
from brokerd.proxy.status import OK, Code, Refusal

MAX_KEPT_BYTES: Final = 64 * 1024  # of one client's settings; who sends more is not told of changes
_TOLD_AT_ONCE: Final = 64  # clients, in one turn of the loop
_JAVA: Final = "JAVA"


@dataclass(slots=True, eq=False)
class Telemetry:
    """The method. `takes_metrics`: see `settings_merge.merge`."""

    clients: ClientRegistry
    sessions: Sessions
    groups: Groups
    questions: Questions
    scheduler: Scheduler
    takes_metrics: bool = False
    _to_tell: list[Announced] = field(default_factory=list)
    _again: TellingAgain = field(init=False)

    def __post_init__(self) -> None:
        self._again = TellingAgain(self.scheduler)

    @property
    def handler(self) -> Handler:
        """For clients of this broker."""
        return each(
            service.TelemetryCommand, lambda call, command: self._heard(call, command, is_here=True), refuse_streamed
        )

    @property
    def noted(self) -> Handler:
        """For what a replica passes on: it answered already."""
        return each(service.TelemetryCommand, lambda call, command: self._heard(call, command, is_here=False), _ignore)

    def metadata_changed(self, change: Change) -> None:
        """Groups are others now: their consumers are told, some in each turn of the loop."""
        changed = {*change.groups_put, *change.groups_deleted}
        if not (change.rebuilt or changed):
            return
        waiting = bool(self._to_tell)
        self._to_tell += [
            announced
            for announced in self.sessions
            if announced.stream.settings and (change.rebuilt or announced.session.group in changed)
        ]
        if self._to_tell and not waiting:
            self.scheduler.call_soon(self._tell_some)

    def move_away(self) -> None:
        """Ask clients to go elsewhere, before this broker closes their connections: those of Java, who are known to take it well.

        Node.js gives up its stream without a listener for the error that the stream's end is then, and would end with it.
        """
        for _, stream, _ in list(self.sessions):
            if stream.is_here and stream.call.metadata.get(LANGUAGE) == _JAVA:
                stream.reconnect()

    # ---- inside

    def _heard(self, call: Call, command: Any, *, is_here: bool) -> None:
        owner = call.peer.connection, header(call, CLIENT_ID)
        if command.HasField("thread_stack_trace"):
            trace = command.thread_stack_trace
            self.questions.answered(owner, trace.nonce, Told(command.status.code, trace.thread_stack_trace))
        elif command.HasField("verify_message_result"):
            told = Told(command.status.code, command.status.message)
            self.questions.answered(owner, command.verify_message_result.nonce, told)
        elif command.HasField("verify_message_command"):  # Node.js says in this way that it cannot
            told = Told(command.status.code, command.status.message)
            self.questions.answered(owner, command.verify_message_command.nonce, told)
        elif command.HasField("notify_unsubscribe_lite_command"):  # which only a server that has them would say
            check_lite_topic(command.notify_unsubscribe_lite_command.lite_topic)
            raise Refusal(Code.UNSUPPORTED, "this version does not have lite topics: there is none to unsubscribe from")
        elif command.HasField("settings"):
            self._announced(call, command.settings, is_here=is_here)

    def _announced(self, call: Call, settings: Any, *, is_here: bool) -> None:
        client_id, connection = header(call, CLIENT_ID), call.peer.connection
        group = group_name(settings.subscription.group) if settings.HasField("subscription") else ""
        merged = self._merge(call, settings, group)
        session = session_of(settings)
        size = len(call.message)
        self.sessions.check_room(client_id, connection, size)
        told = merged.SerializeToString(deterministic=True) if is_here and group else b""
        stream = TelemetryStream(
            call,
            (connection, client_id),
            self.questions,
            {full_name(topic): _copy(topic) for topic in settings.publishing.topics[:MAX_TOPICS_PER_SESSION]},
            told if len(told) <= MAX_KEPT_BYTES else b"",
            is_here,
        )
        call.message = b""
        is_new = self.sessions.get(client_id, connection) is None
        if not session.is_lite:  # the group has no such member
            self.clients.heartbeat(client_info(call, session, group), connection, stream)
        self.sessions.remember(client_id, connection, Announced(session, stream, size))
        if is_here:
            answer = OK + service.TelemetryCommand(settings=merged).SerializeToString()
            call.send([answer])
            if is_new and header(call, LANGUAGE) in DEAF_AT_FIRST and len(session.subscriptions) > 1:
                self._again.tell(call, answer)

    def _merge(self, call: Call, settings: Any, group: str) -> Any:
        found = self.groups.get(group) if group else None
        return settings_merge.merge(settings, found, header(call, LANGUAGE), takes_metrics=self.takes_metrics)

    def _tell_some(self) -> None:
        for _ in range(min(_TOLD_AT_ONCE, len(self._to_tell))):
            session, stream, _ = self._to_tell.pop()
            if stream.is_open:
                settings = definition.Settings.FromString(stream.settings)
                stream.tell_settings(self._merge(stream.call, settings, session.group))
        if self._to_tell:
            self.scheduler.call_soon(self._tell_some)


def _copy(topic: Any) -> Any:
    return definition.Resource(resource_namespace=topic.resource_namespace, name=topic.name)


def _ignore(_call: Call, _request: Any, _refusal: Refusal) -> None:
    """The replica said it already."""
