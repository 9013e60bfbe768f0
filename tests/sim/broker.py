"""A broker in the simulator: the real core over a faulty disk, and shells that put its bytes and requests on the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from brokerd.core import BrokerCore, BrokerIdentity
from brokerd.replication.control import BrokerNames, BrokerPosition, ControlCore, ControlRequest
from brokerd.replication.engine import ReplicaEngine
from brokerd.replication.epoch_file import EpochFile
from brokerd.replication.identity import IdentityFiles, Registration, next_incarnation
from brokerd.replication.log import ReplicatedLog
from brokerd.replication.proof import NONCE_BYTES, Credentials
from brokerd.replication.settings import ReplicationSettings
from brokerd.services import Draft, PutStatus, SendOutcome
from brokerd.store.settings import StoreSettings
from remoting.disk import Bytes
from remoting.errors import LogboomError
from remoting.message import pack_host
from tests.sim.world import Network, Node, Stream, World
from tests.support.disks import FaultyDisk, PowerLost

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController

CLUSTER = "DefaultCluster"
GROUP = "broker-a"
STORE = StoreSettings(segment_size_bytes=16384, queue_file_units=64, max_record_bytes=8192, dispatch_chunk_bytes=65536)
TICK_MS = 50
FLUSH_MS = (0.2, 3.0)
REQUEST_TIMEOUT_MS = 1000
_MAX_WAITING_BYTES = 1 << 18


class SimReplica:
    """The engine as `BrokerCore` wants it."""

    def __init__(self, engine: ReplicaEngine, now_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self.add_role_listener = engine.add_role_listener
        self.add_confirm_listener = engine.add_confirm_listener

    @property
    def is_master(self) -> bool:
        return self._engine.is_master

    @property
    def accepts_messages(self) -> bool:
        return self._engine.accepts_messages

    @property
    def refusal(self) -> PutStatus:
        return self._engine.refusal

    @property
    def confirm_offset(self) -> int:
        return self._engine.core.confirm_offset

    def on_appended(self, end_offset: int) -> None:
        self._engine.on_appended(end_offset, self._now_ms())

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        self._engine.wait(position, callback, self._now_ms())


class SimBroker(Node):
    """One replica. `start`, `kill` and `lose_power` are its lives; the disk stays."""

    def __init__(
        self,
        world: World,
        network: Network,
        index: int,
        peers: dict[str, SimBroker],
        controllers: dict[str, SimController],
        settings: ReplicationSettings,
    ) -> None:
        super().__init__(world, f"b{index}")
        self.network = network
        self.disk = FaultyDisk(Random(world.rng.random()))
        self.address = f"{self.name}:10911"
        self.ha_address = f"{self.name}:10912"
        self.failed_starts = 0
        self._index = index
        self._peers = peers
        self._controllers = controllers
        self._settings = settings
        self._wall_offset_ms = 1_700_000_000_000 + world.rng.randrange(-5000, 5000)
        self.cluster: SimCluster
        peers[self.ha_address] = self

    # ---- lives

    def start(self) -> None:
        self.begin_life()
        self._flush_wanted = self._is_flushing = False
        self._next_connection = 1
        self._links: dict[int, _Link] = {}
        life = self.life
        try:
            self._build()
        except PowerLost:
            self.crash("lost power while it started")
            return
        assert life == self.life
        self.every(TICK_MS, self.guarded(self._tick))
        self.every(500, self.guarded(self._checkpoint))

    def _build(self) -> None:
        files = IdentityFiles(self.disk, CLUSTER, GROUP)
        registration = Registration(files, self.address, self._wall_ms())
        self.control: ControlCore

        random = Random(f"nonces of {self.name}, life {self.life}")

        def nonces() -> bytes:
            return random.randbytes(NONCE_BYTES)

        def make_replica(replicated: ReplicatedLog, confirm_offset: int) -> SimReplica:
            self.engine = ReplicaEngine(
                self._settings,
                replicated,
                EpochFile(self.disk),
                self,
                self,
                credentials=Credentials(b"known to this cluster only", GROUP.encode(), self.life, nonces),
                confirm_offset=confirm_offset,
                now_ms=self._now_ms(),
            )
            return SimReplica(self.engine, self._now_ms)

        self.core = BrokerCore(
            BrokerIdentity(CLUSTER, GROUP, pack_host(f"10.0.0.{self._index + 1}", 10911)),
            self.disk,
            STORE,
            make_replica,
            request_flush=self.request_flush,
            is_alive=lambda _: False,
            scheduler=self,
            wall_ms=self._wall_ms,
            rng=Random(self.world.rng.random()),
        )
        self.control = ControlCore(
            self._settings,
            BrokerNames(CLUSTER, GROUP, self.address, self.ha_address, ""),
            list(self._controllers),
            registration,
            self.engine,
            self._position,
            incarnation=next_incarnation(self.disk),
            now_ms=self._now_ms(),
        )

    def kill(self) -> None:
        """The process dies; the machine, and its page cache, do not. Peers see their connections close."""
        self.world.note(f"{self.name} is killed")
        self._end(notify=True)
        self.disk.kill()

    def crash(self, how: str = "loses power") -> None:
        """The machine loses power: what was not synced may be gone. Peers notice only by silence, or when it is back."""
        self.world.note(f"{self.name} {how}")
        self._end(notify=self.world.rng.random() < 0.5)
        self.disk.crash()

    def _end(self, *, notify: bool) -> None:
        self.end_life()
        for link in list(self._links.values()):
            link.end(notify)
        if notify:
            for controller in self._controllers.values():
                self.network.send(self, controller, lambda c=controller: c.broker_left(self))  # type: ignore[misc]

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action; a loss of power inside it ends this life."""

        def run() -> None:
            try:
                action()
            except PowerLost:
                if self.is_up:
                    self.crash("loses power at a sync")

        return run

    # ---- clocks

    def _now_ms(self) -> int:
        return int(self.world.now_ms)

    def _wall_ms(self) -> int:
        return self._wall_offset_ms + int(self.world.now_ms)

    # ---- time

    def _tick(self) -> None:
        self.engine.tick(self._now_ms(), TICK_MS)
        self._after_event()

    def _after_event(self) -> None:
        self.control.tick(self._now_ms(), self._wall_ms())
        for request in self.control.take_requests():
            self._send_request(request)

    def _checkpoint(self) -> None:
        checkpoint = self.core.store.begin_checkpoint()
        checkpoint.run()
        self.core.store.finish_checkpoint(checkpoint)

    def _position(self) -> BrokerPosition:
        core = self.engine.core
        return BrokerPosition(
            core.epochs.last_epoch, core.highest_epoch, core.log.end_offset, max(core.confirm_offset, 0)
        )

    # ---- clients

    def take_send(self, drafts: list[Draft], answered: Callable[[list[SendOutcome]], None]) -> None:
        """A client's send."""

        def done(outcomes: Sequence[SendOutcome]) -> None:
            if any(outcome.status is PutStatus.PUT_OK for outcome in outcomes):
                self.cluster.acknowledged(self)
            answered(list(outcomes))

        self.guarded(lambda: self.core.sender.send(drafts, done))()

    # ---- flushing

    def request_flush(self) -> None:
        if self._is_flushing:
            self._flush_wanted = True
            return
        self._is_flushing = True
        self._flush_wanted = False
        self.after(self.world.rng.uniform(*FLUSH_MS), self.guarded(self._flushed))

    def _flushed(self) -> None:
        store = self.core.store
        mark = store.sync()
        self._is_flushing = False
        store.mark_flushed(mark)
        store.note_flushed(mark)
        self.engine.on_flushed(self._now_ms())
        if self._flush_wanted:
            self.request_flush()
        self._after_event()

    # ---- controllers: `ControlRequests` of the engine go through the control core

    def request_sync(self) -> None:
        self.control.request_sync()

    def request_election(self) -> None:
        self.control.request_election()

    def request_members(self) -> None:
        self.control.request_members()

    def propose(self, proposal: object, master_epoch: int) -> None:
        self.control.propose(proposal, master_epoch)  # type: ignore[arg-type]

    def _send_request(self, request: ControlRequest) -> None:
        controller = self._controllers[request.address]
        life = self.life
        answered = False

        def answer(code: int, ext: dict[str, str], body: bytes) -> None:
            def arrive() -> None:
                nonlocal answered
                if not answered:
                    answered = True
                    self.control.answered(request.token, code, ext, body, self._now_ms())
                    self._after_event()

            self.network.send(controller, self, lambda: self.do(life, self.guarded(arrive)))

        def expire() -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.control.failed(request.token, "no answer", self._now_ms())
                self._after_event()

        self.network.send(self, controller, lambda: controller.handle(self, life, request, answer))
        if request.token:
            self.after(REQUEST_TIMEOUT_MS, self.guarded(expire))

    def notified(self) -> None:
        """A controller pushed that the role may have changed."""

        def take() -> None:
            self.control.notified(self._now_ms())
            self._after_event()

        self.guarded(take)()

    # ---- `Outlet` of the engine

    def connect(self, address: str, attempt: int) -> None:
        target = self._peers.get(address)
        life = self.life

        def refuse(reason: str) -> None:
            def arrive() -> None:
                self.engine.connect_failed(attempt, reason, self._now_ms())
                self._after_event()

            self.after(self.network.delay_ms(), self.guarded(arrive))

        if target is None or not target.is_up or self.network.is_cut(self.name, target.name):
            refuse("nobody answers")
            return
        self.network.world.after(self.network.delay_ms(), lambda: self.do(life, lambda: _dial(self, target, attempt)))

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        link = self._links.get(connection)
        if link is not None:
            link.outgoing.send(b"".join(map(bytes, buffers)))

    def can_send(self, connection: int) -> bool:
        link = self._links.get(connection)
        return link is not None and link.outgoing.waiting_bytes < _MAX_WAITING_BYTES

    def close(self, connection: int) -> None:
        link = self._links.get(connection)
        if link is not None:
            link.end(notify=True)

    def new_connection(self, link: _Link) -> int:
        connection = self._next_connection
        self._next_connection += 1
        self._links[connection] = link
        return connection

    def connection_lost(self, connection: int) -> None:
        if self._links.pop(connection, None) is not None and self.is_up:
            self.engine.lost(connection, self._now_ms())
            self._after_event()

    def received(self, connection: int, data: bytes, link: _Link) -> None:
        """Bytes of the other side."""
        if connection not in self._links:
            return
        self.engine.received(connection, data, self._now_ms())
        self.engine.pump(connection, self._now_ms())
        self._after_event()


