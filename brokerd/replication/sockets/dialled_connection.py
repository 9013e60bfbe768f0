"""A replica's connection to its master.

Bytes are received into one buffer that is used over and over; log bytes go from there to the log file without being put together
or copied in between, because the driver uses them before the next read.
"""

from __future__ import annotations

import asyncio
from typing import cast

from brokerd.replication.sockets.hub import Hub

_BUFFER_BYTES = 1024 * 1024


class DialledConnection(asyncio.BufferedProtocol):
    """The connection that this replica dialled."""

    def __init__(self, hub: Hub, attempt: int) -> None:
        self.transport: asyncio.Transport | None = None
        self.paused = False
        self._hub = hub
        self._attempt = attempt
        self._number = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A uvloop transport has the methods of asyncio.Transport without being one.
        self.transport = transport = cast(asyncio.Transport, transport)
        self._number = self._hub.register(self)
        self._hub.tell(self._hub.driver.connected, self._attempt, self._number)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._hub.knows(self._number):
            self._hub.tell(self._hub.driver.received, self._number, self._buffer[:nbytes])

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._hub.lost(self._number)
