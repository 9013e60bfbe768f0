"""The whole broker on a page: builds the parts, gives each the two or three things it uses, starts and stops them in order.

    start   store recovered -> flusher -> remoting port -> gRPC port -> replication (from now on others are told where we are)
    stop    replication (role and routes) -> ports -> flusher -> store checkpointed and closed

A failure of the disk ends the process: what is durable is unknown from then on, and a restart finds out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import replace

from brokerd.cluster.access_copy import AccessCopy, AccessFollower
from brokerd.cluster.directory import Directory
from brokerd.cluster.gatekeeper import Gatekeeper, GateParts
from brokerd.cluster.placements import PlacementFollower
from brokerd.cluster.routes import Routes
from brokerd.composition.core import BrokerCore, open_store
from brokerd.composition.environment import BrokerIdentity, CoreSettings, Environment, Tier, steady_ms, wall_ms
from brokerd.composition.exposition import Exposition, Sources
from brokerd.composition.ground import make_ground
from brokerd.composition.grpc_families import client_times
from brokerd.composition.handlers import Parts, build_processors, build_retry, build_sends
from brokerd.composition.live_settings import LiveSettings
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.composition.mounting import Mount
from brokerd.composition.room import RoomReport
from brokerd.composition.scrubbing import RangeFetcher, build_scrubber, scrub_state
from brokerd.composition.settings import BrokerSettings
from brokerd.consuming.queue_locks import QueueLocks
from brokerd.loop.aside import HelperThreads
from brokerd.loop.believed_clock import BelievedClock
from brokerd.loop.cold_line import Clocks
from brokerd.loop.giving_way import GivingWay
from brokerd.loop.short_timer import ShortTimer
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.tables import Change
from brokerd.native import library
from brokerd.native.carrier import carrier_of
from brokerd.native.syncs import NativeSyncs
from brokerd.pop.survey import PopSurvey
from brokerd.processors.administration.access import AccessProcessor
from brokerd.processors.administration.cleanup import CleanupProcessor
from brokerd.processors.administration.lag_survey import LagSurvey
from brokerd.processors.administration.runtime_info import SAMPLE_S, Figures, RuntimeInfo
from brokerd.processors.offsets.awaited import AwaitedMaster
from brokerd.processors.pass_on import PassOn
from brokerd.processors.pulling.asked import asked_agrees
from brokerd.processors.pulling.laid_out import layout_agrees
from brokerd.processors.registry import handlers_of, on_master
from brokerd.processors.rights import may_publish
from brokerd.processors.sending.admission import Admission
from brokerd.processors.sending.replies import ReplyProcessor
from brokerd.proxy.access import may_end
from brokerd.proxy.answers import answers_agree
from brokerd.proxy.http2.native_hpack import block_readers_agree
from brokerd.proxy.methods.base import Services
from brokerd.proxy.native_sends import sends_agree
from brokerd.proxy.placed import Placed
from brokerd.proxy.proxy import GrpcProxy, ProxyOptions
from brokerd.repair.scrubber import Machine
from brokerd.repair.serve import RangeServer
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.replica import Replica, Surroundings, Tail
from brokerd.replication.roles.effects import Role
from brokerd.sending.native_check import send_agrees
from brokerd.sending.native_signed import signed_agrees
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.index.index_file import items_agree
from brokerd.store.index.postings import postings_agree
from brokerd.store.log.flusher import Flusher
from brokerd.store.log.native_derive import derive_agrees
from brokerd.store.log.record_checks import reads_agree
from brokerd.store.log.run_copies import copies_agree
from brokerd.store.log.syncs_in_c import SyncsInC
from brokerd.store.native_again import again_agrees
from brokerd.store.queues.named_tails import named_tails_agree
from brokerd.store.queues.native_tails import tails_agree
from brokerd.store.store_reads import Suspicion
from brokerd.tiers.index.keys import keys_agree
from brokerd.tiers.mounting.keeping import StateKeeper
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.objects.late import open_sooner_or_later
from brokerd.tiers.upload.uploader import Loop as TierLoop
from brokerd.timers.files.native_chain import walk_agrees
from brokerd.timers.native_codes import codes_agree
from brokerd.timers.native_due_entries import due_entries_agree
from brokerd.timers.native_said import said_agrees
from remoting import codes
from remoting.access.secret_file import load_secrets
from remoting.disk import LocalDisk
from remoting.errors import CorruptedFile, StorageError
from remoting.exporter import MetricsExporter
from remoting.guarding.guard import Guard
from remoting.names import SCHEDULE_TOPIC
from remoting.record.hosts import pack_host
from remoting.registry import BROKERS, bind
from remoting.tier.names import group_directory
from remoting.transport.client import RemotingClient, split_address
from remoting.transport.connection import Intake, RemotingConnection
from remoting.transport.identity import component_identity
from remoting.transport.server import Place, RemotingServer, each
from remoting.transport.tasks import TaskOwner
from remoting.transport.tls import dialling_context, tls_server
from remoting.transport.watch import Watch

log = logging.getLogger(__name__)

_BACKGROUND_FLUSH_MS = 200
_TIER_THREADS = 4  # that copy messages for uploads, and look at what was fetched
_LAST_STATE_S = 1.0


def choose_native(settings: BrokerSettings) -> library.Choice:
    """Where the broker's loops over messages are to run. Builds the library if need be. Raises SettingsError."""
    checks = [
        reads_agree,
        copies_agree,
        derive_agrees,
        tails_agree,
        named_tails_agree,
        codes_agree,
        due_entries_agree,
        walk_agrees,
        said_agrees,
        again_agrees,
        send_agrees,
        signed_agrees,
        answers_agree,
        sends_agree,
        block_readers_agree,
        keys_agree,
        postings_agree,
        items_agree,
        asked_agrees,
        layout_agrees,
    ]
    return library.choose(settings.kernel.mode, checks)