class _Link:
    """One end of a replication connection."""

    def __init__(self, owner: SimBroker) -> None:
        self.owner = owner
        self.connection = owner.new_connection(self)
        self.other: _Link
        self.outgoing: Stream

    def end(self, notify: bool) -> None:
        """Close this end; the other side hears of it when somebody tells it (a reset), or never."""
        if not self.outgoing.is_open:
            return
        self.outgoing.is_open = False
        owner, other = self.owner, self.other
        if owner.is_up:
            owner.after(0, owner.guarded(lambda: owner.connection_lost(self.connection)))
        if notify and other.outgoing.is_open:
            peer = other.owner
            life = peer.life

            def reset() -> None:
                other.outgoing.is_open = False
                peer.connection_lost(other.connection)

            delay = owner.network.delay_ms()
            owner.world.after(delay, lambda: peer.do(life, peer.guarded(reset)))


def _dial(source: SimBroker, target: SimBroker, attempt: int) -> None:
    """A connection between two living brokers: both ends learn of it."""
    near = _Link(source)
    near.outgoing = Stream(source.network, source, target, lambda _: None)
    if not target.is_up or target.is_paused:
        near.outgoing.is_open = False
        source.connection_lost(near.connection)
        source.engine.connect_failed(attempt, "nobody answers", int(source.world.now_ms))
        return
    far = _Link(target)
    near.other, far.other = far, near

    def to_target(data: bytes) -> None:
        target.guarded(lambda: target.received(far.connection, data, far))()

    def to_source(data: bytes) -> None:
        source.guarded(lambda: source.received(near.connection, data, near))()

    near.outgoing = Stream(source.network, source, target, to_target)
    far.outgoing = Stream(source.network, target, source, to_source)
    target.guarded(lambda: target.engine.accepted(far.connection, int(target.world.now_ms)))()
    if source.is_up:
        source.guarded(lambda: source.engine.connected(attempt, near.connection, int(source.world.now_ms)))()
