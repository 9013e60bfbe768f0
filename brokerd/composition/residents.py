"""What lives on a broker's log, and in which order: the one list. A new resident is a field, and the line that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from brokerd.composition.environment import Clients
from brokerd.composition.ground import Ground
from brokerd.composition.local_queues import StoreQueues
from brokerd.composition.log_access import StoreRecordLog
from brokerd.config.mounted import state_rows
from brokerd.consuming.progress import ConsumerProgress
from brokerd.delay.deliverer import Deliverer
from brokerd.delay.rules import schedule
from brokerd.metadata.decide import Rules
from brokerd.metadata.names import SystemNames
from brokerd.metadata.service import MetadataService, Preface
from brokerd.placement.service import PlacementService
from brokerd.pop.ledger import PopLedger
from brokerd.pop.service import PopService
from brokerd.pop.surroundings import Surroundings
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.draft import Draft
from brokerd.store.store import MessageStore
from brokerd.tiers.index.keys import keys_for
from brokerd.tiers.service import TierService
from brokerd.tiers.stowage import Stowage
from brokerd.tiers.surroundings import Surroundings as TierSurroundings
from brokerd.tiers.upload.uploader import no_loop
from brokerd.timers.clients import TimedMessages
from brokerd.timers.far_timers import FarTimers
from brokerd.timers.files.original import LeftNote
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.native_due_entries import due_entries_for
from brokerd.timers.native_said import saying_for
from brokerd.timers.queue_far import QueueFar
from brokerd.timers.service import Surroundings as TimerSurroundings
from brokerd.timers.service import TimerService, Witnesses
from brokerd.transactions.checking import CheckBack
from brokerd.transactions.service import TransactionService
from brokerd.transactions.topics import TransactionTopics
from remoting.errors import StorageError
from remoting.names import TIMER_TOPIC

_NO_END: Final = 2**63 - 1


class Residents(NamedTuple):
    """Each is a `journal.resident.Resident`, and stands behind those that it reads from."""

    metadata: MetadataService
    placements: PlacementService
    pop: PopService
    transactions: TransactionService
    schedule: Deliverer
    timers: TimerService
    tiers: TierService


def make_tiers(
    ground: Ground,
    record_log: StoreRecordLog,
    store: MessageStore,
    metadata: MetadataService,
    progress: ConsumerProgress,
    epochs: Callable[[], Sequence[EpochEntry]],
    stowage: Stowage,
) -> TierService:
    """Without an object store it follows what its log says of one. A mount has messages of its group's log, not of its own."""
    settings, environment = ground.settings, ground.environment

    def attributes(topic: str) -> Mapping[str, str] | None:
        config = metadata.topic(topic)
        return None if config is None else config.attributes

    tier = environment.tier
    mounted = tier.mounted if tier is not None else None

    def lineage() -> tuple[Sequence[EpochEntry], int]:
        return (epochs(), store.commitlog.end_offset) if mounted is None else (mounted.epochs, _NO_END)

    around = TierSurroundings(
        StoreQueues(store),
        attributes,
        lineage,
        environment.random_bits,
        tier.loop if tier is not None else no_loop(environment.scheduler, environment.wall_ms),
        ground.identity.broker_name,
        lambda: epochs()[-1].epoch,
        lambda: state_rows(metadata.tables, progress.all_offsets(), metadata.names),
        lambda reason: store.fail(StorageError(reason)),
        stowage,
        is_mount=mounted is not None,
        keys=keys_for(environment.library),
    )
    return TierService(record_log, ground.tier, around, settings.tiers, settings.journal)


def make_residents(
    ground: Ground,
    clients: Clients,
    record_log: StoreRecordLog,
    store: MessageStore,
    preface: Preface,
    epochs: Callable[[], Sequence[EpochEntry]],
) -> tuple[Residents, ConsumerProgress, TimedMessages]:
    """All of them, over a loaded store, how far consumers are by what they know, and what takes timers from clients; nothing is
    read from the log yet."""
    identity, settings, environment = ground.identity, ground.settings, ground.environment
    scheduler, wall_ms, delays = environment.scheduler, environment.wall_ms, settings.delays
    names = SystemNames(
        identity.cluster, identity.broker_name, development=identity.development, delay_levels=len(delays)
    )
    tables, ledger = ground.metadata, PopLedger()
    progress = ConsumerProgress(tables, ledger, store)
    rules = Rules(tables, names, wall_ms, progress.unread_queues)
    metadata = MetadataService(record_log, rules, scheduler, settings.journal, preface)

    def queue_ends(topic: str) -> dict[int, int]:
        config = metadata.topic(topic)
        count = max(config.read_queue_nums, config.write_queue_nums) if config is not None else 0
        return {queue: store.queue_offsets.next(topic, queue) for queue in range(count)}

    placements = PlacementService(record_log, identity.broker_name, queue_ends, scheduler, settings.journal)
    transaction_topics = TransactionTopics(record_log, metadata, wall_ms, identity.store_host)
    checks = CheckBack(
        transaction_topics,
        clients,
        identity.broker_name,
        scheduler,
        settings.transactions,
        settings.store.segment_size_bytes,
    )
    files = next((each for each in store.followers if isinstance(each, TimerFiles)), None)
    read_units = partial(record_log.read_units, TIMER_TOPIC, 0)
    read_encoded = partial(store.read_encoded_units, TIMER_TOPIC, 0)
    due_entries = due_entries_for(environment.library, read_units, read_encoded)
    timer_queue = partial(record_log.queue_range, TIMER_TOPIC, 0), read_units, due_entries
    far = FarTimers(files, *timer_queue) if files is not None else QueueFar(*timer_queue)
    loop = environment.tier.loop if environment.tier is not None else None
    stowage = Stowage(ground.tier.objects, loop, lambda: ground.timers.table.named_objects)
    timers = TimerService(
        record_log,
        far,
        TimerSurroundings(
            metadata,
            scheduler,
            wall_ms,
            identity.store_host,
            environment.random_bits,
            lambda: settings.retention.value.reserved_time_ms,
            ground.timers,
            lambda: settings.timers.value.max_per_slot,
            Witnesses(environment.other_clocks_ms, lambda: store.found_timestamp_ms),
            lambda: store.offset_behind(TIMER_TOPIC, 0, store.going_offset),
            stowage,
            saying_for(environment.library, read_encoded, store.commitlog.reads.look_at),
        ),
        settings.timers.value,
        settings.journal,
        LeftNote(environment.disk),
    )
    timed = TimedMessages(
        timers, lambda: settings.timers.value, identity.broker_name, partial(store.queue_offsets.next, TIMER_TOPIC, 0)
    )

    def to_waiting_draft(draft: Draft) -> Draft:
        return timed.to_waiting_draft(schedule(draft, delays))

    residents = Residents(
        metadata,
        placements,
        PopService(
            Surroundings(
                identity.broker_name,
                metadata,
                store,
                record_log,
                scheduler,
                wall_ms,
                settings.pop,
                environment.random_bits,
                placements.handovers,
                placements.version_of,
                ground.tier.line,
            ),
            ledger,
            clients.is_alive,
            environment.rng,
            settings.journal,
        ),
        TransactionService(transaction_topics, checks, settings.transactions, to_waiting_draft),
        Deliverer(delays, metadata, record_log, scheduler, wall_ms, settings.delay),
        timers,
        make_tiers(ground, record_log, store, metadata, progress, epochs, stowage),
    )
    return residents, progress, timed
