"""What lives on a broker's log, and in which order: the one list. A new resident is a field, and the line that makes it."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.composition.environment import BrokerIdentity, Clients, CoreSettings, Environment
from brokerd.composition.log_access import StoreRecordLog
from brokerd.delay.deliverer import Deliverer
from brokerd.metadata.names import SystemNames
from brokerd.metadata.service import MetadataService, Preface
from brokerd.pop.service import PopService
from brokerd.pop.surroundings import Surroundings
from brokerd.store.store import MessageStore
from brokerd.transactions.service import TransactionService


class Residents(NamedTuple):
    """Each is a `journal.resident.Resident`, and stands behind those that it reads from."""

    metadata: MetadataService
    pop: PopService
    transactions: TransactionService
    schedule: Deliverer


def make_residents(
    identity: BrokerIdentity,
    settings: CoreSettings,
    environment: Environment,
    clients: Clients,
    store: MessageStore,
    record_log: StoreRecordLog,
    preface: Preface,
) -> Residents:
    """All of them, over a loaded store; nothing is read from the log yet."""
    scheduler, wall_ms, delays = environment.scheduler, environment.wall_ms, settings.delays
    names = SystemNames(
        identity.cluster, identity.broker_name, development=identity.development, delay_levels=len(delays)
    )
    metadata = MetadataService(record_log, names, scheduler, wall_ms, settings.journal, preface)
    return Residents(
        metadata,
        PopService(
            Surroundings(identity.broker_name, metadata, store, record_log, scheduler, wall_ms, settings.pop),
            clients.is_alive,
            environment.rng,
            settings.journal,
        ),
        TransactionService(
            broker_name=identity.broker_name,
            log=record_log,
            metadata=metadata,
            producers=clients,
            move_up_bytes=settings.store.segment_size_bytes,
            scheduler=scheduler,
            now_ms=wall_ms,
            host=identity.store_host,
            settings=settings.transactions,
            delays=delays,
        ),
        Deliverer(delays, metadata, record_log, scheduler, wall_ms, settings.delay),
    )