def open_objects(settings: BrokerSettings) -> ObjectStore | None:
    """The object store of the broker group, if its settings name one. Raises SettingsError for a url of no kind that there is."""
    if not settings.tiers.url:
        return None
    return open_sooner_or_later(settings.tiers, group_directory("", settings.cluster, settings.name))


class Broker:
    """One broker process. Make it on the loop, `start`, wait for `failed`, `stop`."""

    def __init__(
        self, settings: BrokerSettings, native: library.Choice, *, ask_first: bool = False, mount: Mount | None = None
    ) -> None:
        """Recover the store; blocks while it does. Loops over messages run as `native` says. Raises SettingsError, or
        CorruptedFile, which leaves the directory to who can mend it; with `ask_first` also of a suspect log. With a `mount` it
        serves that group from its tier, alone."""
        self._mount = mount
        loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = loop.create_future()
        self._settings = settings
        objects = open_objects(settings)
        self._disk = LocalDisk(settings.data)
        try:
            self._live = LiveSettings(settings, self._disk)
        except CorruptedFile:
            self._disk.close()
            raise
        host, port = split_address(settings.listen)
        store_host = (host if _is_numeric(host) else "127.0.0.1", port)
        names = BrokerNames(settings.cluster, settings.name, settings.listen, settings.ha_listen, settings.grpc_listen)

        secrets = load_secrets(settings.cluster_secret) if settings.cluster_secret is not None else ()
        if not secrets:
            log.warning("no --cluster-secret: this broker can neither follow a replica of its cluster nor be followed")
        dialler = component_identity(secrets, dialling_context(settings.tls))
        tls = tls_server(settings.tls)
        self._guard = Guard(settings.access, settings.cluster, secrets, wall_ms, settings.listen)
        self._watch = Watch(settings.unfinished)
        self._tasks = TaskOwner("broker")
        self._short_timer = ShortTimer()
        self._connections: set[RemotingConnection] = set()
        self.clients = ClientRegistry(steady_ms, wall_ms, may_publish(self._guard))

        identity = BrokerIdentity(
            settings.cluster, settings.name, pack_host(*store_host), development=settings.send.auto_create_topics
        )
        core_settings = CoreSettings(
            settings.store,
            settings.journal,
            settings.pop,
            self._live.transactions,
            settings.delay,
            settings.store.delays,
            self._live.timers,
            self._live.retention,
            self._live.tiers,
        )
        environment = Environment(
            self._disk,
            loop,
            wall_ms,
            random.Random(),
            time.process_time,
            native.library,
            tier=Tier(
                objects,
                TierLoop(
                    loop,
                    self._tasks.spawn,
                    asyncio.sleep,
                    wall_ms,
                    HelperThreads(_TIER_THREADS, "tier helper").run,
                    Clocks(time.perf_counter, time.thread_time),
                    self._short_timer.call,
                    GivingWay(time.perf_counter),
                ),
                mount.group if mount is not None else None,
            )
            if objects is not None
            else None,
        )
        try:
            ground = make_ground(identity, core_settings, environment)
            store = open_store(ground, ask_first=ask_first)
        except CorruptedFile:
            self._disk.close()  # whoever can mend it opens it again
            raise
        store.failure_listeners.append(self._fail)
        ack_after_flush = settings.replication.ack_after_flush
        if ack_after_flush:
            store.commitlog.write_ahead()
        self._syncs = None
        if ack_after_flush and native.library is not None:
            self._syncs = SyncsInC(store.commitlog, NativeSyncs(native.library))
        self._flusher = Flusher(store, pause_ms=0 if ack_after_flush else _BACKGROUND_FLUSH_MS, in_c=self._syncs)
        replicated_log = StoreReplicatedLog(store, self._flusher.request)
        try:
            self.replica = replica = Replica(
                self._live.replication.value,
                Surroundings(
                    names,
                    settings.controllers,
                    self._disk,
                    self._topics,
                    secrets if mount is None else (),  # nobody copies a mount's log: it is not the group's
                    identity=dialler,
                    tls=tls,
                    has_room=RoomReport(store, steady_ms).has_room,
                ),
                replicated_log,
                confirm_offset=store.confirm_offset,
                tail=Tail(
                    replicated_log.keeps_tail(acked_after_flush=ack_after_flush),
                    store.suspicion.confirmed if store.suspicion is not None else -1,
                    store.judged,
                ),
            )
            replica.on_failure(self._fail)
            self._live.replication.subscribe(replica.reconfigure)
            self._flusher.listeners.append(replica.on_flushed)
            replica.add_damage_listener(lambda damage: store.tell_damage(Suspicion(damage.offset, size=damage.size)))
            store.position_holders.append(replica.held_offset)
            store.expected_holders.append(replica.expected_offset)
            environment = replace(environment, other_clocks_ms=replica.witnesses_ms)
            core = BrokerCore(replace(ground, environment=environment), self.clients, replicated_log, replica)
        except CorruptedFile:
            store.abandon()
            self._disk.close()
            raise
        self.core = core
        self._housekeeper = Housekeeper(
            store,
            self._disk,
            settings.store,
            self._live.retention,
            BelievedClock(wall_ms, loop.time, replica.other_clocks_ms, store.left_behind_ms),
            core.config.write_behind,
        )
        self.clients.gone_listeners.append(core.pop.client_gone)

        self._client = RemotingClient(unreachable_ms=settings.replication.silence_limit_ms, identity=dialler)
        self._directory = Directory(
            self._client, settings.controllers, self.replica, settings.name, settings.listen, settings.grpc_listen
        )
        group = f"{settings.cluster}#{settings.name}".encode()
        fetcher = RangeFetcher(self._client, group, secrets, lambda: replica.epochs)
        machine = Machine(self._disk, time.monotonic, time.process_time, wall_ms)
        self._scrubber = scrubber = build_scrubber(core, machine, self._live.scrub, fetcher, self._directory.peers)
        self._ranges = RangeServer(secrets, group, store.commitlog, lambda: replica.epochs)
        self._access = AccessFollower(AccessCopy(self._disk, self._guard), self._client, settings.controllers)
        self._directory.view_listeners.append(self._access.look)
        self._placements = PlacementFollower(
            core.placements, self.replica, core.metadata.topics, self._access.ask, settings.name
        )
        replica.add_role_listener(lambda _role, _epoch: self._placements.wake())
        self._gatekeeper = Gatekeeper(
            GateParts(
                settings.name,
                core.pop.gate,
                core.pop.answers,
                core.placements.handovers,
                core.metadata.topics,
                core.placements.prune,
                core.pop.now_ms,
            ),
            self._client,
            lambda: replica.is_master,
        )
        self._directory.view_listeners.append(self._gatekeeper.look)
        self._routes = Routes(core.metadata, self._directory.own_group, self._directory.query_route, steady_ms)
        locks = QueueLocks()
        self._retry = build_retry(core, locks)
        self._carrier = carrier_of(native.library)
        if self._carrier is not None:
            core.store.commitlog.turns.looks.enders.append(self._carrier.finish_all)
        self._sends, send_turns = build_sends(
            core,
            self._retry,
            pack_host(*store_host),
            self.replica.when_topics_known,
            loop,
            make_topics=settings.send.auto_create_topics,
            beside_loop=settings.send.beside_loop,
            library=native.library,
            carrier=self._carrier,
            syncs=self._syncs,
        )
        replica.add_meaning_listener(self._sends.meaning_changes)
        replica.count_also(lambda: self._sends.waiting_elsewhere)
        if self._guard.is_on and native.library is not None:
            self._sends.admit_by(Admission(self._guard, native.library))
        self._replies = ReplyProcessor(
            core.sender, self.clients, pack_host(*store_host), wall_ms, stores=settings.send.store_replies
        )
        core.metadata.listeners.append(self._topics_changed)

        grpc_host, grpc_port = split_address(settings.grpc_listen)
        self._proxy = GrpcProxy(
            grpc_host,
            grpc_port,
            Services(
                core.sender,
                core.pop,
                core.metadata,
                self.clients,
                self._routes,
                core.transactions,
                core.timed,
                core.store,
                core.progress,
                core.counters,
                settings.name,
                may_end(self._guard),
                core.cold_line,
            ),
            self._client,
            self.replica,
            ProxyOptions(
                settings.grpc,
                settings.forward,
                settings.pop.auto_create_groups,
                self._guard,
                settings.tls,
                native.library,
                Placed(core.placements, self._directory),
                self._watch,
                send_turns,
            ),
        )
        core.metadata.listeners.append(self._proxy.metadata_changed)
        core.arrival_listeners.append(self._proxy.arrived)
        if core.tiers.cold is not None:
            core.tiers.cold.listeners.append(self._proxy.fetched)
        replica.add_role_listener(self._proxy.role_changed)
        self._processors = build_processors(
            Parts(
                names,
                core,
                self.replica,
                self.clients,
                self._routes,
                locks,
                self._retry,
                self._live,
                loop,
                self._connections.__len__,
                lambda: scrub_state(scrubber),
                native.mode,
                native.library,
                self._carrier,
                lambda: client_times(self._proxy.figures().clients, wall_ms()),
                self._guard,
                settings.flow.pull_wait_ms,
            )
        )
        self._proxy.endpoint.catch_up = self._sends.catch_up
        self._cleanup = CleanupProcessor(
            core.store,
            self._housekeeper,
            core.metadata,
            core.metadata.names.is_system_topic,
            lambda: replica.is_master,
            wall_ms,
        )
        self._runtime_info = RuntimeInfo(self._figures, core.counters)
        handlers = bind(
            BROKERS,
            handlers_of(self._processors),
            self.replica.handlers(),
            AccessProcessor(self._guard, self._access, self._tasks).handlers(),
            self._cleanup.handlers(),
            self._placements.handlers(),
            self._ranges.handlers(),
            {
                codes.SEND_MESSAGE: self._sends.handle_long_names,
                codes.SEND_MESSAGE_V2: self._sends.handle,
                codes.SEND_BATCH_MESSAGE: self._sends.handle,
                codes.SEND_REPLY_MESSAGE: each(self._replies.handle_long_names),
                codes.SEND_REPLY_MESSAGE_V2: each(self._replies.handle),
                codes.PROXY_CALL: self._proxy.handle_forwarded,
                codes.GET_BROKER_CONFIG: each(self._live.handle_get),
                codes.UPDATE_BROKER_CONFIG: each(self._live.handle_update),
                codes.GET_BROKER_RUNTIME_INFO: each(self._runtime_info.handle),
            },
        )
        if mount is not None:
            handlers = mount.protect(handlers)
        # Requests that are signed are another one each time.
        quick = self._processors.quick_pulls if mount is None and not self._guard.is_on else None
        pass_on = PassOn(self._client, lambda: replica.master_address, self._tasks)
        awaited = AwaitedMaster(replica, self._client, loop, self._tasks)
        self._server = RemotingServer(
            Place(host, port, settings.remoting.vip_port(port), tls),
            self._guard.protect(on_master(handlers, lambda: replica.is_master, pass_on, awaited)),
            limits=replace(
                settings.flow.limits(),
                intake=Intake(self._watch, self._guard.may_send_much, quick, self._carrier, self._sends.catch_up),
            ),
            closed=self._connection_closed,
            # Loops in Python decode anyway; there signed sends come to the handlers, decoded once.
            taker=self._sends if mount is None and (native.library is not None or not self._guard.is_on) else None,
            connections=self._connections,
        )
        self._exporter = self._make_exporter(port, native.mode)
        self._expirer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Serve. Raises SettingsError when a port is taken."""
        if self._mount is not None:
            self._tasks.spawn(self._mount.keep(self._fail), "keep the lease of this mount")
        self._flusher.start()
        self._housekeeper.start()
        self._short_timer.start(asyncio.get_running_loop())
        if self._carrier is not None:
            self._carrier.start(asyncio.get_running_loop())
        await self._server.start()
        await self._proxy.start()
        if self._exporter is not None:
            await self._exporter.start()
        self._directory.start()
        self._placements.start()
        self._gatekeeper.start()
        self._scrubber.start()
        await self.replica.start(*split_address(self._settings.ha_listen))
        self._expire_clients()
        log.info(
            "%s serves remoting on %s, gRPC on %s, replicas on %s",
            self._settings.name,
            self._settings.listen,
            self._settings.grpc_listen,
            self._settings.ha_listen,
        )

    async def stop(self) -> None:
        """Leave the cluster, answer who waits, and make everything durable."""
        if self._expirer is not None:
            self._expirer.cancel()
        states = self.core.tiers.states
        self._processors.pull.settle()  # what it commits is taken now, and not any more behind this
        self._sends.end_lending()
        self.core.close()
        await self.replica.stop()
        await self._scrubber.stop()
        await self._directory.close()
        await self._placements.close()
        await self._gatekeeper.close()
        await self._access.close()
        await self._tasks.close()
        if self._exporter is not None:
            await self._exporter.close()
        await self._proxy.close()
        await self._server.close()
        if self._carrier is not None:
            self._carrier.stop()
        self._short_timer.close()
        self._watch.close()
        if states is not None:
            await _write_last(states)
        self._client.close()
        await self._cleanup.close()
        await self._housekeeper.stop()
        await self._flusher.stop()
        if self.failed.done():
            self.core.store.abandon()
        else:
            self._write_config()
            self.core.store.close()
        self._disk.close()
        if self._mount is not None:
            await self._mount.rest()

    def _write_config(self) -> None:
        try:
            self.core.config.write()
        except StorageError as error:  # who reads them finds older ones; our own next start does not read them
            log.warning("the tables in config/ stay behind: %s", error)

    def _make_exporter(self, port: int, kernel: str) -> MetricsExporter | None:
        settings = self._settings
        metrics_port = settings.metrics.scrape_port(port)
        if metrics_port is None:
            return None
        sources = Sources(
            self.core,
            self.replica.state,
            self._flusher.durations,
            self._connections.__len__,
            lambda: self._processors.pull.waiting_count,
            self._disk.usage,
            LagSurvey(lambda: self._processors.state.walk(), asyncio.get_running_loop()).lags,
            self._proxy.figures,
            PopSurvey(self.core.pop.ledger, self.core.pop.gate, asyncio.get_running_loop(), wall_ms),
            wall_ms,
            lambda: scrub_state(self._scrubber),
            self._guard,
            kernel,
            self._watch.families,
        )
        return MetricsExporter(
            settings.metrics.host, metrics_port, Exposition(settings.cluster, settings.name, sources).render
        )

    # ---- events that concern several parts

    def _topics(self) -> Mapping[str, TopicConfig]:
        return self.core.metadata.topics()

    def _topics_changed(self, change: Change) -> None:
        if change.touches_topics:
            self.replica.topics_changed()
            self._placements.topics_changed()

    def _connection_closed(self, connection: RemotingConnection) -> None:
        self.clients.connection_closed(connection)
        self._processors.connection_closed(connection)
        self._proxy.remoting_closed(connection)

    def _figures(self) -> Figures:
        core, commitlog, state = self.core, self.core.store.commitlog, self.replica.state()
        return Figures(
            core.counters.in_messages,
            core.out_messages,
            core.counters.in_bytes,
            commitlog.min_offset,
            commitlog.end_offset,
            commitlog.flushed_offset,
            core.store.dispatch_offset,
            core.store.begin_times.at(commitlog.min_offset),
            self.replica.role in (Role.MASTER, Role.REPLICA),
            self._disk.usage(),
            sum(core.counters.refused.values()) + sum(state.unacknowledged.values()),
            core.counters.missed + core.pop.counters.empty_pops,
            state.waiting_sends,
            state.waited_ms,
            {
                level: (done, core.store.max_offset(SCHEDULE_TOPIC, level - 1))
                for level, done in core.schedule.offsets().items()
            },
        )

    def _expire_clients(self) -> None:
        self._expirer = asyncio.get_running_loop().call_later(SAMPLE_S, self._expire_clients)
        self.clients.expire()
        self._runtime_info.sample()

    def _fail(self, reason: object) -> None:
        if not self.failed.done():
            self.failed.set_result(str(reason))


async def _write_last(states: StateKeeper) -> None:
    """What consumers did since the last time is in the tier, if that answers."""
    try:
        async with asyncio.timeout(_LAST_STATE_S):
            await states.write()
    except (ObjectStoreError, TimeoutError) as error:
        log.warning("the last consumer offsets are not in the tier: %s", error)


def _is_numeric(host: str) -> bool:
    with contextlib.suppress(ValueError):
        pack_host(host, 0)
        return True
    return False
