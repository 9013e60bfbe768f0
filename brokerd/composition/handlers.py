"""The request handlers of a broker, built from its core: which processor uses which parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from brokerd.cluster.routes import Routes
from brokerd.composition.core import BrokerCore
from brokerd.composition.environment import steady_ms, wall_ms
from brokerd.composition.live_settings import LiveSettings
from brokerd.composition.retention_figures import retention_state
from brokerd.composition.tier_figures import tier_state, tiered_queues
from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.consuming.key_queries import KeyQueries
from brokerd.consuming.queue_locks import QueueLocks
from brokerd.consuming.read_place import ReadPlace
from brokerd.loop.scheduler import Scheduler
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.service import DataVersion, MetadataService
from brokerd.metadata.tables import Change
from brokerd.native.carrier import Carrier
from brokerd.native.library import Library
from brokerd.pop.reading import message_group_at
from brokerd.processors.administration.groups import GroupProcessor
from brokerd.processors.administration.inspection import InspectionProcessor
from brokerd.processors.administration.messages import MessageProcessor
from brokerd.processors.administration.state import StateFigures, StateParts, StateProcessor
from brokerd.processors.administration.timers import TimerProcessor
from brokerd.processors.administration.topics import TopicProcessor
from brokerd.processors.clients.assignments import AssignmentProcessor
from brokerd.processors.clients.connections import ConnectionProcessor
from brokerd.processors.clients.heartbeats import ClientProcessor
from brokerd.processors.clients.locks import LockProcessor
from brokerd.processors.clients.relay import RelayProcessor
from brokerd.processors.offsets.committed import OffsetProcessor
from brokerd.processors.offsets.consumption import Consumption, ConsumptionProcessor
from brokerd.processors.offsets.resets import ResetProcessor
from brokerd.processors.pop.handovers import HandoverProcessor
from brokerd.processors.pop.pop import PopProcessor
from brokerd.processors.pulling.bulk import BulkProcessor
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.cold_line import ColdRequests
from brokerd.processors.pulling.laid_out import AnswerLayout
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.quick import QuickPulls
from brokerd.processors.registry import Processors
from brokerd.processors.sending.general import GeneralSends
from brokerd.processors.sending.recalls import RecallProcessor, TimerProgress
from brokerd.processors.sending.send import SendProcessor
from brokerd.processors.sending.send_back import SendBackProcessor
from brokerd.processors.sending.transactions import TransactionProcessor
from brokerd.processors.sliced import Slices
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.replica import Replica
from brokerd.retry.service import RetryRules, RetryService
from brokerd.sending.boundary import SendKernel
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.kernel import Kernel
from brokerd.sending.lending import SendLending
from brokerd.sending.lent import InC
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.stored_form import KernelRules
from brokerd.sending.turns import SendTurns
from brokerd.store.log.syncs_in_c import SyncsInC
from brokerd.timers.finder import LookedIn, TimerFinder
from remoting.facts.broker_state import ClientTimesState, ScheduleState, ScrubState
from remoting.guarding.guard import Guard
from remoting.names import TIMER_TOPIC


@dataclass(frozen=True, slots=True)
class Parts:
    """What answers are made of. `connections` counts the open remoting connections; a pull waits `pull_wait_ms` for its turn."""

    names: BrokerNames
    core: BrokerCore
    replica: Replica
    clients: ClientRegistry
    routes: Routes
    locks: QueueLocks
    retry: RetryService
    live: LiveSettings
    scheduler: Scheduler
    connections: Callable[[], int]
    scrub: Callable[[], ScrubState]
    kernel: str
    library: Library | None
    carrier: Carrier | None
    client_times: Callable[[], tuple[ClientTimesState, ...]]
    guard: Guard
    pull_wait_ms: int


def build_processors(parts: Parts) -> Processors:
    """All processors beside the senders."""
    core, replica, clients, scheduler, live = parts.core, parts.replica, parts.clients, parts.scheduler, parts.live
    metadata, store, pop, counters, progress = core.metadata, core.store, core.pop, core.counters, core.progress
    broker_name, creates_groups = parts.names.broker_name, pop.settings.auto_create_groups

    def data_version() -> DataVersion:
        return metadata.data_version(replica.master_epoch)

    def group_version() -> DataVersion:
        return metadata.group_data_version(replica.master_epoch)

    def schedule() -> ScheduleState:
        given_back = core.retry_counters
        return replace(core.schedule.state(), returned=given_back.returned, dead_lettered=given_back.dead_lettered)

    def timer_progress() -> TimerProgress:
        queue_end = core.record_log.queue_range(TIMER_TOPIC, 0)[1]
        log_position = next((each.durable_position for each in core.timer_files), 0)
        return TimerProgress(core.timers.table.cursor.due_ms, log_position, queue_end)

    waits = FetchWaits(scheduler)
    queries = KeyQueries(store, core.background, scheduler, core.tiers.index if store.cold is not None else None)
    finder = TimerFinder(
        core.record_log,
        LookedIn(next(iter(core.timer_files), None), core.timers.stowed),
        core.timers.table,
        lambda: core.timers.least_window_ms,
        core.timers.now_ms,
        scheduler,
    )

    figures = StateFigures(
        dispatched_offset=lambda: store.dispatch_offset,
        totals=core.totals,
        connections=parts.connections,
        transactions=core.transactions.state,
        schedule=schedule,
        timers=core.timers.state,
        timer_topics=core.timers.waiting_by_topic,
        tier=lambda: tier_state(core.tiers, store),
        tiered_queue=tiered_queues(core.tiers, store),
        retention=lambda: retention_state(store, live.retention.value),
        retention_doubt=lambda: core.store.retention_doubt,
        timers_doubt=lambda: core.timers.clock_doubt,
        index_lag_bytes=lambda: max(0, core.background.behind_bytes),
        begins_recently=pop.starts.begins_recently,
        suspicion=lambda: store.suspicion.sentence if store.suspicion is not None else "",
        scrub=parts.scrub,
        kernel=parts.kernel,
        client_times=parts.client_times,
        message_group=partial(message_group_at, store),
        gate_waits=pop.gate.waits_of,
    )
    place = ReadPlace(
        live.pull,
        lambda: replica.is_master,
        lambda: replica.is_connected_to_master,
        lambda: replica.is_in_sync,
        lambda: store.commitlog.end_offset,
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),  # of this machine
        core.cold_line,
    )

    checks = PullChecks(metadata, clients, lambda: creates_groups and replica.is_master)
    pull = PullProcessor(
        checks,
        progress.pulled,
        store,
        counters,
        scheduler,
        place,
    )
    pull.go_behind(core.take_sends)
    cold_requests = ColdRequests(core.cold_line if store.cold is not None else None, store.is_cold, parts.pull_wait_ms)
    quick = None
    if parts.library is not None:
        pull.lay_out_by(AnswerLayout(parts.library, parts.carrier))
        quick = QuickPulls(pull, checks, place, cold_requests, parts.library)
    bulk = BulkProcessor(checks, store, counters, place, scheduler)
    consumption = Consumption(metadata, clients, progress, store, broker_name)
    core.arrival_listeners.append(pull.arrived)
    if core.tiers.cold is not None:
        core.tiers.cold.listeners += [pull.fetched, bulk.wake]
    # who waits here may have to wait elsewhere now
    replica.add_role_listener(lambda _role, _epoch: scheduler.call_soon(pull.answer_all))
    replica.add_role_listener(lambda _role, _epoch: scheduler.call_soon(bulk.answer_all))
    replica.add_role_listener(lambda _role, _epoch: parts.locks.clear())
    replica.add_hand_over_listener(partial(_record_offsets, pull, metadata))
    # what pulls are checked against
    replica.add_role_listener(lambda _role, _epoch: pull.look_again())
    metadata.listeners.append(lambda _change: pull.look_again())
    clients.group_listeners.append(lambda _group: pull.look_again())
    live.pull.subscribe(lambda _settings: pull.look_again())
    return Processors(
        pull=pull,
        bulk=bulk,
        offsets=OffsetProcessor(metadata, progress.consumer_offset, store, pop.starts, data_version),
        clients=ClientProcessor(
            metadata, clients, lambda: replica.is_master, live.pull, auto_create_groups=creates_groups
        ),
        topics=TopicProcessor(
            metadata, broker_name, data_version, store, counters.statistics, replica.when_topics_known
        ),
        groups=GroupProcessor(metadata, group_version),
        connections=ConnectionProcessor(clients),
        assignments=AssignmentProcessor(metadata, clients, parts.routes),
        consumption=ConsumptionProcessor(consumption, parts.names.address, wall_ms, counters.statistics),
        inspection=InspectionProcessor(
            counters.statistics,
            parts.names.cluster,
            time.monotonic,
            store,
            clients.consumer_group,
        ),
        resets=ResetProcessor(consumption, pop, live.pull, pull.wake),
        relay=RelayProcessor(metadata, clients, store, broker_name, steady_ms, parts.guard),
        messages=MessageProcessor(store, queries, parts.guard),
        pop=PopProcessor(pop, metadata, store, broker_name, scheduler),
        handovers=HandoverProcessor(broker_name, pop.answers, core.placements, pop.gate),
        state=StateProcessor(
            StateParts(parts.names.cluster, consumption, replica.state, store.commitlog, figures, wall_ms),
            scheduler.call_soon,
        ),
        locks=LockProcessor(
            parts.locks,
            metadata,
            broker_name,
            lambda: replica.is_master or not replica.is_connected_to_master,
            steady_ms,
        ),
        transactions=TransactionProcessor(core.transactions, parts.guard),
        send_back=SendBackProcessor(parts.retry, core.schedule.offsets, data_version, parts.guard),
        recalls=RecallProcessor(
            core.timed, metadata.topic, timer_progress, core.timers.counting, data_version, wall_ms
        ),
        timers=TimerProcessor(core.timers, finder, queries, core.record_log, scheduler),
        fetch_waits=waits,
        slices=Slices(scheduler.call_soon, waits),
        cold_requests=cold_requests,
        quick_pulls=quick,
    )


def _record_offsets(pull: PullProcessor, metadata: MetadataService) -> None:
    """What consumers told of their offsets up to now is recorded while that is possible."""
    pull.settle()
    metadata.commits.flush()


def build_retry(core: BrokerCore, locks: QueueLocks) -> RetryService:
    """What takes back messages; the senders and a processor use it."""
    service = RetryService(
        core.metadata,
        core.store,
        core.record_log,
        core.sender.turn_of,
        RetryRules(
            core.delays,
            lambda group: locks.is_locked(group, steady_ms()),
            core.pop.settings.auto_create_groups,
        ),
        core.retry_counters,
    )
    service.listeners.append(core.counters.statistics.note_sent_back)
    return service


def build_sends(
    core: BrokerCore,
    retry: RetryService,
    store_host: bytes,
    when_known: Callable[[Callable[[], None]], None],
    scheduler: Scheduler,
    *,
    make_topics: bool,
    beside_loop: bool = True,
    library: Library | None = None,
    carrier: Carrier | None = None,
    syncs: SyncsInC | None = None,
) -> tuple[SendProcessor, SendTurns]:
    """The processor of sends, and what sends over gRPC share with it: one kernel, which is in C where there is a
    library. `when_known` calls back when name servers know the topics; with `make_topics` a topic is made when somebody sends to
    it; with `beside_loop` the carrier's thread takes what is sent densely, when it may, and answers behind the `syncs` where what
    is acknowledged is to be durable."""
    rules = KernelRules(
        core.sender.unique_ids, core.timed.terms, core.delays, core.sender.cluster, LaidOutHalves(core.transactions)
    )
    kernel: SendKernel = Kernel(store_host, rules) if library is None else NativeKernel(library, store_host, rules)
    _tell_topics(kernel, core.metadata)
    make_topic = core.metadata.make_topic_like if make_topics else None
    general = GeneralSends(core.sender, store_host, retry.sent_again, make_topic, when_known)
    turns = SendTurns(core.store, core.appends, kernel, core.counters)
    processor = SendProcessor(turns, general, scheduler.call_soon, carrier, core.show)
    if beside_loop and carrier is not None and isinstance(kernel, NativeKernel):
        in_c = InC(kernel, carrier, syncs)
        processor.lend_by(SendLending(turns, core.appends, in_c, scheduler, core.show))
    core.take_sends = processor.take_now
    return processor, turns


def _tell_topics(kernel: SendKernel, metadata: MetadataService) -> None:
    """Tell the kernel which topics there are, now and whenever they change."""

    def changed(change: Change) -> None:
        if change.rebuilt:
            kernel.topics_changed({name: metadata.topic(name) for name in {*kernel.topics, *metadata.topics()}})
        elif change.touches_topics:
            kernel.topics_changed({name: metadata.topic(name) for name in (*change.topics_put, *change.topics_deleted)})

    metadata.listeners.append(changed)
    kernel.topics_changed({name: metadata.topic(name) for name in metadata.topics()})
