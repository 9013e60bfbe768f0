"""A broker without its sockets: store, replication, tables and services joined, and what must happen to them together.

The daemon's assembly and the simulator build the same `BrokerCore`; they differ in disk, clocks, outlet and control. What holds
the parts together is here: what a change of role means for each of them and in which order, how far consumers may see, and what
a deleted topic leaves behind. One thread calls everything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.composition.log_access import Appends, ReplicaView, StoreRecordLog, StoreReplicatedLog
from brokerd.config.first_records import FirstRecords
from brokerd.config.takeover import Takeover
from brokerd.config.writer import ConfigWriter
from brokerd.consuming.progress import ConsumerProgress
from brokerd.delay.deliverer import Deliverer
from brokerd.delay.settings import DelaySettings
from brokerd.journal.journal import JournalSettings
from brokerd.loop.scheduler import Scheduler
from brokerd.metadata.names import METADATA_TOPIC, SystemNames
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import Change
from brokerd.pop.records import POP_TOPIC
from brokerd.pop.service import PopService
from brokerd.pop.settings import PopSettings
from brokerd.replication.roles.effects import Role
from brokerd.retry.counters import RetryCounters
from brokerd.sending.sender import Counters, MessageSender
from brokerd.statistics.figures import Statistics
from brokerd.store.derived.background import Background
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from brokerd.transactions.records import HALF_TOPIC, OP_TOPIC
from brokerd.transactions.service import TransactionService
from brokerd.transactions.settings import TransactionSettings
from remoting.disk import Disk
from remoting.errors import StorageError
from remoting.settings import Live


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """How clients name this broker. `store_host` is the packed address that records and message ids carry."""

    cluster: str
    broker_name: str
    store_host: bytes
    development: bool = False


class ReplicaPort(ReplicaView, Protocol):
    """What the core needs of the replica; `replication.replica.Replica` in the daemon."""

    @property
    def confirm_offset(self) -> int: ...

    def add_role_listener(self, listener: Callable[[Role, int], None]) -> None: ...

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None: ...


class BrokerCore:
    """See the module."""

    def __init__(
        self,
        identity: BrokerIdentity,
        disk: Disk,
        settings: StoreSettings,
        make_replica: Callable[[StoreReplicatedLog, int], ReplicaPort],
        *,
        request_flush: Callable[[], None],
        is_alive: Callable[[str], bool],
        scheduler: Scheduler,
        wall_ms: Callable[[], int],
        rng: random.Random,
        pop_settings: PopSettings | None = None,
        journal_settings: JournalSettings | None = None,
        transaction_settings: Live[TransactionSettings] | None = None,
        delay_settings: DelaySettings | None = None,
        cpu_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Load the store and read the tables. `make_replica` gets the log and the confirm offset that is known.

        `is_alive(client_id)` tells whether a consumer that leases messages is there, `cpu_s` the processor time that this process
        has used. Raises CorruptedFile or SettingsError.
        """
        self.store = store = MessageStore(disk, settings, wall_ms, identity.store_host)
        takeover = Takeover(disk)
        takeover.found_at_start(sealed=store.is_sealed)
        store.load()
        self.replica = make_replica(StoreReplicatedLog(store, request_flush), store.confirm_offset)
        self.counters = Counters(Statistics(scheduler.time()))
        self.background = Background(store.followers.all, lambda: store.dispatch_offset, scheduler, cpu_s, store.fail)
        self.retry_counters = RetryCounters()
        self.appends = Appends(store, self.replica, request_flush)
        self.record_log = record_log = StoreRecordLog(
            store, self.appends, wall_ms, identity.store_host, self.counters.statistics
        )
        names = SystemNames(
            identity.cluster,
            identity.broker_name,
            development=identity.development,
            delay_levels=len(settings.delays),
        )
        self.metadata = MetadataService(record_log, names, scheduler, wall_ms, journal_settings)
        self.pop = PopService(
            broker_name=identity.broker_name,
            metadata=self.metadata,
            reads=store,
            record_log=record_log,
            log_end=lambda: store.commitlog.end_offset,
            is_alive=is_alive,
            scheduler=scheduler,
            now_ms=wall_ms,
            rng=rng,
            settings=pop_settings,
            journal_settings=journal_settings,
        )
        self.pop.given_listeners.append(self.counters.statistics.given)
        self.transactions = TransactionService(
            broker_name=identity.broker_name,
            log=record_log,
            metadata=self.metadata,
            log_end=lambda: store.commitlog.end_offset,
            move_up_bytes=settings.segment_size_bytes,
            scheduler=scheduler,
            now_ms=wall_ms,
            host=identity.store_host,
            settings=transaction_settings,
            delays=settings.delays,
        )
        self.sender = MessageSender(
            store,
            self.appends,
            self.metadata.topic,
            self.counters,
            self.transactions,
            identity.cluster,
            settings.delays,
        )
        self.schedule = Deliverer(
            settings.delays,
            self.metadata,
            record_log,
            store.commitlog.end_offset,
            scheduler,
            wall_ms,
            delay_settings,
        )
        self.arrival_listeners: list[Callable[[Sequence[Arrival]], None]] = [self.pop.arrived, self.schedule.arrived]
        self._scheduler = scheduler
        self._advance_scheduled = False
        self._file_number = -1
        self._deleted: list[tuple[int, str]] = []
        self._master_epoch = 0
        store.position_holders += [
            self.metadata.journal.held_offset,
            self.pop.journal.held_offset,
            self.transactions.held_offset,
            self.schedule.held_offset,
        ]
        store.truncate_listeners += [
            self.metadata.truncated,
            self.pop.truncated,
            self.transactions.truncated,
            self.schedule.truncated,
        ]
        store.dispatcher.listeners.append(self._dispatched)
        self.metadata.listeners += [self._metadata_changed, self.pop.metadata_changed]
        self.progress = ConsumerProgress(self.metadata.tables, self.pop, store)
        self.metadata.listeners.append(self.progress.metadata_changed)
        self.metadata.unread_queues = self.progress.unread_queues
        self.metadata.unfinished = self.pop.unfinished
        self.first_records = FirstRecords(store, self.metadata, takeover, self.replica, scheduler, wall_ms)
        self.config = ConfigWriter(
            disk,
            self.metadata,
            self.progress,
            takeover,
            lambda: self._master_epoch,
            lambda: store.dispatch_offset,
            store.commitlog.end_offset,
        )
        self._rebuild()
        self.replica.add_role_listener(self._role_changed)
        self.replica.add_confirm_listener(self._confirmed)
        self._confirmed(self.replica.confirm_offset)
        self.background.wake()

    def close(self) -> None:
        """Commit what is pending, tell who waits, and stop the timers. The store is closed by its owner, later."""
        self.background.close()
        self.metadata.close()
        if self.replica.is_master:
            self.pop.stop_serving()
            self.transactions.stop_serving()
        self.schedule.stop()

    # ---- visibility

    def _confirmed(self, confirm_offset: int) -> None:
        """Consumers may see up to there: in the next turn of the loop, so that the senders are answered first."""
        if confirm_offset > self.store.dispatch_offset and not self._advance_scheduled:
            self._advance_scheduled = True
            self._scheduler.call_soon(self._advance)

    def _advance(self) -> None:
        self._advance_scheduled = False
        before = self.store.dispatch_offset
        try:
            self.store.dispatch(self.replica.confirm_offset)
        except StorageError as error:
            # Queues and tables would stand still while this replica counts as a good one: a start finds out what is damaged.
            self.store.fail(error)
            return
        if self.store.dispatch_offset > before:
            self._remove_deleted_queues()
            self.background.wake()
            self._confirmed(self.replica.confirm_offset)  # one call reads back one chunk at most

    def _dispatched(self, arrivals: Sequence[Arrival]) -> None:
        topics = {arrival.topic for arrival in arrivals}
        if METADATA_TOPIC in topics:
            self.metadata.follow()
        if POP_TOPIC in topics:
            self.pop.follow()
        if HALF_TOPIC in topics or OP_TOPIC in topics:
            self.transactions.follow()
        if self.replica.is_master:
            self._note_new_file()
        for listener in self.arrival_listeners:
            listener(arrivals)

    def _note_new_file(self) -> None:
        """A new file of the log gets snapshots of the tables, so that older files can go."""
        number = self.store.commitlog.end_offset // self.store.commitlog.segment_size_bytes
        if number != self._file_number:
            if self._file_number >= 0:
                self.metadata.file_rolled()
                self.pop.file_rolled()
            self._file_number = number

    # ---- roles

    def _role_changed(self, role: Role, master_epoch: int) -> None:
        self._master_epoch = master_epoch
        if role is Role.MASTER:
            self._become_master()
            return
        if role is Role.PROMOTING:
            return
        was_serving = self.store.is_appendable
        self.store.set_appendable(False)
        self.schedule.stop()
        if was_serving:
            self.pop.stop_serving()
            self.transactions.stop_serving()
            self._rebuild()
            self._deleted.clear()

    def _become_master(self) -> None:
        self.metadata.catch_up()
        self.store.set_appendable(True)
        for position, topic in self._deleted:  # in the part of the log that dispatch has not reached
            self.store.restart_queue_offsets(topic, position)
        self.first_records.begin()
        self.pop.start_serving()
        self.transactions.start_serving()
        self.schedule.start(self.store.commitlog.end_offset)
        self._file_number = -1

    def _rebuild(self) -> None:
        """Read the tables from the log. The metadata first: the others begin where it says."""
        self.metadata.rebuild()
        self.pop.rebuild()
        self.transactions.rebuild()

    # ---- topics

    def _metadata_changed(self, change: Change) -> None:
        if change.rebuilt:
            self._remove_stale_queues()
            self.store.empty_queues(self.metadata.tables.emptied_queues)
            return
        if change.queues_emptied:
            emptied = self.metadata.tables.emptied_queues
            self.store.empty_queues({key: emptied[key] for key in change.queues_emptied})
        for topic in change.topics_deleted:
            self.counters.statistics.forget_topic(topic)
        for group in change.groups_deleted:
            self.counters.statistics.forget_group(group)
        for topic in change.topics_deleted:
            self.store.queue_offsets.forget(topic)
            self._deleted.append((change.position, topic))
        self._remove_deleted_queues()

    def _remove_stale_queues(self) -> None:
        """After a rebuild: deriving queues from the log brings back those of topics that were deleted since."""
        deleted_at = self.metadata.tables.topics_deleted_at
        for topic in sorted({topic for topic, _ in self.store.queues.table if topic in deleted_at}):
            self.store.delete_queues(topic, deleted_at[topic])

    def _remove_deleted_queues(self) -> None:
        """Queues of a deleted topic go when dispatch has passed the record that deleted it."""
        if not self._deleted:
            return
        dispatched = self.store.dispatch_offset
        for position, topic in self._deleted:
            if position <= dispatched:
                self.store.delete_queues(topic, position)
        self._deleted = [each for each in self._deleted if each[0] > dispatched]
