"""A broker in the simulator: the real core over a faulty disk, and shells that put its bytes and requests on the network.

The shells do what the daemon's do: the flusher syncs and reports, the housekeeper makes checkpoints and looks at the disk's room
(each thing that a thread does is a step of its own, which may come in the middle of a write of the loop),
a failure of the disk ends the process, and somebody starts it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brokerd.composition.core import BrokerCore, open_store
from brokerd.composition.environment import BrokerIdentity, CoreSettings, Environment
from brokerd.composition.ground import make_ground
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.composition.mending import Place, start_mended
from brokerd.journal.journal import JournalSettings
from brokerd.pop.settings import PopSettings
from brokerd.replication.calm import TICK_MS, calm_tick_ms
from brokerd.replication.controllers.controller_session import ControllerSession
from brokerd.replication.controllers.identity import IdentityFiles, Lives, Registration, next_incarnation
from brokerd.replication.controllers.request_fields import Speaker
from brokerd.replication.controllers.session import BrokerNames, Session, SessionRequest
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.roles.driver import ReplicationDriver, Seams
from brokerd.replication.roles.effects import Ask, Role
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.proof import NONCE_BYTES, Credentials
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.retention import decide_retention
from brokerd.store.settings import RetentionSettings, StoreSettings
from brokerd.store.start.durable_positions import StoreCheckpoint
from brokerd.store.store import MessageStore
from brokerd.store.store_reads import Suspicion
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, SettingsError, StorageError
from remoting.record.hosts import pack_host
from remoting.settings import Live
from tests.sim.delays import DELAYS, retry_service, watch
from tests.sim.links import Link, dial
from tests.sim.loop import SimLoop
from tests.sim.repairs import SECRET, Repairs, mend
from tests.sim.replica import SimReplica
from tests.sim.timer_settings import timer_settings
from tests.sim.transactors import TRANSACTIONS, Connected
from tests.sim.world import Action, Network, Node, Timer, World
from tests.support.disks import FaultyDisk, PowerLost

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController
    from tests.sim.side_group import SideGroup

CLUSTER = "DefaultCluster"
GROUP = "broker-a"
REQUEST_TIMEOUT_MS = 1000
_MAX_WAITING_BYTES = 1 << 18
_CHECKPOINT_MS = 500
_INTERRUPTED = 0.2  # of the writes to the log, by a thread that has something to do then
_RETENTION_MS = 300
# Somebody holds the log's begin, so nothing is deleted, but a full disk refuses appends and takes them again when it has room.
_RETENTION = RetentionSettings(force_percent=98, refuse_percent=99, enough_free_bytes=4096)
_AHEAD = 4096, 2  # bytes of a story's log that are written ahead, and how many syncs have to find them
_POP = PopSettings(revive_retry_ms=200, lease_grace_ms=2000, inherited_lease_ms=20_000)


class SimBroker(Node):
    """One replica. `start`, `kill` and `crash` are its lives; the disk stays, unless the machine is replaced."""

    def __init__(
        self,
        world: World,
        network: Network,
        index: int,
        peers: dict[str, SimBroker],
        controllers: dict[str, SimController],
        settings: ReplicationSettings,
        store: StoreSettings,
        journal: JournalSettings,
        group: str = GROUP,
    ) -> None:
        super().__init__(world, f"b{index}")
        self.group = group
        self.network = network
        self.rng = world.random(self.name)
        self._rng_of_threads = world.random(f"threads of {self.name}")
        self._rng_of_tags = world.random(f"tags of {self.name}")
        self.interrupted_writes = 0  # that another thread saw half done
        self.settings = self.first_settings = settings
        self.store_settings = store
        self.disk = self._new_disk(f"disk of {self.name}")
        self.disks: list[FaultyDisk] = []  # of machines that were replaced
        self.address = f"{self.name}:10911"
        self.ha_address = f"{self.name}:10912"
        self.sync_ms = (0.2, 3.0)  # how long a sync takes
        self.refusal_to_start: CorruptedFile | SettingsError | None = None
        self._is_built = False  # its present process has read its disk
        self._tick_ms = TICK_MS  # how long the tick that comes was planned to be after the one before
        self._calm_ticker: Timer | None = None  # of that tick, while it is calm till then
        self.repairs: Repairs
        self.store_host = pack_host(f"10.0.0.{index + 1}", 10911)
        self.began_ms = 0.0  # its present life
        self.append_listeners: list[
            Callable[[int, int], None]
        ] = []  # of that; they get the begin and the end of what is appended
        self.first_clocks = 0, 0  # what its wall clock and its monotonic one showed when its process began
        self.waiting = 0  # sends of this life that were not answered yet
        self.cluster: SimCluster | SideGroup
        self.is_retired = False  # nobody starts it again
        self._peers = peers
        self._controllers = controllers
        self._journal = journal
        self.place = Place(list(controllers), group, self.address)
        self.group_key = f"{CLUSTER}#{group}".encode()
        peers[self.ha_address] = self

    def another(self, index: int) -> SimBroker:
        """A broker of the same group and the same settings, on a disk of its own."""
        return self.of_group(self.group, index, self._peers)

    def of_group(
        self,
        group: str,
        index: int,
        peers: dict[str, SimBroker],
        kind: type[SimBroker] | None = None,
        settings: ReplicationSettings | None = None,
    ) -> SimBroker:
        """A broker of another group, of the same kind and settings unless told; `peers` are those of that group by replication
        address."""
        made, store, journal = kind or type(self), self.store_settings, self._journal
        own = settings or self.first_settings
        return made(self.world, self.network, index, peers, self._controllers, own, store, journal, group)

    def _new_disk(self, name: str) -> FaultyDisk:
        return FaultyDisk(self.world.random(name))

    # ---- lives

    def start(self) -> None:
        """Start the process; it may die of its disk before it is up, or ask others for what is damaged of its log."""
        self.begin_life()
        self._is_built = False
        self.began_ms = self.world.now_ms
        self._view: StoreCheckpoint
        self.disk.in_the_middle = None
        self._tick_ms, self._ticked_ms, self._calm_ticker = TICK_MS, self.monotonic_ms(), None
        self._next_connection = 1
        self._log_file = -1  # the number of the log's last file, once it is known
        self.waiting = 0
        self._links: dict[int, Link] = {}
        self.world.note(f"{self.name} starts (life {self.life})")
        loop = SimLoop(self, self._rng_of_threads)
        loop.spawn(self._start(loop))

    @property
    def is_up(self) -> bool:
        return self.is_running and self._is_built

    async def _start(self, loop: SimLoop) -> None:
        try:
            await start_mended(self._build, lambda met: mend(self, loop, met))
            self.repairs = Repairs(self, loop)
        except PowerLost:
            self.crash("loses power while it starts")
            return
        except (CorruptedFile, SettingsError) as error:
            self.refusal_to_start = error
            self.stop_process(f"refuses to start: {error}")
            return
        except StorageError as error:
            self.stop_process(f"cannot start: {error}")
            return
        self._is_built = True
        self.refusal_to_start = None
        self.cluster.recovered(self)
        self.disk.in_the_middle = self._in_the_middle
        if self.cluster.calm_ticks:
            self._tick_in(TICK_MS)
        else:
            self.every(TICK_MS, self.guarded(self._tick))
        self.after(self.rng.uniform(0, _CHECKPOINT_MS), self.guarded(self._checkpoint))
        self.every(_RETENTION_MS, self.guarded(self._look_at_disk))
        self.repairs.start()

    def _build(self, ask_first: bool) -> None:
        self._flush_wanted = self._is_flushing = self._sync_is_due = self._checkpoint_is_due = False
        random = self.world.random(f"nonces of {self.name}, life {self.life}")

        def nonces() -> bytes:
            return random.randbytes(NONCE_BYTES)

        tiered = self.cluster.tiered
        ground = make_ground(
            BrokerIdentity(CLUSTER, self.group, self.store_host),
            CoreSettings(
                self.store_settings,
                self._journal,
                _POP,
                Live(TRANSACTIONS),
                delays=DELAYS,
                timers=Live(timer_settings(self.world)),
                **({} if tiered is None else {"tiers": Live(tiered.settings)}),
            ),
            Environment(
                self.disk,
                self,
                self.wall_ms,
                self.rng,
                random_bits=self._rng_of_tags.getrandbits,
                other_clocks_ms=self._other_clocks_ms,
                tier=None if tiered is None else tiered.tier_of(self),
            ),
        )
        store = open_store(ground, ask_first=ask_first)
        if self.cluster.writes_ahead:
            store.commitlog.write_ahead(*_AHEAD)
        incarnation = next_incarnation(self.disk, random.getrandbits)
        replicated = StoreReplicatedLog(store, self.request_flush)
        driver = ReplicationDriver(
            self.settings,
            Seams(replicated, EpochFile(self.disk), self, self),
            Credentials(SECRET, self.group.encode(), incarnation, nonces),
            confirm_offset=store.confirm_offset,
            now_ms=self.monotonic_ms(),
        )
        driver.damage_listeners.append(lambda damage: store.tell_damage(Suspicion(damage.offset, size=damage.size)))
        self.append_listeners = []
        self.first_clocks = self.wall_ms(), self.monotonic_ms()
        replica = SimReplica(driver, self.monotonic_ms, self._note_append, self._look_at_calm)
        try:
            core = BrokerCore(ground, Connected(self), replicated, replica)
        except CorruptedFile:
            store.abandon()
            raise
        self.core: BrokerCore = core
        self.driver: ReplicationDriver = driver
        self.session: Session = self._make_session(store, replicated, incarnation)
        core.store.position_holders.append((lambda: 0) if tiered is None else self._held_for_replicas)
        core.store.failure_listeners.append(lambda error: self.after(0, lambda: self.stop_process(str(error))))
        self.retry = retry_service(self)
        watch(self)
        for addition in getattr(self.cluster, "additions", ()):
            if hasattr(addition, "built"):
                addition.built(self)
        life = self.life
        driver.failure_listeners.append(lambda reason: self.after(0, lambda: self.stop_process(reason)))
        driver.role_listeners.append(lambda role, epoch: self._role_changed(life, role, epoch))

    def _other_clocks_ms(self) -> list[int] | None:
        return self.session.other_clocks_ms(self.monotonic_ms()) if self.session.has_other_clocks else None

    def _make_session(self, store: MessageStore, replicated: StoreReplicatedLog, incarnation: int) -> Session:
        files = IdentityFiles(self.disk, CLUSTER, self.group)
        registration = Registration(files, self.address, self.wall_ms())
        return ControllerSession(
            self.settings,
            Speaker(
                BrokerNames(CLUSTER, self.group, self.address, self.ha_address, ""),
                registration,
                incarnation,
                self.driver.machine,
                replicated.keeps_tail(acked_after_flush=self.settings.ack_after_flush),
                store.suspicion.confirmed if store.suspicion is not None else -1,
                [store.judged],
                lives=Lives(self.disk, incarnation),
            ),
            list(self.place.controllers),
            self.driver,
            self.monotonic_ms(),
        )

    # ---- who there is to be asked

    def controller_at(self, address: str) -> SimController | None:
        return self._controllers.get(address)

    def broker_at(self, address: str) -> SimBroker | None:
        return next((each for each in self._peers.values() if each.address == address), None)

    def other_addresses(self) -> list[str]:
        """The remoting addresses of the group's other brokers."""
        return [each.address for each in self._peers.values() if each is not self]

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Use these settings from now on, also after a start."""
        self.settings = settings
        if self.is_up:
            self.after(0, self.guarded(lambda: self.driver.reconfigure(settings, self.monotonic_ms())))

    def kill(self, how: str = "is killed") -> None:
        """The process dies; the machine, and its page cache, do not. Peers see their connections close."""
        self.world.note(f"{self.name} {how}")
        self._end(notify=True)
        self.disk.kill()

    def stop_process(self, reason: str) -> None:
        """The process ends of itself, as the daemon does when its disk fails; its supervisor starts it again."""
        if self.is_running:
            self.kill(f"stops: {reason}")
            self.cluster.stopped_itself(self)

    def crash(self, how: str = "loses power") -> None:
        """The machine loses power: what was not synced may be gone. Peers notice only by silence, or when it is back."""
        self.world.note(f"{self.name} {how}")
        self._end(notify=self.rng.random() < 0.5)
        self.disk.crash()
        self.cluster.lost_power(self)

    def replace(self) -> None:
        """Another machine with an empty disk takes this one's place and addresses; the process is not running."""
        assert not self.is_running
        self.world.note(f"{self.name} is replaced by a machine with an empty disk")
        self.disks.append(self.disk)
        self.disk = self._new_disk(f"disk of {self.name} {self.life}")
        self.refusal_to_start = None

    def lose_queues(self) -> None:
        """Somebody removes the files of the consume queues, all of them, to have them made again; the process is not running."""
        assert not self.is_running
        self.world.note(f"{self.name} loses the files of its queues")
        self.disk.no_more_faults()
        self.disk.remove("consumequeue")

    def _end(self, *, notify: bool) -> None:
        self.end_life()
        if self.cluster.tiered is not None:
            self.cluster.tiered.ended(self)
        for link in list(self._links.values()):
            link.end(notify)
        self._links.clear()
        if notify:
            for controller in self._controllers.values():
                self.network.send(self, controller, lambda c=controller: c.broker_left(self))  # type: ignore[misc]

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action; a loss of power inside it ends this life, and a disk error that nobody handled is logged, as by a loop."""

        def run() -> None:
            try:
                action()
            except PowerLost:
                if self.is_running:
                    self.crash("loses power at a sync")
            except StorageError as error:
                self.world.note(f"{self.name} logs an error: {error}")
                self.cluster.unhandled[str(error).split(":")[0][:60]] += 1

        return run

    # ---- time

    def _tick(self) -> None:
        self.driver.tick(self.monotonic_ms(), self._tick_ms)
        self.after_event()

    def _tick_calmly(self) -> None:
        """As brokers do: seldom while nothing is under way, until something happens."""
        self._calm_ticker = None
        self._ticked_ms = self.monotonic_ms()
        self.guarded(self._tick)()
        if self.is_up:
            self._tick_in(calm_tick_ms(self.settings) if self._is_calm() else TICK_MS)

    def _tick_in(self, period_ms: int) -> None:
        self._tick_ms = max(TICK_MS, self.monotonic_ms() + period_ms - self._ticked_ms)
        ticker = self.call_later(period_ms / 1000, self._tick_calmly)
        self._calm_ticker = ticker if period_ms > TICK_MS else None

    def _is_calm(self) -> bool:
        ahead_ms = calm_tick_ms(self.settings) + TICK_MS
        return self.session.is_calm and self.driver.is_calm(self.monotonic_ms(), ahead_ms)

    def after_event(self) -> None:
        if self.is_up:
            self._look_at_session(self.monotonic_ms())

    def _look_at_session(self, now_ms: int) -> None:
        self.session.tick(now_ms, self.wall_ms())
        for request in self.session.take_requests():
            self._send_request(request)
        self._look_at_calm()

    def _look_at_calm(self) -> None:
        if self._calm_ticker is not None and not self._is_calm():
            self._calm_ticker.cancel()
            self._tick_in(TICK_MS)

    def _checkpoint(self) -> None:
        """The loop takes a view; a helper thread writes it; the loop is told."""
        self._view = self.core.store.begin_checkpoint()
        self._checkpoint_is_due = True
        self.cluster.happened("checkpoint", self)
        self.after(self.rng.uniform(*self.sync_ms), self.guarded(self._run_checkpoint))

    def _run_checkpoint(self) -> None:
        if not self._checkpoint_is_due or self.disk.waits(lambda: self.after(0, self.guarded(self._run_checkpoint))):
            return  # it was done in the middle of a write
        self._checkpoint_is_due = False
        checkpoint = self._view
        failure: StorageError | None = None
        try:
            checkpoint.run()
        except StorageError as error:
            failure = error
        self.after(0, self.guarded(lambda: self._end_checkpoint(checkpoint, failure)))

    def _end_checkpoint(self, checkpoint: StoreCheckpoint, failure: StorageError | None) -> None:
        store = self.core.store
        if failure is None:
            store.finish_checkpoint(checkpoint)
        else:
            store.abandon_checkpoint(checkpoint)
            if not failure.is_out_of_space:
                store.fail(failure)
                return
            store.set_full(True)
        self.after(_CHECKPOINT_MS, self.guarded(self._checkpoint))

    def _look_at_disk(self) -> None:
        store = self.core.store
        decision = decide_retention(
            store.file_ages(), self.disk.usage(), store.held_offset(), self.wall_ms(), store.is_full, _RETENTION
        )
        if self.cluster.tiered is not None:
            decision = self.cluster.tiered.decide(self, decision)
        for remove in store.apply_retention(decision):
            remove()

    def _held_for_replicas(self) -> int | None:
        mastership = self.driver.machine.mastership
        return mastership.held_offset() if mastership is not None else None

    def _role_changed(self, life: int, role: Role, epoch: int) -> None:
        if life == self.life:
            end = self.core.store.commitlog.end_offset
            self.world.note(f"{self.name} is {role.value} in epoch {epoch}, its log ends at {end}")
            self.cluster.happened(role.name.lower(), self)
            if role is Role.MASTER:
                self.cluster.became_master(self)

    # ---- clients

    def _note_append(self, start: int, end_offset: int) -> None:
        """The master's log grew; at the begin of it may be the end of a file that had no room."""
        for listener in self.append_listeners:
            listener(start, end_offset)

    def take_send(self, drafts: list[Draft], answered: Callable[[list[SendOutcome]], None]) -> None:
        """A client's send; `answered` is called in this life only, and once."""
        life = self.life
        calls = 0
        self.waiting += 1

        def done(outcomes: Sequence[SendOutcome]) -> None:
            nonlocal calls
            calls += 1
            self.world.require(calls == 1, f"{self.name} answers a send twice")
            if self.life == life:
                self.waiting -= 1
            self.cluster.answered(self, drafts, outcomes)
            answered(list(outcomes))

        self.core.sender.send(drafts, done)

    # ---- flushing: what the flusher's thread does is a step of its own each, and so is what the loop does behind it

    def request_flush(self) -> None:
        if self._is_flushing:
            self._flush_wanted = True
            return
        self._is_flushing = True
        self._flush_wanted = False
        self._sync_is_due = True
        self.after(self.rng.uniform(*self.sync_ms), self.guarded(self._sync))

    def _in_the_middle(self, path: str) -> Action | None:
        """The loop is about to write to the log. A thread that has something to do may do it just then."""
        act = self._thread_act()
        if act is None or self.disk.stands or not path.startswith("commitlog/"):
            return None
        if self.core.store.commitlog.turns.contents.locked():
            return None  # the scrubber's thread writes, and whoever comes waits until it has ended
        if self._rng_of_threads.random() >= _INTERRUPTED:
            return None
        self.interrupted_writes += 1
        return act

    def _thread_act(self) -> Action | None:
        """What a thread has to do."""
        return self._sync if self._sync_is_due else self._run_checkpoint if self._checkpoint_is_due else None

    def _sync(self) -> None:
        """The thread syncs; the loop hears of it, and what nobody waits for follows in the thread: in either order."""
        if not self._sync_is_due or self.disk.waits(lambda: self.after(0, self.guarded(self._sync))):
            return  # it was done in the middle of a write
        self._sync_is_due = False
        store = self.core.store
        try:
            mark = store.sync()
        except StorageError as error:
            self.fail_soon(error)
            return
        spread_ms = self._rng_of_threads.choice((0.0, 0.0, 0.3))
        self.after(0, self.guarded(lambda: self._synced(mark)))
        self.after(self._rng_of_threads.uniform(0, spread_ms), self.guarded(lambda: self._leave_word(mark)))

    def fail_soon(self, error: StorageError) -> None:
        """A thread tells the loop that the disk failed."""
        self.after(0, self.guarded(lambda: self.core.store.fail(error)))

    def _synced(self, mark: SyncMark) -> None:
        """On the loop."""
        self._note_roll()
        self.core.store.mark_flushed(mark)
        self.driver.on_flushed(self.monotonic_ms())
        self.after_event()

    def _leave_word(self, mark: SyncMark) -> None:
        """In the thread, which then sees to the next file, and to what was asked for meanwhile."""
        store = self.core.store
        try:
            store.note_flushed(mark)
        except StorageError as error:
            self.fail_soon(error)
            return
        self.after(self._rng_of_threads.uniform(0, 0.2), self.guarded(self._prepare))

    def _prepare(self) -> None:
        try:
            self.core.store.prepare_next_segment()
        except StorageError as error:
            self.world.note(f"{self.name} has no room for its next file: {error}")
        self._is_flushing = False
        if self._flush_wanted:
            self.request_flush()

    def _note_roll(self) -> None:
        before, self._log_file = (
            self._log_file,
            self.core.store.commitlog.end_offset // self.store_settings.segment_size_bytes,
        )
        if self._log_file > before >= 0:
            self.cluster.happened("roll", self)

    # ---- controllers: `RoleAuthority` of the driver goes to the session

    def ask(self, what: Ask) -> None:
        self.session.ask(what)

    def propose(self, proposal: Any, master_epoch: int) -> None:
        self.session.propose(proposal, master_epoch)

    def _send_request(self, request: SessionRequest) -> None:
        controller = self._whom(request.address)
        life = self.life
        answered = False

        def answer(code: int, ext: dict[str, str], body: bytes) -> None:
            def arrive() -> None:
                nonlocal answered
                if not answered:
                    answered = True
                    try:
                        self.session.answered(request.token, code, ext, body, self.monotonic_ms())
                    except StorageError as error:  # a file of the registration, say
                        self.driver.break_down(str(error), self.monotonic_ms())
                    self.after_event()

            self.network.reply(controller, self, lambda: self.do(life, self.guarded(arrive)))

        def expire() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.session.failed(request.token, "no answer", self.monotonic_ms())
                self.after_event()

        self.network.send(self, controller, lambda: controller.handle(self, life, request, answer))
        if request.token:
            self.after(REQUEST_TIMEOUT_MS, self.guarded(expire))

    def _whom(self, address: str) -> Any:
        """Who answers the session's requests at an address."""
        return self._controllers[address]

    def notified(self) -> None:
        """A controller pushed that the role may have changed."""

        def take() -> None:
            if self.is_up:
                self.session.notified(self.monotonic_ms())
                self.after_event()

        self.guarded(take)()

    # ---- `Outlet` of the driver

    def connect(self, address: str, attempt: int) -> None:
        target = self._peers.get(address)
        life = self.life
        if target is None or not target.is_up or self.network.is_cut(self.name, target.name):

            def refuse() -> None:
                self.driver.connect_failed(attempt, "nobody answers", self.monotonic_ms())
                self.after_event()

            self.after(self.rng.uniform(0.1, 0.5), self.guarded(refuse))
            return
        delay_ms = self.network.delay_ms(self, target)
        self.world.after(delay_ms, lambda: self.do(life, self.guarded(lambda: dial(self, target, attempt))))

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        link = self._links.get(connection)
        if link is not None:
            link.outgoing.send(b"".join(buffers))

    def can_send(self, connection: int) -> bool:
        link = self._links.get(connection)
        return link is not None and link.outgoing.waiting_bytes < _MAX_WAITING_BYTES

    def close(self, connection: int) -> None:
        link = self._links.get(connection)
        if link is not None:
            link.end(notify=True)

    def new_connection(self, link: Link) -> int:
        connection = self._next_connection
        self._next_connection += 1
        self._links[connection] = link
        return connection

    def reset_links(self, peer: SimBroker) -> int:
        """The network forgets the connections between two brokers; both ends are told."""
        links = [link for link in self._links.values() if link.peer is peer and link.outgoing.is_open]
        for link in links:
            link.end(notify=True)
        return len(links)

    def connection_lost(self, connection: int) -> None:
        if self._links.pop(connection, None) is not None and self.is_up:
            self.driver.lost(connection, self.monotonic_ms())
            self.after_event()

    def received(self, connection: int, data: bytes) -> None:
        """Bytes of the other side."""
        if connection not in self._links:
            return
        now_ms = self.monotonic_ms()
        self.driver.received(connection, data, now_ms)
        if self.is_up:
            self._look_at_session(now_ms)
