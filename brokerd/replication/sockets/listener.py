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


async def listen(host: str, port: int, hub: Hub, tls: TlsServer | None) -> asyncio.Server:
    """Accept replicas on the replication address, until the server is closed; the hub closes what was accepted.

    Raises SettingsError when the address is taken.
    """
    try:
        return await asyncio.get_running_loop().create_server(
            accepting(tls, lambda: AcceptedConnection(hub)), host, port
        )
    except OSError as error:
        raise SettingsError(
            f"cannot listen for replicas on {host}:{port}: {error.strerror}; "
            "free the port or choose another one with --ha-listen"
        ) from error
