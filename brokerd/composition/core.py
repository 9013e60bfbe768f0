"""A broker without its sockets: store, replication, residents of the log and services joined, and what happens to them together.

The daemon's assembly and the simulator build the same `BrokerCore`; they differ in environment, replica and clients. What holds
the parts together is here: how far consumers may see, and that all residents of the log go through cuts, new files and changes of
role alike. Which residents there are is said in `composition.residents`. One thread calls everything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from brokerd.composition.deleted_topics import DeletedTopics
from brokerd.composition.environment import Clients, Environment
from brokerd.composition.ground import Ground
from brokerd.composition.log_access import StoreRecordLog, StoreReplicatedLog
from brokerd.composition.residents import make_residents
from brokerd.composition.watermarks import Watermarks
from brokerd.config.takeover import FirstRecords, Takeover
from brokerd.config.writer import ConfigWriter, Sources
from brokerd.journal.resident import Resident
from brokerd.loop.cold_line import Others
from brokerd.loop.scheduler import Timer
from brokerd.metadata.tables import Change
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.roles.effects import Role
from brokerd.retry.service import RetryCounters
from brokerd.sending.acknowledging import Appends, ReplicaView
from brokerd.sending.counters import Counters
from brokerd.sending.sender import MessageSender, SendRules
from brokerd.statistics.figures import Statistics
from brokerd.store.derived.background import Background
from brokerd.store.derived.dispatcher import Arrivals
from brokerd.store.derived.followers import Reader
from brokerd.store.read_levels import ReadLevel
from brokerd.store.seams import StoreSeams
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Suspicion
from brokerd.timers.files.source import StoreSource
from brokerd.timers.files.timer_files import TimerFiles
from remoting.errors import CorruptedFile, StorageError
from remoting.facts.broker_state import Totals

_REPAIR_S: Final = 0.2
_REPAIR_PATIENCE_S: Final = 30.0  # then a start has to find out what is left of the log
# A replica has hardly a reader: it makes what it follows visible in pieces, which cost it little more than one transfer does.
_GATHER_S: Final = 0.005
_GATHERED_BYTES: Final = 1 << 20


class ReplicaPort(ReplicaView, Protocol):
    """What the core needs of the replica; `replication.replica.Replica` in the daemon."""

    @property
    def confirm_offset(self) -> int: ...

    @property
    def epochs(self) -> Sequence[EpochEntry]: ...

    def add_role_listener(self, listener: Callable[[Role, int], None]) -> None: ...

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None: ...


def open_store(ground: Ground, *, ask_first: bool = False) -> MessageStore:
    """The store, loaded; what RocketMQ left beside it is readable and marked. Raises CorruptedFile or SettingsError; `ask_first`
    as in `MessageStore.load`."""
    settings, environment = ground.settings, ground.environment
    disk, level = environment.disk, ReadLevel(settings.tiers.value.read_level)
    seams = StoreSeams(settings.code_rules, environment.library, ground.tier.cold, level, ground.wishes.now)
    store = MessageStore(disk, settings.store, environment.wall_ms, ground.identity.store_host, seams)
    if settings.timers.value.files:
        store.followers.append(
            TimerFiles(
                disk,
                StoreSource(store, ground.timers.delivered, environment.library),
                library=environment.library,
            )
        )
    Takeover(disk).found_at_start(sealed=store.is_sealed)
    try:
        store.load(ask_first=ask_first)
    except CorruptedFile:
        store.abandon()
        raise
    return store


class BrokerCore:
    """The parts that endpoints use are attributes; `arrival_listeners` hear of messages that became readable; `take_sends` has
    appended what was sent in this turn of the loop."""

    def __init__(
        self,
        ground: Ground,
        clients: Clients,
        log: StoreReplicatedLog,
        replica: ReplicaPort,
    ) -> None:
        """Read the residents from the log, which `open_store` opened on the same ground and the replica replicates. Raises
        CorruptedFile."""
        identity, settings, environment = ground.identity, ground.settings, ground.environment
        scheduler, wall_ms = environment.scheduler, environment.wall_ms
        self.store = store = log.store
        self.delays = settings.delays
        self.code_rules = settings.code_rules
        self.replica = replica
        self.counters = Counters(Statistics(scheduler.time()))
        self.timer_files = timer_files = [each for each in store.followers if isinstance(each, TimerFiles)]
        # Who asks for a key waits for the index, and for nothing else.
        self.background = self._background([each for each in store.followers if each not in timer_files], environment)
        self.retry_counters = RetryCounters()
        self.appends = Appends(store, replica, log.request_flush)
        self.record_log = record_log = StoreRecordLog(
            store, self.appends, wall_ms, identity.store_host, self.counters.statistics
        )
        self._watermarks = Watermarks(record_log, scheduler, lambda: replica.confirm_offset)
        takeover = Takeover(environment.disk)
        mounted = environment.tier.mounted if environment.tier is not None else None
        preface = FirstRecords(store, takeover, replica, scheduler, wall_ms, mounted)
        residents, self.progress, self.timed = make_residents(
            ground, clients, record_log, store, preface, lambda: replica.epochs
        )
        self._residents: tuple[Resident, ...] = residents
        self._own_topics = frozenset[str]().union(*(each.own_topics for each in residents))
        self.take_sends: Callable[[], None] | None = None
        self.metadata, self.placements, self.pop, self.transactions, self.schedule, self.timers, self.tiers = residents
        self._timer_readers = self._background([*timer_files, self.timers.counting], environment)
        rules = SendRules(self.metadata.topic, identity.cluster, settings.delays)
        self.sender = MessageSender(store, self.appends, rules, self.counters, self.transactions, self.timed)
        self._deleted_topics = DeletedTopics(store, self.metadata.tables, self.counters.statistics)
        self.metadata.listeners += [
            ground.wishes.metadata_changed,
            self._deleted_topics.metadata_changed,
            self.pop.metadata_changed,
            self.progress.metadata_changed,
            self._placed_topics_changed,
            self._tiered_topics_changed,
        ]
        self.pop.given_listeners.append(self.counters.statistics.given)
        self.arrival_listeners: list[Callable[[Arrivals], None]] = [self.pop.arrived, self.tiers.arrived]
        self._scheduler = scheduler
        self._role = Role.FENCED
        self._master_epoch = 0
        self._advance_scheduled = False
        self._gathering: Timer | None = None  # of a replica, which advances when this is due or much is there
        self._untold: deque[tuple[Arrivals, deque[Callable[[Arrivals], None]]]] = deque()
        self._damaged_since_s: float | None = None  # when dispatch met what it cannot pass
        self._file_number = -1
        self._told_of_file = (
            0,
            0,
        )  # when residents last heard of a new file: the log's end, and what it had of snapshots
        sources = Sources(store, self.metadata, self.pop, self.progress)
        self.config = ConfigWriter(environment.disk, sources, takeover, lambda: self._master_epoch)
        for resident in self._residents:
            store.position_holders.append(resident.held_offset)
            store.truncate_listeners.append(resident.truncated)
            resident.rebuild()
        store.truncate_listeners.append(lambda _: self._untold.clear())
        store.expected_holders.append(self.tiers.waiting_offset)
        if ground.tier.cold is not None and ground.tier.line is not None:
            ground.tier.cold.listeners.append(self.pop.fetched)
            ground.tier.line.others = Others(self._served, self._tell_served)
        self.cold_line = ground.tier.line
        store.dispatcher.listeners.append(self._dispatched)
        replica.add_role_listener(self._role_changed)
        replica.add_confirm_listener(self._confirmed)
        self._confirmed(replica.confirm_offset)
        self._wake_followers()

    def close(self) -> None:
        """Commit what is pending, tell who waits, and stop the timers. The store is closed by its owner, later."""
        self._stop_gathering()
        self.background.close()
        self._timer_readers.close()
        self._watermarks.step_down()
        for resident in reversed(self._residents):
            resident.close()

    @property
    def out_messages(self) -> int:
        """Messages given out since the start, pulled or popped."""
        return self.counters.out_messages + self.pop.counters.popped_messages

    def totals(self) -> Totals:
        """Traffic since the start."""
        return Totals(
            in_messages=self.counters.in_messages,
            in_bytes=self.counters.in_bytes,
            out_messages=self.out_messages,
            out_bytes=self.counters.out_bytes + self.pop.counters.popped_bytes,
        )

    def _served(self) -> int:
        """What was done for anybody since the start, but for pops of what only the tier has; a replica follows its master."""
        count = self.counters.in_messages + self.counters.out_messages + self.pop.giving.from_files
        return count if self._role is Role.MASTER else count + self.store.dispatch_offset

    def _tell_served(self, call: Callable[[], None] | None) -> None:
        self.counters.when_served = self.pop.giving.when_served = call

    # ---- visibility

    def _confirmed(self, confirm_offset: int) -> None:
        """Consumers may see up to there: in the next turn of the loop, so that the senders are answered first."""
        behind_bytes = confirm_offset - self.store.dispatch_offset
        if behind_bytes <= 0 or self._advance_scheduled:
            return
        if self._role is not Role.MASTER and behind_bytes < _GATHERED_BYTES:
            if self._gathering is None:
                self._gathering = self._scheduler.call_later(_GATHER_S, self._advance)
            return
        self._advance_scheduled = True
        self._scheduler.call_soon(self._advance)

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _advance(self) -> None:
        try:
            if self.take_sends is not None:
                self.take_sends()  # who sent it does not wait for this, and it is made visible with what was sent before
        finally:
            self._dispatch()

    def show(self) -> None:
        """Have consumers see now what they were to see in the next turn: somebody asks who may have heard that it is stored."""
        if self._advance_scheduled and self._damaged_since_s is None:
            self._dispatch()

    def _dispatch(self) -> None:
        self._stop_gathering()
        self._advance_scheduled = False
        before, is_late = self.store.dispatch_offset, bool(self._untold)
        try:
            self._tell()
            self.store.dispatch(self.replica.confirm_offset)
        except StorageError as error:
            if not self._waits_for_repair(error):
                # Queues and tables would stand still while this replica counts as a good one: a start finds out what is damaged.
                self.store.fail(error)
            return
        except Exception as error:
            self.store.fail(StorageError(f"dispatch broke: {error}"))
            raise
        if is_late or self.store.dispatch_offset > before:
            self._watermarks.confirmed(self.store.dispatch_offset)
            self._damaged_since_s = None
            self._deleted_topics.remove_queues()
            self._wake_followers()
            self._confirmed(self.replica.confirm_offset)  # one call reads back one chunk at most

    def _background(self, readers: Sequence[Reader], environment: Environment) -> Background:
        return Background(
            readers,
            lambda: self.store.dispatch_offset,
            environment.scheduler,
            environment.cpu_s,
            self._follower_failed,
            lambda: self.timers.is_late,
        )

    def _wake_followers(self) -> None:
        self.background.wake()
        self._timer_readers.wake()

    def _waits_for_repair(self, error: StorageError) -> bool:
        """Whether dispatch met damage that may be repaired in a moment; then it tries again."""
        if not self._has_repair_of(error):
            return False
        now_s = self._scheduler.time()
        if self._damaged_since_s is None:
            self._damaged_since_s = now_s
        if now_s - self._damaged_since_s > _REPAIR_PATIENCE_S:
            return False
        self._advance_scheduled = True
        self._scheduler.call_later(_REPAIR_S, self._advance)
        return True

    def _follower_failed(self, error: StorageError) -> bool:
        """What is behind dispatch waits for a repair as long as that takes: nobody is served anything wrong by it."""
        if self._has_repair_of(error):
            return True
        self.store.fail(error)
        return False

    def _has_repair_of(self, error: StorageError) -> bool:
        """Have what is damaged of the log looked at; False when it is something else, or nobody repairs here."""
        if not isinstance(error, CorruptedFile) or error.damage is None:
            return False
        self.store.tell_damage(Suspicion(error.damage.offset))
        return bool(self.store.damage_listeners)

    def _dispatched(self, arrivals: Arrivals) -> None:
        hearers = deque([self._note_new_file, *self.arrival_listeners])
        if not arrivals.topics.isdisjoint(self._own_topics):
            own = [each.dispatched for each in self._residents if not arrivals.topics.isdisjoint(each.own_topics)]
            hearers.extendleft(reversed(own))
            if not arrivals.topics.isdisjoint(self.metadata.own_topics):
                arrivals.all()  # a topic's deletion among them takes away its queues, of which others hear behind that
        self._untold.append((arrivals, hearers))
        self._tell()

    def _tell(self) -> None:
        """Whoever cannot read the log now is told again when that was repaired, and those behind him after him."""
        while self._untold:
            arrivals, hearers = self._untold[0]
            while hearers:
                hearer = hearers.popleft()
                try:
                    hearer(arrivals)
                except BaseException:
                    hearers.appendleft(hearer)
                    arrivals.all()  # as they are now, not as when all can be told
                    raise
            self._untold.popleft()

    def _note_new_file(self, _arrivals: Arrivals) -> None:
        if self._role is not Role.MASTER:
            return
        end_offset, snapshot_bytes = self.store.commitlog.end_offset, self.record_log.snapshot_bytes
        number = end_offset // self.store.commitlog.segment_size_bytes
        if number == self._file_number:
            return
        before, self._file_number = self._file_number, number
        told_at, told_bytes = self._told_of_file
        written = snapshot_bytes - told_bytes
        # Snapshots that are larger than a file would ask for the next ones for ever: as much of others has to come first.
        if before < 0 or not 0 <= end_offset - told_at < 2 * written:
            self._told_of_file = end_offset, snapshot_bytes
            for resident in self._residents if before >= 0 else ():
                resident.rolled()

    def _placed_topics_changed(self, change: Change) -> None:
        for topic in change.topics_deleted:
            self.placements.topic_deleted(topic)

    def _tiered_topics_changed(self, change: Change) -> None:
        for topic in change.topics_put:
            self.tiers.topic_changed(topic)
        for topic in change.topics_deleted:
            self.tiers.topic_deleted(topic)

    # ---- roles

    def _role_changed(self, role: Role, master_epoch: int) -> None:
        """Only a master appends, so only to lead and to end it mean something. A promoting broker settles its log, and is no
        master yet; a master that is told that it is one again leads another epoch, which ends the one before."""
        before, self._role, self._master_epoch = self._role, role, master_epoch
        if before is Role.MASTER:
            self._end_leading()
        if role is Role.MASTER:
            self._begin_to_lead()

    def _begin_to_lead(self) -> None:
        self.store.begin_queues()
        for resident in self._residents:
            resident.catch_up()
        self.store.set_appendable(True)
        self._deleted_topics.restart_numbers()
        self._file_number = -1  # they write what a new file asks for when they begin
        for resident in self._residents:
            resident.lead()
        self._watermarks.lead()

    def _end_leading(self) -> None:
        """What this broker appended may be cut, so the residents are read from the log again."""
        self._watermarks.step_down()
        self.store.set_appendable(False)
        for resident in reversed(self._residents):
            resident.step_down()
        for resident in self._residents:
            resident.rebuild()
        self._deleted_topics.rebuilt()
