"""The whole controller on a page: builds the parts and gives each what it uses; starts and stops them in order."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from controllerd.access.first_user import FirstUser, check_first_user
from controllerd.elections import Elections, tell_of_master
from controllerd.exposition import Exposition
from controllerd.live_settings import LiveSettings
from controllerd.metrics import Counters
from controllerd.nameserver.handlers import NameServer
from controllerd.nameserver.kv_config import KvConfig
from controllerd.nameserver.routes import RouteTable
from controllerd.placements.records import Record as PlacementRecord
from controllerd.placements.state import PlacementsState
from controllerd.placing import Placing
from controllerd.processors.access import AccessProcessor, Sealer
from controllerd.processors.anchors import AnchorsProcessor
from controllerd.processors.controllers_view import ControllersView
from controllerd.processors.hand_over import ask_to_hand_over
from controllerd.processors.heartbeats import HeartbeatProcessor
from controllerd.processors.membership import MembershipProcessor
from controllerd.processors.placements import PlacementsProcessor
from controllerd.processors.replicas import ReplicasProcessor
from controllerd.processors.returns import Returns
from controllerd.processors.serving import Serving
from controllerd.processors.views import ViewsProcessor
from controllerd.pushes import Pushes
from controllerd.raft.acquaintances import Acquaintances
from controllerd.raft.core import RaftCore
from controllerd.raft.driver import CopiedDirectory, DriverEvents, MemberRemoved, RaftDriver
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log import LostLog
from controllerd.raft.log_file import RaftLogFile, Recovered
from controllerd.raft.members import Members
from controllerd.raft.messages import Message, SoftState
from controllerd.raft.node import RaftNode
from controllerd.raft.peers import PeerEvents, Peers
from controllerd.raft.quorum import Configuration
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.records import LIVES_LEVEL, MasterElected, MasterLost, Record, SyncStateSetChanged
from controllerd.replicas.state import ReplicasState
from controllerd.settings import ControllerSettings
from controllerd.state.features import Features, LevelRaised
from controllerd.state.machine import ControllerMachine
from controllerd.state.raising import Raising
from remoting.access.model import AccessState
from remoting.access.sealing import NONCE_BYTES, seal
from remoting.access.secret_file import load_secrets
from remoting.disk import Disk
from remoting.errors import LogboomError
from remoting.exporter import MetricsExporter
from remoting.guarding.guard import Guard
from remoting.registry import CONTROLLERS, bind
from remoting.transport.beats import Beat, on_next_beat
from remoting.transport.client import RemotingClient, split_address
from remoting.transport.connection import Handler, Intake, RemotingConnection
from remoting.transport.identity import component_identity
from remoting.transport.server import Place, RemotingServer, ServerLimits
from remoting.transport.tasks import TaskOwner
from remoting.transport.tls import dialling_context, tls_server
from remoting.transport.watch import Watch

log = logging.getLogger(__name__)

_EXPIRE_MS = 1000
_CLUSTER = "DefaultCluster"
_SNAPSHOT_MS = 60_000  # the peers report what becomes of a snapshot; this is for reports that never come


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _seal(secret: bytes, owner: str, password: str) -> str:
    return seal(secret, owner, password, secrets.token_bytes(NONCE_BYTES))


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Controller:
    """One controller and name server."""

    def __init__(self, settings: ControllerSettings, disk: Disk) -> None:
        """Read the disk and build everything; nothing runs yet.

        Raises SettingsError for another node's directory, LostLog for one that lost what this node promised, and CorruptedFile
        for one that nobody can say anything about.
        """
        self._settings = settings
        self._live = live = LiveSettings(settings, disk)
        self._counters = Counters()
        self._tasks = TaskOwner("controller")
        known = load_secrets(settings.cluster_secret) if settings.cluster_secret is not None else ()
        identity = component_identity(known, dialling_context(settings.tls))
        self._guard = Guard(settings.access, settings.access.cluster or _CLUSTER, known, _wall_ms, settings.address)
        self._watch = Watch(settings.unfinished)
        self._sealer = Sealer(known, _seal)
        if settings.first_user is not None:
            check_first_user(settings.first_user)
        self._first_user = FirstUser(settings.first_user, disk, settings.data, lambda: secrets.token_urlsafe(18))
        self._makes_first_user = False
        self._no_first_user_since = ""
        self._sealed_anew = False
        self._client = RemotingClient(identity=identity)
        self._pushes = Pushes(self._client, self._counters, self._tasks)
        self._table = HeartbeatTable(**asdict(settings.liveness))
        self._machine = ControllerMachine(
            {
                "replicas": self._recorded,
                "access": self._access_changed,
                "features": self._level_recorded,
                "placements": self._placement_recorded,
            }
        )
        self._routes = RouteTable(self._committed_epoch)
        self._name_server = NameServer(self._routes, KvConfig(disk), live.nameserver, self._pushes.push, _now_ms)
        founders = () if settings.join else tuple(settings.peers)
        file = RaftLogFile(disk, settings.raft.group, settings.node_id, founders)
        recovered = file.open()
        self._members = Members(
            recovered.identity.node_id, settings.peers, recovered.identity.lives, Acquaintances(disk)
        )
        self._driver = driver = self._make_driver(file, recovered)
        events = PeerEvents(
            self._received,
            driver.node.core.report_unreachable,
            lambda node, delivered: driver.report_snapshot(node, delivered=delivered),
            driver.peer_lost,
            lambda: driver.fail(MemberRemoved()),
            lambda: driver.node.core.log.last_index > 0,
            lambda reason: driver.fail(LostLog(reason)),
            lambda reason: driver.fail(CopiedDirectory(reason)),
        )
        self._peers = Peers(
            settings.raft.group, self._members, events, self._tasks, identity, self._machine.highest_level
        )
        self._raising = Raising(
            self._driver, self._machine, self._peers.level, settings.raft.decide_timeout_ms, self._tasks
        )
        self._returns = Returns(settings.raft.group, driver, self._members, self._tasks)
        self._groups = BrokerGroups(self._decided, self._table, _now_ms, _wall_ms)
        hand_over = partial(ask_to_hand_over, self._client, settings.raft.decide_timeout_ms, needs_answer=True)
        self._elections = Elections(live, self._driver, self._groups, self._counters, self._tasks, hand_over)
        self._placing = Placing(self._driver, self._machine, self._groups, self._routes, self._pushes, self._tasks)
        self._heartbeats = HeartbeatProcessor(self._table, self._elections, self._name_server, _now_ms, self._counters)
        host, port = split_address(settings.address)
        self._server = RemotingServer(
            Place(
                host,
                port,
                tls=tls_server(settings.tls),
                further_hosts=(settings.further_host,) if settings.further_host else (),
            ),
            self._guard.protect(self._handlers()),
            limits=ServerLimits(intake=Intake(self._watch, self._guard.may_send_much)),
            closed=self._connection_closed,
        )
        self._exporter = self._make_exporter(port)
        self._expiry: Beat | None = None

    async def run(self) -> None:
        """Serve until cancelled. Raises SettingsError when the port is taken, StorageError when the disk fails, and LostLog when
        it turns out that this node lost what it promised."""
        await self._server.start()
        log.info(
            "controller %s of group %s listens on %s",
            self._settings.node_id,
            self._settings.raft.group,
            self._settings.address,
        )
        if self._exporter is not None:
            await self._exporter.start()
        self._elections.scan()
        self._placing.scan()
        self._expire()
        self._tasks.spawn(self._peers.greet(), "introduce this node to the others")
        driving = asyncio.get_running_loop().create_task(self._driver.run())
        try:
            await asyncio.shield(driving)
        except asyncio.CancelledError:
            await self._hand_over()
            raise
        finally:
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            await self._close()

    async def _hand_over(self) -> None:
        """A leader that stops lets another one lead first, so that nobody has to miss it."""
        settings = self._settings.raft
        try:
            await self._driver.hand_over(settings.election_ticks * settings.tick_ms)
        except LogboomError as error:
            log.info("stopping without a successor: %s", error)

    async def _close(self) -> None:
        self._elections.close()
        self._placing.close()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._exporter is not None:
            await self._exporter.close()
        await self._server.close()
        self._watch.close()
        await self._tasks.close()
        self._peers.close()
        self._client.close()

    # Building

    def _make_driver(self, file: RaftLogFile, recovered: Recovered) -> RaftDriver:
        settings = self._settings.raft
        core = RaftCore(
            recovered.identity.node_id,
            recovered.founders,
            recovered.log,
            recovered.hard_state,
            CoreSettings(
                election_ticks=settings.election_ticks,
                heartbeat_ticks=settings.heartbeat_ticks,
                calm_heartbeat_ticks=settings.calm_heartbeat_ticks,
                calm_after_ticks=settings.calm_after_ticks,
                snapshot_ticks=_SNAPSHOT_MS // settings.tick_ms,
            ),
            random.Random(),
        )
        node = RaftNode(
            core,
            self._machine,
            compact_after_entries=settings.compact_after_entries,
            keep_entries=settings.keep_entries,
        )
        return RaftDriver(
            node,
            file,
            DriverEvents(self._send, self._raft_changed, self._configured),
            settings.tick_ms,
            founding=(secrets.token_hex(8), self._settings.peers),
        )

    def _make_exporter(self, port: int) -> MetricsExporter | None:
        metrics_port = self._settings.metrics.scrape_port(port)
        if metrics_port is None:
            return None
        exposition = Exposition(
            self._settings, self._driver, self._groups, self._counters, self._guard, self._watch.families
        )
        return MetricsExporter(self._settings.metrics.host, metrics_port, exposition.render)

    def _handlers(self) -> Mapping[int, Handler]:
        timeout_ms = self._settings.raft.decide_timeout_ms
        hand_over = partial(ask_to_hand_over, self._client, timeout_ms)
        replicas = ReplicasProcessor(
            self._live.election, self._driver, self._groups, self._counters, timeout_ms, hand_over
        )
        controllers = ControllersView(self._settings.node_id, self._driver, self._members)
        views = ViewsProcessor(
            self._live,
            controllers,
            self._groups,
            self._routes,
            self._counters,
            self._machine,
        )
        membership = MembershipProcessor(self._settings, self._driver, self._members, self._counters)
        self._access = AccessProcessor(
            self._guard, self._sealer, self._driver, self._machine, timeout_ms, self._counters
        )
        placements = PlacementsProcessor(self._placing, self._groups, lambda: self._machine.placements)
        serving = Serving(self._driver, self._counters, self._tasks)
        return bind(
            CONTROLLERS,
            serving.handlers(self._access.handles()),
            serving.handlers(membership.handles()),
            serving.handlers(self._returns.handles()),
            serving.measured(self._heartbeats.handles()),
            serving.measured(replicas.handles()),
            serving.measured(views.handles()),
            serving.handlers(placements.handles()),
            serving.handlers(AnchorsProcessor(self._driver, self._machine, timeout_ms).handles()),
            self._name_server.handlers(),
            self._peers.handlers(),
        )

    # Events

    def _send(self, message: Message) -> None:
        self._counters.raft_messages_sent += 1
        self._peers.send(message)

    def _received(self, message: Message) -> None:
        self._counters.raft_messages_received += 1
        self._driver.receive(message)

    def _configured(self, configuration: Configuration) -> None:
        self._members.configured(configuration)
        self._peers.configured()

    def _raft_changed(self, state: SoftState) -> None:
        self._elections.raft_changed(state)
        self._look_for_users()

    def _committed_epoch(self, broker_name: str) -> int:
        group = self._machine.replicas.groups.get(broker_name)
        return group.master_epoch if group else 0

    def _decided(self) -> ReplicasState:
        return self._machine.replicas

    def _access_changed(self, _record: object, state: AccessState) -> None:
        self._guard.update(state)

    def _placement_recorded(self, record: PlacementRecord | None, state: PlacementsState) -> None:
        if record is not None:
            self._placing.recorded(record, state)

    def _recorded(self, record: Record | None, state: ReplicasState) -> None:
        """A decided fact, on every controller; of a snapshot, or while the log is replayed at start, nobody needs to hear."""
        if record is None:
            return
        group = state.groups.get(record.broker_name)
        if isinstance(record, MasterElected) and group is not None and group.master is not None:
            self._routes.fence(record.broker_name, group.master.address)
        if not self._driver.is_serving or group is None:
            return
        if isinstance(record, MasterElected):
            self._counters.masters_elected += 1
            log.info("%s: broker %d is master of epoch %d", record.broker_name, record.broker_id, record.master_epoch)
            if record.unclean is not None:
                self._counters.unclean_elections += 1
                log.error("%s: unclean election: %s", record.broker_name, record.unclean.sentence)
            if self._live.election.value.notify:
                # When all records of the entry are applied: the set of the new master is among those behind this one.
                asyncio.get_running_loop().call_soon(self._tell_of_master, record.broker_name)
        elif isinstance(record, MasterLost):
            self._counters.masters_lost += 1
            log.warning("%s: no master in epoch %d", record.broker_name, record.master_epoch)
        elif isinstance(record, SyncStateSetChanged):
            self._counters.sync_state_sets_changed += 1
            log.info(
                "%s: sync-state set %s, version %d",
                record.broker_name,
                list(group.sync_state_set),
                group.sync_state_set_epoch,
            )

    def _tell_of_master(self, broker_name: str) -> None:
        group = self._machine.replicas.groups.get(broker_name)
        if group is not None:
            tell_of_master(self._pushes, self._groups, group)

    def _level_recorded(self, _record: LevelRaised | None, features: Features) -> None:
        self._table.counts_lives = features.level >= LIVES_LEVEL

    def _connection_closed(self, connection: RemotingConnection) -> None:
        self._peers.connection_closed(connection)
        self._heartbeats.connection_closed(connection)
        self._name_server.connection_closed(connection)

    def _expire(self) -> None:
        self._expiry = on_next_beat(_EXPIRE_MS, self._expire)
        self._name_server.expire()
        self._raising.look()
        self._returns.look()
        self._look_for_users()

    def _look_for_users(self) -> None:
        if not self._driver.is_serving:
            self._sealed_anew = False
            return
        if not self._sealed_anew:
            self._sealed_anew = True
            self._tasks.spawn(self._seal_anew(), "seal secrets anew")
        if self._guard.is_on and not self._machine.access.version:
            self._tasks.spawn(self._make_first_user(), "make the first user")

    async def _seal_anew(self) -> None:
        try:
            await self._access.reseal()
        except LogboomError as error:
            log.warning("secrets of users are not sealed anew: %s", error)

    async def _make_first_user(self) -> None:
        if self._makes_first_user:
            return
        self._makes_first_user = True
        try:
            name, password = self._first_user.get()
            if await self._access.create_first(name, password):
                self._first_user.made(name)
            else:
                self._first_user.not_needed()
        except LogboomError as error:
            if str(error) != self._no_first_user_since:  # it is tried again every second
                log.warning("the first user is not made yet: %s", error)
            self._no_first_user_since = str(error)
        finally:
            self._makes_first_user = False
