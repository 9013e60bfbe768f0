"""Messages that consumers give back (code 36), and how far the delayed messages are delivered (code 45)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from brokerd.metadata.service import DataVersion
from brokerd.processors import fields
from brokerd.processors.bodies import encode
from brokerd.retry.service import RetryService, SentBack
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

_MIN_INT: Final = -(1 << 31)


class SendBackProcessor:
    """The handlers. `delay_offsets()` gives the progress of each delay level."""

    def __init__(
        self,
        retry: RetryService,
        delay_offsets: Callable[[], Mapping[int, int]],
        data_version: Callable[[], DataVersion],
    ) -> None:
        self._retry = retry
        self._delay_offsets = delay_offsets
        self._data_version = data_version

    def send_back(self, connection: RemotingConnection, request: Command) -> None:
        """Code 36."""
        ext = request.ext
        limit = None
        if ext.get("maxReconsumeTimes"):
            limit = fields.integer(ext, "maxReconsumeTimes", low=_MIN_INT, high=fields.MAX_INT)
        asked = SentBack(
            fields.text(ext, "group"),
            fields.integer(ext, "offset"),
            fields.integer(ext, "delayLevel", low=_MIN_INT, high=fields.MAX_INT),
            limit,
            request.version,
            fields.flag(ext, "unitMode"),
        )

        def done(error: RequestError | None) -> None:
            if error is None:
                connection.respond(request)
            else:
                connection.respond_error(request, error)

        self._retry.send_back(asked, done)

    def delay_offsets(self, connection: RemotingConnection, request: Command) -> None:
        """Code 45, which replicas of the original ask their master."""
        table = {str(level): offset for level, offset in self._delay_offsets().items()}
        connection.respond(request, body=encode({"dataVersion": self._data_version().as_json(), "offsetTable": table}))
