"""The gRPC side of a broker, put together: endpoint, methods, forwarding to the master, and calls forwarded to us.

The broker's assembly builds one `GrpcProxy`, registers `handle_forwarded` for code PROXY_CALL on its remoting server, and tells
it of closed remoting connections. Nothing else of this package is used from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from brokerd.metadata.tables import Change
from brokerd.native.library import Library
from brokerd.proxy.access import protect
from brokerd.proxy.answers import answers_in_c
from brokerd.proxy.calls import Call, Kind, Method, StatuslessFigures, run
from brokerd.proxy.calls import Handler as GrpcHandler
from brokerd.proxy.client_figures import ClientFigures
from brokerd.proxy.endpoint import EndpointSettings, GrpcEndpoint, Protection, monotonic_ms
from brokerd.proxy.figures import GrpcFigures
from brokerd.proxy.forward import Forwarder, ForwardSettings
from brokerd.proxy.forwarded import ForwardedCalls
from brokerd.proxy.grpc import SERVICE_PATH
from brokerd.proxy.heads import CallHeads
from brokerd.proxy.http2.blocks import PlainBlockReader
from brokerd.proxy.http2.native_hpack import native_block_readers
from brokerd.proxy.methods.base import Services
from brokerd.proxy.methods.client_reports import ClientReports
from brokerd.proxy.methods.placing import Anywhere
from brokerd.proxy.methods.quick_sends import Quick
from brokerd.proxy.methods.table import KINDS, build_methods, max_request_bytes
from brokerd.proxy.native_sends import SendReader
from brokerd.proxy.otlp import MAX_REQUEST_BYTES, METRICS_PATH, TRACES_PATH
from brokerd.proxy.placed import Placed, PlacedSends
from brokerd.proxy.received import answers_of
from brokerd.proxy.status import code_name
from brokerd.replication.replica import Replica
from brokerd.replication.roles.effects import Role
from brokerd.sending.turns import SendTurns
from brokerd.store.derived.dispatcher import Arrivals
from remoting.guarding.guard import Guard
from remoting.transport.client import RemotingClient
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.tasks import TaskOwner
from remoting.transport.tls import TlsSettings
from remoting.transport.watch import Watch

_SEND_MESSAGE: Final = "SendMessage"


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class ProxyOptions:
    """What the port may be like; without `placed` it takes every send. `tls` is the daemon's, but for the
    certificate where the endpoint has one of its own; `library` lays out answers, reads header blocks, and with `turns`
    makes ordinary sends cheap."""

    endpoint: EndpointSettings = field(default_factory=EndpointSettings)
    forward: ForwardSettings = field(default_factory=ForwardSettings)
    auto_create_groups: bool = True
    guard: Guard | None = None
    tls: TlsSettings | None = None
    library: Library | None = None
    placed: Placed | None = None
    watch: Watch | None = None
    turns: SendTurns | None = None


def _quick(options: ProxyOptions) -> Quick | None:
    if options.library is None or options.turns is None:
        return None
    return Quick(SendReader(options.library), options.turns)


def _protection(options: ProxyOptions) -> Protection:
    guard = options.guard
    return Protection(options.tls, options.watch, guard.check_call if guard is not None and guard.is_on else None)


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
        self._sends: list[Call] = []  # of this turn of the loop
        self._loop = loop = asyncio.get_running_loop()
        self._placed_sends = self._make_placed_sends(options, dialler, mastership)
        self._methods = build_methods(
            services,
            scheduler=loop,
            monotonic_ms=monotonic_ms,
            wall_ms=wall_ms,
            auto_create_groups=options.auto_create_groups,
            answers=answers_of if options.library is None else answers_in_c(options.library),
            placing=self._placed_sends or Anywhere(),
            received=self._placed_sends.received if self._placed_sends is not None else Anywhere(),
            quick=_quick(options),
        )
        self._forwarder = Forwarder(
            self._methods,
            dialler,
            mastership,
            scheduler=loop,
            tasks=self._tasks,
            settings=options.forward,
        )
        if self._placed_sends is not None:
            self._placed_sends.left_listeners.append(self._forwarder.execute)
        self._forwarded = ForwardedCalls(self._methods.forwarded_handlers, mastership, loop, self._client_gone)
        handlers: Mapping[str, GrpcHandler] = {
            name: partial(self._forwarder.execute, name) for name in self._methods.handlers
        } | {_SEND_MESSAGE: self._send}
        if options.guard is not None:
            handlers = protect(options.guard, handlers, self._methods.refusals)
        table = {
            SERVICE_PATH + name: Method(name, KINDS.get(name, Kind.UNARY), handler, max_request_bytes(name))
            for name, handler in handlers.items()
        }
        # the broker that is asked takes them itself: they are about the client, not about a log
        self._clients = ClientFigures(wall_ms())
        reports = ClientReports(services.metadata, self._clients, wall_ms, loop.call_soon, options.guard)
        for path, name, export in (
            (METRICS_PATH, "ExportMetrics", reports.export_metrics),
            (TRACES_PATH, "ExportTraces", reports.export_traces),
        ):
            table[path] = Method(name, Kind.UNARY, export, MAX_REQUEST_BYTES, StatuslessFigures())
        self._table = table
        new_block_reader = PlainBlockReader if options.library is None else native_block_readers(options.library)
        self.endpoint = GrpcEndpoint(
            host,
            port,
            CallHeads(table, options.endpoint.max_message_bytes, new_block_reader),
            options.endpoint,
            closed=self._connection_closed,
            protection=_protection(options),
        )
        self.handle_forwarded: Handler = self._forwarded.handle

    def _make_placed_sends(
        self, options: ProxyOptions, dialler: RemotingClient, mastership: Replica
    ) -> PlacedSends | None:
        if options.placed is None:
            return None
        return PlacedSends(options.placed, mastership, dialler, self._loop, self._tasks, options.forward)

    def _send(self, calls: Sequence[Call]) -> None:
        """Clients' sends: those of all connections that came in a turn of the loop are carried out together in the next."""
        if not self._sends:
            self._loop.call_soon(self._send_together)
        self._sends += calls

    def _send_together(self) -> None:
        calls, self._sends = self._sends, []
        run(self._carry_out_sends, calls)

    def _carry_out_sends(self, calls: Sequence[Call]) -> None:
        """Behind those that came before them and wait, whoever the master is now."""
        if self._placed_sends is not None:
            self._placed_sends.give_to_next_master()
        self._forwarder.execute(_SEND_MESSAGE, calls)

    def figures(self) -> GrpcFigures:
        """What is measured here."""
        methods = self._table.values()
        return GrpcFigures(
            {method.name: method.figures.by_code(code_name) for method in methods},
            len(self.endpoint.connections),
            sum(method.figures.open_streams for method in methods),
            self._methods.pull.waiting_count,
            self._placed_sends.held_count if self._placed_sends is not None else 0,
            self._clients,
        )

    async def start(self) -> None:
        """Bind and serve. Raises SettingsError."""
        await self.endpoint.start()

    async def close(self) -> None:
        """Answer what waits, close the connections, end the background work."""
        self.endpoint.stop_listening()
        self._methods.telemetry.move_away()
        self._forwarder.stop()
        if self._placed_sends is not None:
            self._placed_sends.stop()
        self._forwarded.stop()
        self._methods.receive.stop()
        self._methods.telemetry.questions.stop()
        self._methods.pull.answer_all()
        await self.endpoint.close()
        await self._tasks.close()
        self._forwarder.close()
        if self._placed_sends is not None:
            self._placed_sends.close()

    def metadata_changed(self, change: Change) -> None:
        """Topics or groups are others now: clients whose settings follow from them are told."""
        self._methods.telemetry.metadata_changed(change)

    def arrived(self, arrivals: Arrivals) -> None:
        """Messages became readable."""
        self._methods.pull.arrived(arrivals)

    def fetched(self, topic: str, queue_id: int) -> None:
        """Messages of the tier became readable."""
        self._methods.pull.fetched(topic, queue_id)

    def role_changed(self, _role: Role, _epoch: int) -> None:
        """Who waits here may have to wait elsewhere now."""
        self._loop.call_soon(self._methods.pull.answer_all)

    def remoting_closed(self, connection: RemotingConnection) -> None:
        """A remoting connection of this broker's server is gone; it may have carried forwarded calls."""
        self._forwarded.connection_closed(connection)

    def _connection_closed(self, connection: object) -> None:
        self._forwarder.connection_closed(connection)
        self._client_gone(connection)

    def _client_gone(self, connection: object) -> None:
        self._methods.sessions.connection_closed(connection)
        self._methods.telemetry.questions.connection_closed(connection)
        self._services.clients.connection_closed(connection)
