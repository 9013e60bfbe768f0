"""The gRPC side of a broker, put together: endpoint, methods, forwarding to the master, and calls forwarded to us.

The broker's assembly builds one `GrpcProxy`, registers `handle_forwarded` for code PROXY_CALL on its remoting server, and tells
it of closed remoting connections. Nothing else of this package is used from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from brokerd.proxy.access import protect
from brokerd.proxy.calls import Handler as GrpcHandler
from brokerd.proxy.calls import Kind, Method
from brokerd.proxy.endpoint import EndpointSettings, GrpcEndpoint, monotonic_ms
from brokerd.proxy.forward import Forwarder, ForwardSettings
from brokerd.proxy.forwarded import ForwardedCalls
from brokerd.proxy.grpc import SERVICE_PATH
from brokerd.proxy.methods.base import Services
from brokerd.proxy.methods.table import KINDS, build_methods
from brokerd.replication.replica import Replica
from remoting.guarding.guard import Guard
from remoting.transport.client import RemotingClient
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.tasks import TaskOwner
from remoting.transport.tls import TlsServer


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """What the port may be like; `tls` is what the endpoint's own certificate takes the place of, if its settings name one."""

    endpoint: EndpointSettings = field(default_factory=EndpointSettings)
    forward: ForwardSettings = field(default_factory=ForwardSettings)
    auto_create_groups: bool = True
    guard: Guard | None = None
    tls: TlsServer | None = None


class GrpcProxy:
    """One broker's gRPC port."""

    def __init__(
        self,
        host: str,
        port: int,
        services: Services,
        dialler: RemotingClient,
        mastership: Replica,
        options: ProxyOptions,
    ) -> None:
        self._services = services
        self._tasks = TaskOwner("grpc proxy")
        self._methods = build_methods(
            services, monotonic_ms=monotonic_ms, wall_ms=wall_ms, auto_create_groups=options.auto_create_groups
        )
        loop = asyncio.get_running_loop()
        self._forwarder = Forwarder(
            self._methods,
            dialler,
            mastership,
            scheduler=loop,
            tasks=self._tasks,
            settings=options.forward,
        )
        self._forwarded = ForwardedCalls(self._methods.handlers, mastership, loop, self._client_gone)
        handlers: Mapping[str, GrpcHandler] = {
            name: partial(self._forwarder.execute, name) for name in self._methods.handlers
        }
        if options.guard is not None:
            handlers = protect(options.guard, handlers, self._methods.refusals)
        table = {
            SERVICE_PATH + name: Method(name, KINDS.get(name, Kind.UNARY), handler)
            for name, handler in handlers.items()
        }
        self.endpoint = GrpcEndpoint(
            host,
            port,
            table,
            options.endpoint,
            closed=self._connection_closed,
            tls=options.tls,
        )
        self.handle_forwarded: Handler = self._forwarded.handle

    async def start(self) -> None:
        """Bind and serve. Raises SettingsError."""
        await self.endpoint.start()

    async def close(self) -> None:
        """Answer what waits, close the connections, end the background work."""
        self._forwarder.stop()
        self._forwarded.stop()
        self._methods.receive.stop()
        await self.endpoint.close()
        await self._tasks.close()

    def remoting_closed(self, connection: RemotingConnection) -> None:
        """A remoting connection of this broker's server is gone; it may have carried forwarded calls."""
        self._forwarded.connection_closed(connection)

    def _connection_closed(self, connection: object) -> None:
        self._forwarder.connection_closed(connection)
        self._client_gone(connection)

    def _client_gone(self, connection: object) -> None:
        self._methods.sessions.connection_closed(connection)
        self._services.clients.connection_closed(connection)
