"""Single messages: code 33 (by physical offset)."""

from __future__ import annotations

from typing import Protocol

from brokerd.processors import fields
from remoting import codes
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection


class PhysicalReads(Protocol):
    """What is needed of the store."""

    def read_physical(self, physical_offset: int) -> bytes | None: ...


class MessageProcessor:
    """The handler."""

    def __init__(self, reads: PhysicalReads) -> None:
        self._reads = reads

    def view(self, connection: RemotingConnection, request: Command) -> None:
        """Code 33."""
        offset = fields.integer(request.ext, "offset")
        record = self._reads.read_physical(offset)
        if record is None:
            raise RequestError(codes.SYSTEM_ERROR, f"no message starts at offset {offset} of this broker's log")
        connection.respond(request, body=record)
