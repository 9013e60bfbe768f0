"""The request handlers of a broker, built from its core: which processor uses which parts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from brokerd.composition.core import BrokerCore
from brokerd.composition.environment import steady_ms, wall_ms
from brokerd.composition.live_settings import LiveSettings
from brokerd.consuming.key_queries import KeyQueries
from brokerd.consuming.queue_locks import QueueLocks
from brokerd.consuming.read_place import ReadPlace
from brokerd.loop.scheduler import Scheduler
from brokerd.members.registry import ClientRegistry
from brokerd.metadata.service import DataVersion, MetadataService
from brokerd.metadata.tables import Change
from brokerd.processors.assignments import AssignmentProcessor, Route
from brokerd.processors.clients import ClientProcessor
from brokerd.processors.connections import ConnectionProcessor
from brokerd.processors.consumption import Consumption, ConsumptionProcessor
from brokerd.processors.groups import GroupProcessor
from brokerd.processors.inspection import InspectionProcessor
from brokerd.processors.locks import LockProcessor
from brokerd.processors.messages import MessageProcessor
from brokerd.processors.offsets import OffsetProcessor
from brokerd.processors.pop import PopProcessor
from brokerd.processors.pop_looking import PopLookingProcessor
from brokerd.processors.pull import PullProcessor, Readers
from brokerd.processors.pull_checks import PullChecks
from brokerd.processors.registry import Processors
from brokerd.processors.relay import RelayProcessor
from brokerd.processors.resets import ResetProcessor
from brokerd.processors.send import SendProcessor
from brokerd.processors.send_back import SendBackProcessor
from brokerd.processors.send_general import GeneralSends
from brokerd.processors.state import StateProcessor, StateSources
from brokerd.processors.topics import TopicProcessor
from brokerd.processors.transactions import TransactionProcessor
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.replica import Replica
from brokerd.retry.service import RetryRules, RetryService
from brokerd.sending.boundary import SendKernel
from brokerd.sending.kernel import Kernel
from remoting.facts.broker_state import ScheduleState


def build_processors(
    core: BrokerCore,
    clients: ClientRegistry,
    replica: Replica,
    scheduler: Scheduler,
    connections: Callable[[], int],
    names: BrokerNames,
    live: LiveSettings,
    route: Route,
    locks: QueueLocks,
    retry: RetryService,
    *,
    auto_create_groups: bool,
) -> Processors:
    """All processors beside the senders. `connections` counts the open remoting connections."""
    cluster, broker_name, address = names.cluster, names.broker_name, names.address
    progress = core.progress
    metadata, store, pop, counters = core.metadata, core.store, core.pop, core.counters

    def data_version() -> DataVersion:
        return metadata.data_version(replica.master_epoch)

    def group_version() -> DataVersion:
        return metadata.group_data_version(replica.master_epoch)

    def schedule() -> ScheduleState:
        given_back = core.retry_counters
        return replace(core.schedule.state(), returned=given_back.returned, dead_lettered=given_back.dead_lettered)

    sources = StateSources(
        replica=replica.state,
        log=store.commitlog,
        dispatched_offset=lambda: store.dispatch_offset,
        totals=core.totals,
        connections=connections,
        consumer_offset=progress.consumer_offset,
        in_flight=pop.in_flight,
        consumed=progress.consumed,
        transactions=core.transactions.state,
        schedule=schedule,
        index_lag_bytes=lambda: max(0, core.background.behind_bytes),
        wall_ms=wall_ms,
    )
    place = ReadPlace(
        live.pull,
        lambda: replica.is_master,
        lambda: replica.is_connected_to_master,
        lambda: store.commitlog.end_offset,
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),  # of this machine
    )

    pull = PullProcessor(
        PullChecks(metadata, clients, lambda: auto_create_groups and replica.is_master),
        Readers(metadata.commits, progress.pulled),
        store,
        counters,
        scheduler,
        place,
    )
    consumption = Consumption(metadata, clients, progress, store, broker_name)
    core.arrival_listeners.append(pull.arrived)
    # who waits here may have to wait elsewhere now
    replica.add_role_listener(lambda _role, _epoch: scheduler.call_soon(pull.answer_all))
    replica.add_role_listener(lambda _role, _epoch: locks.clear())
    return Processors(
        pull=pull,
        offsets=OffsetProcessor(metadata, progress.consumer_offset, store, pop.starts, data_version),
        clients=ClientProcessor(
            metadata, clients, lambda: replica.is_master, live.pull, auto_create_groups=auto_create_groups
        ),
        topics=TopicProcessor(
            metadata, broker_name, data_version, store, counters.statistics, replica.when_topics_known
        ),
        groups=GroupProcessor(metadata, group_version),
        connections=ConnectionProcessor(clients),
        assignments=AssignmentProcessor(metadata, clients, route),
        consumption=ConsumptionProcessor(consumption, address, wall_ms, counters.statistics),
        inspection=InspectionProcessor(
            counters.statistics,
            cluster,
            time.monotonic,
            store,
            clients.consumer_group,
        ),
        resets=ResetProcessor(consumption, metadata.commits, pop, live.pull, pull.wake),
        relay=RelayProcessor(metadata, clients, store, broker_name),
        messages=MessageProcessor(store, KeyQueries(store, core.background, scheduler)),
        pop=PopProcessor(pop, metadata, store, broker_name, scheduler),
        pop_looking=PopLookingProcessor(pop.looking, pop, metadata, scheduler),
        state=StateProcessor(cluster, broker_name, metadata, metadata.names, clients, store, sources),
        locks=LockProcessor(
            locks,
            metadata,
            broker_name,
            lambda: replica.is_master or not replica.is_connected_to_master,
            steady_ms,
        ),
        transactions=TransactionProcessor(core.transactions),
        send_back=SendBackProcessor(retry, core.schedule.offsets, data_version),
    )


def build_retry(core: BrokerCore, locks: QueueLocks, *, auto_create_groups: bool) -> RetryService:
    """What takes back messages; the senders and a processor use it."""
    service = RetryService(
        core.metadata,
        core.store,
        core.record_log,
        core.sender.turn_of,
        RetryRules(core.delays, lambda group: locks.is_locked(group, steady_ms()), auto_create_groups),
        core.retry_counters,
    )
    service.listeners.append(core.counters.statistics.note_sent_back)
    return service


def build_sends(
    core: BrokerCore,
    retry: RetryService,
    store_host: bytes,
    when_known: Callable[[Callable[[], None]], None],
    call_soon: Callable[[Callable[[], None]], object],
    *,
    make_topics: bool,
) -> SendProcessor:
    """The processor of sends, with its kernel. `when_known` calls back when name servers know the topics; with `make_topics` a
    topic is made when somebody sends to it."""
    kernel: SendKernel = Kernel(store_host, adds_checksums=core.store.adds_checksums)
    _tell_topics(kernel, core.metadata)
    make_topic = core.metadata.make_topic_like if make_topics else None
    general = GeneralSends(core.sender, store_host, retry.sent_again, make_topic, when_known)
    return SendProcessor(core.store, core.appends, kernel, general, core.counters, call_soon)


def _tell_topics(kernel: SendKernel, metadata: MetadataService) -> None:
    """Tell the kernel which topics there are, now and whenever they change."""

    def changed(change: Change) -> None:
        if change.rebuilt:
            kernel.topics_changed({name: metadata.topic(name) for name in {*kernel.topics, *metadata.topics()}})
        elif change.touches_topics:
            kernel.topics_changed({name: metadata.topic(name) for name in (*change.topics_put, *change.topics_deleted)})

    metadata.listeners.append(changed)
    kernel.topics_changed({name: metadata.topic(name) for name in metadata.topics()})
