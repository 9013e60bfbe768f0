"""Messages that consumers give back (code 36), and how far the delayed messages are delivered (code 45)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brokerd.metadata.service import DataVersion
from brokerd.processors import fields
from brokerd.processors.answers import when_done
from brokerd.processors.bodies import encode
from brokerd.processors.rights import may_use
from brokerd.processors.sending.requests import limit_of
from brokerd.retry.service import RetryService, SentBack
from remoting.access.model import SUB
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.transport.connection import RemotingConnection


@dataclass(frozen=True, slots=True)
class SendBackProcessor:
    """The handlers. `delayed()` gives the progress of each delay level."""

    retry: RetryService
    delayed: Callable[[], Mapping[int, int]]
    data_version: Callable[[], DataVersion]
    guard: Guard

    def send_back(self, connection: RemotingConnection, request: Command) -> None:
        """Code 36."""
        ext = request.ext
        asked = SentBack(
            fields.text(ext, "group"),
            fields.integer(ext, "offset"),
            fields.integer(ext, "delayLevel", low=fields.MIN_INT, high=fields.MAX_INT),
            limit_of(ext, "maxReconsumeTimes"),
            request.version,
            fields.flag(ext, "unitMode"),
            ext.get("originTopic", ""),
        )

        self.retry.send_back(asked, when_done(connection, request), may_use(self.guard, connection, request, SUB))

    def delay_offsets(self, connection: RemotingConnection, request: Command) -> None:
        """Code 45, which replicas of the original ask their master."""
        table = {str(level): offset for level, offset in self.delayed().items()}
        connection.respond(request, body=encode({"dataVersion": self.data_version().as_json(), "offsetTable": table}))
