"""The replication listener: a replica's connection on the master's side, and the server that accepts it.

One listener whatever the role: a broker that is not master closes what it accepts at once (the driver says so). Bytes go out as
soon as they are appended, as long as the socket takes them; when it does not, the driver is asked again once it does.
"""

from __future__ import annotations

import asyncio
from functools import partial

from brokerd.replication.sockets.hub import Connection, Hub
from remoting.errors import SettingsError
from remoting.transport.tls import TlsServer, accepting

# What may wait in memory for one replica: enough to keep the network busy while a batch is read.
_HIGH_WATER_BYTES = 4 * 1024 * 1024
_LOW_WATER_BYTES = 2 * 1024 * 1024


class AcceptedConnection(Connection, asyncio.Protocol):
    """A connection that a replica dialled."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(_HIGH_WATER_BYTES, _LOW_WATER_BYTES)
        name = transport.get_extra_info("peername")
        self._hub.tell(partial(self._hub.driver.accepted, host=name[0] if name else ""), self._number)

    def data_received(self, data: bytes) -> None:
        if self._hub.knows(self._number):
            self._hub.tell(self._hub.driver.received, self._number, data)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._hub.knows(self._number):
            self._hub.tell(self._hub.driver.pump, self._number)


class ReplicationListener:
    """Accepts replicas on the replication address."""

    def __init__(self, host: str, port: int, hub: Hub, tls: TlsServer | None = None) -> None:
        self._tls = tls
        self._host = host
        self._port = port
        self._hub = hub
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Bind and accept. Raises SettingsError when the address is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                accepting(self._tls, lambda: AcceptedConnection(self._hub)), self._host, self._port
            )
        except OSError as error:
            raise SettingsError(
                f"cannot listen for replicas on {self._host}:{self._port}: {error.strerror}; "
                "free the port or choose another one with --ha-listen"
            ) from error

    async def close(self) -> None:
        """Stop accepting; the hub closes what was accepted."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
