"""The replication of one broker, as the broker's assembly uses it.

    replica = Replica(settings, names, controllers, disk, replicated_log, topics, confirm_offset=...)
    replica.add_role_listener(...); replica.add_confirm_listener(...); replica.on_failure(...)
    server handlers |= replica.handlers()
    await replica.start(host, port)         after the remoting server listens: from now on others are told where we are
    replica.on_flushed()                    after every flush of the log, on the loop
    replica.on_appended(end), replica.wait(position, callback)
    await replica.stop()

Everything happens on the loop's thread. The parts: `engine` (which drives the pure cores), `connections` with `leader` and
`follower` (sockets between brokers), `control` with `controller_link`, and `name_server_link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import token_bytes

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.controllers.controller_link import ControllerLink
from brokerd.replication.controllers.controller_session import BrokerNames, BrokerPosition, ControlCore
from brokerd.replication.controllers.fixed_session import MASTER_ID, FixedRoles
from brokerd.replication.controllers.identity import IdentityFiles, Registration, next_incarnation
from brokerd.replication.controllers.name_server_link import NameServerLink
from brokerd.replication.controllers.session import Session
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.log_lineage import Lineage
from brokerd.replication.facts import ReplicaFacts
from brokerd.replication.log import ReplicatedLog
from brokerd.replication.required_set.quorum import weaknesses
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.driver import ReplicaEngine, RoleListener
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.followership import Stage
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.sockets.dialled_connection import MasterConnection
from brokerd.replication.sockets.hub import Hub
from brokerd.replication.sockets.listener import ReplicationListener
from brokerd.replication.tool_requests import ToolRequests
from brokerd.replication.wire.proof import NONCE_BYTES, Credentials
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.disk import Disk
from remoting.errors import InvalidParameter
from remoting.frame import Command
from remoting.transport.client import NOBODY, Identity
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import each
from remoting.transport.tls import TlsServer

log = logging.getLogger(__name__)

TICK_MS = 50
_DRAIN_S = 0.5


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class _Control:
    """`engine.ControlRequests`: what the core wants reaches the control core, which is then let to send it soon."""

    def __init__(self) -> None:
        self.core: Session | None = None
        self.step_soon: Callable[[], None] | None = None

    def request_sync(self) -> None:
        if self.core is not None:
            self.core.request_sync()
            self._soon()

    def request_election(self) -> None:
        if self.core is not None:
            self.core.request_election()
            self._soon()

    def request_members(self) -> None:
        if self.core is not None:
            self.core.request_members()
            self._soon()

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        assert self.core is not None
        self.core.propose(proposal, master_epoch)
        self._soon()

    def _soon(self) -> None:
        if self.step_soon is not None:
            self.step_soon()


class _NameServers:
    """Of the link's addresses those that are name servers: a fixed group's replica is connected to its master too."""

    def __init__(self, link: ControllerLink, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.request = link.request


class Replica:
    """See the module."""

    def __init__(
        self,
        settings: ReplicationSettings,
        names: BrokerNames,
        controllers: Sequence[str],
        disk: Disk,
        replicated_log: ReplicatedLog,
        topics: Callable[[], Mapping[str, TopicConfig]],
        *,
        secrets: Sequence[bytes],
        confirm_offset: int,
        tail_kept: bool = True,
        wall_ms: Callable[[], int] = _wall_ms,
        identity: Identity = NOBODY,
        tls: TlsServer | None = None,
    ) -> None:
        """`disk` is the broker's data directory; `topics` the present table, for the name servers; `secrets` what brokers of one
        cluster know one another by: this one proves itself with the first, and believes all; with none it stays alone. It dials
        with `identity`, and answers replicas under `tls`.

        Raises SettingsError or CorruptedFile when the directory's files do not fit.
        """
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._hub = Hub(self._now_ms, identity.tls)
        self._tls = tls
        requests = _Control()
        incarnation = next_incarnation(disk)
        group = f"{names.cluster}#{names.broker_name}".encode()
        self._engine = ReplicaEngine(
            settings,
            replicated_log,
            EpochFile(disk),
            self._hub,
            requests,
            credentials=Credentials(
                next(iter(secrets), None), group, incarnation, lambda: token_bytes(NONCE_BYTES), tuple(secrets[1:])
            ),
            confirm_offset=confirm_offset,
            now_ms=self._now_ms(),
        )
        self._hub.attach(self._engine, MasterConnection)
        self._control: Session
        if settings.roles == "fixed":
            lineage = Lineage(disk)

            def keep(name: str) -> None:
                lineage.keep(name)
                self._engine.channels.prove_group(group + b"#" + name.encode())

            fixed = FixedRoles(
                settings,
                names,
                controllers,
                self._engine,
                self._engine.core.highest_epoch,
                lineage.load(draw=settings.broker_id == MASTER_ID),
                keep,
                self._now_ms(),
            )
            fixed.on_acting_changed(self._acting_changed)
            if fixed.lineage:
                self._engine.channels.prove_group(group + b"#" + fixed.lineage.encode())
            self._control = fixed
        else:
            files = IdentityFiles(disk, names.cluster, names.broker_name)
            self._control = ControlCore(
                settings,
                names,
                controllers,
                Registration(files, names.address, wall_ms()),
                self._engine,
                self._position,
                incarnation=incarnation,
                now_ms=self._now_ms(),
                tail_kept=tail_kept,
            )
        requests.core = self._control
        self._link = ControllerLink(
            self._control.addresses,
            self._control,
            settings.controller_request_timeout_ms,
            settings.controller_heartbeat_timeout_ms,
            self._now_ms,
            wall_ms,
            lambda reason: self._engine.break_down(reason, self._now_ms()),
            identity,
        )
        requests.step_soon = self._link.step_soon
        self._name_servers = NameServerLink(
            self._link if settings.roles == "controllers" else _NameServers(self._link, tuple(controllers)),
            names,
            topics,
            settings.name_server_register_ms,
            wall_ms,
            acting_master=settings.roles == "fixed" and settings.acting_master,
        )
        self._link.on_connected(self._name_servers.connected)
        self._tools = ToolRequests(self._engine, self._control, names, self._hub.peer_of, self._now_ms, wall_ms)
        self._listener: ReplicationListener | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._names = names
        # What the fast path calls, without a layer in between
        self._on_appended = self._engine.on_appended
        self._wait = self._engine.wait

    # Start and end

    async def start(self, host: str, port: int) -> None:
        """Listen for replicas and begin to talk to the controllers. Raises SettingsError when the address is taken."""
        for weakness in weaknesses(self._settings):
            log.warning("weaker than the default: %s", weakness)
        self._engine.add_role_listener(self._tell_name_servers)
        self._listener = ReplicationListener(host, port, self._hub, self._tls)
        await self._listener.start()
        if self._settings.classic_master:
            self._engine.follow_classic(self._settings.classic_master, self._now_ms())
        else:
            self._link.start()
        self._tick()

    async def stop(self) -> None:
        """Leave the routes, let what was sent be acknowledged, leave the role, fail who still waits, close every connection."""
        self._name_servers.stop()
        await self._drain()
        if self._ticker is not None:
            self._ticker.cancel()
        self._engine.stop("this broker stops", self._now_ms())
        if self._listener is not None:
            await self._listener.close()
        await self._hub.close_all()
        await self._link.close()

    async def _drain(self) -> None:
        """Take nothing new, and give the replicas a moment to acknowledge what producers wait for."""
        self._engine.draining = True
        if not self._engine.is_master or not len(self._engine.acks):
            return
        answered = asyncio.Event()
        self._engine.wait(self._engine.core.log.end_offset, lambda status: answered.set(), self._now_ms())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await answered.wait()

    def handlers(self) -> dict[int, Handler]:
        """For the broker's remoting server: what controllers and tools ask about replication."""
        return {
            codes.NOTIFY_BROKER_ROLE_CHANGED: each(self._notified),
            codes.HAND_OVER_MASTER: each(self._hand_over),
            **self._tools.handlers(),
        }

    # For senders and readers

    @property
    def role(self) -> Role:
        return self._engine.core.role

    @property
    def master_epoch(self) -> int:
        """The epoch of the present role; 0 before the first."""
        return self._engine.core.master_epoch

    @property
    def broker_id(self) -> int | None:
        """The persistent id; None until a controller assigned it."""
        return self._engine.core.broker_id

    @property
    def is_master(self) -> bool:
        return self._engine.is_master

    @property
    def is_connected_to_master(self) -> bool:
        """Whether this replica copies its master's log right now: the master is there, and clients can reach it too."""
        following = self._engine.core.following
        return following is not None and following.stage is Stage.TRANSFER

    @property
    def accepts_messages(self) -> bool:
        return self._engine.accepts_messages

    @property
    def refusal(self) -> PutStatus:
        return self._engine.refusal

    @property
    def acknowledged_offset(self) -> int:
        return self._engine.core.acknowledged_offset

    @property
    def confirm_offset(self) -> int:
        return self._engine.core.confirm_offset

    def held_offset(self) -> int | None:
        """From where on connected replicas of the group still need the log; None without any."""
        leading = self._engine.core.leading
        return leading.held_offset() if leading is not None else None

    @property
    def master_address(self) -> str:
        """The remoting address of the group's master, "" when none is known."""
        return self._of_master("master_address")

    @property
    def master_grpc_address(self) -> str:
        return self._of_master("master_grpc_address")

    def on_appended(self, end_offset: int) -> None:
        """The master appended: send it to the replicas. Once per read event's messages; the caller asks for the flush."""
        try:
            self._on_appended(end_offset, int(self._loop.time() * 1000))
        except Exception as error:
            self._engine.break_down(f"replication broke: {error}", self._now_ms())
            raise

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back once, when everything below `position` is acknowledged or the wait is over."""
        self._wait(position, callback, int(self._loop.time() * 1000))

    def on_flushed(self) -> None:
        """A flush of the log ended."""
        self._hub.tell(self._engine.on_flushed)

    def on_failure(self, listener: Callable[[str], None]) -> None:
        """Called once when the disk refused what replication had to write: the broker must stop."""
        self._engine.on_failure(listener)

    def add_role_listener(self, listener: RoleListener) -> None:
        """Called at every change of role (role, master epoch); MASTER when the log is settled, before anybody is told."""
        self._engine.add_role_listener(listener)

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None:
        """Called with the confirm offset when it rose, before the sends below it are answered."""
        self._engine.add_confirm_listener(listener)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """An administrator changed settings: use these from now on."""
        self._settings = settings
        self._control.reconfigure(settings)
        self._hub.tell(lambda now_ms: self._engine.reconfigure(settings, now_ms))
        for weakness in weaknesses(settings):
            log.warning("weaker than the default: %s", weakness)

    def topics_changed(self) -> None:
        """Tell the name servers soon."""
        self._name_servers.topics_changed(self._now_ms())

    def when_topics_known(self, done: Callable[[], None]) -> None:
        """Call `done` when the name servers know the topics as they are now; see `NameServerLink.when_known`."""
        if self._settings.classic_master:
            done()
        else:
            self._name_servers.when_known(done)

    def state(self) -> ReplicaFacts:
        """The facts for a person."""
        control = self._control
        return replace(
            self._engine.state(self._now_ms()),
            acts_as_master=isinstance(control, FixedRoles) and control.acts_as_master,
            controllers=self._link.connected,
            controllers_error=control.last_error,
        )

    # Inside

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        now_ms = self._now_ms()
        try:
            self._engine.tick(now_ms, TICK_MS)
            if not self._settings.classic_master:
                self._link.step()
                self._name_servers.tick(now_ms)
            self._tools.tick(now_ms)
        except Exception as error:  # the outermost edge: without its clock the broker must not go on
            log.exception("replication broke")
            self._engine.break_down(f"replication broke: {error}", now_ms)
            return
        self._ticker = self._loop.call_later(TICK_MS / 1000, self._tick)

    def _acting_changed(self) -> None:
        self._name_servers.register(self._now_ms())

    def _position(self) -> BrokerPosition:
        core = self._engine.core
        return BrokerPosition(
            core.epochs.last_epoch, core.highest_epoch, core.log.end_offset, max(core.confirm_offset, 0)
        )

    def _tell_name_servers(self, role: Role, master_epoch: int) -> None:
        self._name_servers.role_changed(role, master_epoch, self.broker_id, self._now_ms())
        self._link.step_soon()  # heartbeats and views should not wait for the next tick either

    def _of_master(self, field: str) -> str:
        view = self._engine.core.view
        return getattr(view, field) if view is not None and view.master_id is not None else ""

    # Requests

    def _notified(self, connection: RemotingConnection, request: Command) -> None:
        self._control.notified(self._now_ms())
        self._link.step()
        connection.respond(request)

    def _hand_over(self, connection: RemotingConnection, request: Command) -> None:
        successor, epoch, wait_ms, hold_ms = (
            _number(request, name) for name in ("brokerId", "masterEpoch", "waitMs", "holdMs")
        )

        def told(reason: str, end_offset: int) -> None:
            code = codes.SERVICE_NOT_AVAILABLE if reason else codes.SUCCESS
            connection.respond(request, code, {"maxOffset": str(end_offset)}, remark=reason or None)

        self._engine.hand_over(successor, epoch, wait_ms, hold_ms, self._now_ms(), told)


def _number(request: Command, name: str) -> int:
    try:
        found = int(request.ext[name])
    except (KeyError, ValueError) as error:
        raise InvalidParameter(f"request {request.code} needs the number {name}") from error
    if found < 0:
        raise InvalidParameter(f"the field {name} of request {request.code} must not be negative")
    return found
