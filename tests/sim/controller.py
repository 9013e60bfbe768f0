"""A controller in the simulator: real Raft node, log file, state machine, processors and election triggers.

The processors are coroutines that wait for decisions only; `Steps` runs them without an event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd.replication.controllers.session import SessionRequest
from controllerd.live_settings import LiveSettings
from controllerd.metrics import Counters
from controllerd.nameserver.routes import RouteTable
from controllerd.processors.controllers_view import ControllersView
from controllerd.processors.heartbeats import HeartbeatProcessor
from controllerd.processors.membership import MembershipProcessor
from controllerd.processors.replicas import ReplicasProcessor
from controllerd.processors.returns import Returns
from controllerd.processors.serving import Serving
from controllerd.processors.views import ViewsProcessor
from controllerd.raft.acquaintances import Acquaintances
from controllerd.raft.core import RaftCore
from controllerd.raft.incarnations import incarnations, name_of
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log import LostLog
from controllerd.raft.log_file import RaftLogFile, WriteRefused
from controllerd.raft.members import Members
from controllerd.raft.membership import MemberChange
from controllerd.raft.messages import EntryKind, Message, MessageKind, Ready, Role
from controllerd.raft.node import RaftNode
from controllerd.raft.quorum import Configuration, NodeId
from controllerd.raft.standing import Standing, standing
from controllerd.raft.ticking import Ticking
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.records import LIVES_LEVEL, MasterElected, Record
from controllerd.replicas.state import ReplicasState
from controllerd.replicas.triggers import due_counts, due_elections
from controllerd.settings import ControllerSettings
from controllerd.state.features import Features, LevelRaised, RaiseLevel
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.errors import CorruptedFile, LogboomError, StorageError
from remoting.frame import Command
from remoting.settings import Live
from tests.sim.world import Network, Node, Timer, World
from tests.support.disks import FaultyDisk, PowerLost

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

_WRITE_RETRY_MS = 500
_RETURN_MS = 500
_LOOK_MS = 1000
_CALM_AFTER_TICKS = 10  # a story is short
Answer = Callable[[int, dict[str, str], bytes], None]


class Decision:
    """Something awaited: a proposal's reply or a confirmed read."""

    def __init__(self) -> None:
        self.result: Any = None
        self.resume: Callable[[], None] | None = None
        self.is_done = False

    def answered(self, result: Any) -> None:
        self.result, self.is_done = result, True
        if self.resume is not None:
            self.resume()

    def __await__(self) -> Generator[Decision, None, Any]:
        if not self.is_done:
            yield self
        if isinstance(self.result, LogboomError):
            raise self.result
        return self.result


class Steps:
    """A `TaskOwner` that runs a coroutine until it waits, and goes on in a later turn when it may."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def spawn(self, work: Coroutine[Any, Any, Any], what: str) -> None:
        self._step(work)

    def _step(self, work: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(StopIteration):
            decision: Decision = work.send(None)
            decision.resume = lambda: self._node.after(0, lambda: self._step(work))


class Connection:
    """What a processor uses of a connection; its answers go back over the network."""

    def __init__(self, client: Node) -> None:
        self.peer = client.name
        self._answers: dict[int, Answer] = {}

    def expect(self, request: Command, answer: Answer) -> None:
        self._answers[request.opaque] = answer

    def respond(
        self, request: Command, code: int = 0, ext: Any = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        answer = self._answers.pop(request.opaque, None)
        if answer is not None and not request.is_oneway:
            answer(code, dict(ext or {}), bytes(body))

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))


class _NoRoutes:
    """The name server's part of a heartbeat; routes are not simulated."""

    def heartbeat(self, connection: Connection, request: Command) -> None:
        connection.respond(request)


class SimController(Node):
    """One controller. Its Raft messages and its requests travel over the simulated network."""

    def __init__(
        self, world: World, network: Network, name: str, peers: dict[str, SimController], founders: tuple[str, ...]
    ) -> None:
        """`peers` are all that may ever belong to the group; one that is no founder waits to be brought in."""
        super().__init__(world, name)
        self.founders = founders if name in founders else ()
        self.is_retired = False
        self.is_damaged = False  # whether its files were, so that it may have lost what it promised
        self.is_waiting = False  # to be taken again by the group, as it did
        self.node_id = name
        self.network = network
        self.rng = world.random(name)
        self.disk = FaultyDisk(world.random(f"disk of {name}"))
        self._lives = world.random(f"lives of {name}")
        self.sync_ms = (0.2, 3.0)  # how long a sync takes
        self.cluster: SimCluster
        self._peers = peers
        self._brokers: dict[str, SimBroker] = {}

    def meet(self, brokers: dict[str, SimBroker]) -> None:
        """The brokers by remoting address."""
        self._brokers.update(brokers)

    # ---- lives

    def start(self) -> None:
        """Start the process; it may die of its disk before it is up."""
        self.begin_life()
        self.world.note(f"{self.name} starts (life {self.life})")
        self.settings = ControllerSettings(self.name, {name: f"{name}:9876" for name in self._peers}, Path())
        self.is_waiting = False
        self.disk_error = ""
        self._founded_in_term = 0
        self._is_carrying_out = False
        self._under_way: set[str] = set()
        self._ticking: Ticking | None = None  # of a story with calm ticks
        self._ticker: Timer | None = None
        self._term = 0
        self._connections: dict[tuple[str, int], Connection] = {}
        self._admitted: set[tuple[NodeId, str]] = set()
        self._greeted: set[NodeId] = set()
        self.table = HeartbeatTable(**asdict(self.settings.liveness))
        self.machine = ControllerMachine({"replicas": self._recorded, "features": self._level_recorded})
        try:
            self._build()
        except PowerLost:
            self.crash("loses power while it starts")
            return
        except LostLog as error:
            self._come_back(str(error))
            return
        except CorruptedFile as error:
            self._refuse(f"finds its files damaged: {error}")
            return
        except StorageError as error:
            self.stop_process(f"cannot start: {error}")
            return
        if self.cluster.calm_ticks:
            self._ticking = Ticking(self.node.core, self.settings.raft.tick_ms, self.time())
            self._look_at(self._ticking.plan(self.time()))
        else:
            self.every(self.settings.raft.tick_ms, self.guarded(self._tick))
        self.every(self.settings.liveness.scan_ms, self.guarded(self._scan))
        self.every(_LOOK_MS, self.guarded(self._returns.look))
        self.every(_LOOK_MS, self._greet)
        if self.cluster.counts_lives:
            self.raise_level_soon()

    def _build(self) -> None:
        raft = self.settings.raft
        self.file = RaftLogFile(self.disk, raft.group, self.name, self.founders, self._draw)
        recovered = self.file.open()
        self.node_id = recovered.identity.node_id
        self.members = Members(self.node_id, self.settings.peers, recovered.identity.lives, Acquaintances(self.disk))
        core = RaftCore(
            self.node_id,
            recovered.founders,
            recovered.log,
            recovered.hard_state,
            self._core_settings(),
            self.rng,
        )
        self.node = RaftNode(core, self.machine, compact_after_entries=40, keep_entries=10)
        owner, counters = Steps(self), Counters()
        groups = BrokerGroups(lambda: self.machine.replicas, self.table, self.monotonic_ms, lambda: 0)
        serving = Serving(self, counters, owner)  # type: ignore[arg-type]
        replicas = ReplicasProcessor(
            Live(self.settings.election),
            self,  # type: ignore[arg-type]
            groups,
            counters,
            raft.decide_timeout_ms,
        )
        self._heartbeats = HeartbeatProcessor(
            self.table,
            self,  # type: ignore[arg-type]
            _NoRoutes(),  # type: ignore[arg-type]
            self.monotonic_ms,
            counters,
        )
        membership = MembershipProcessor(
            self.settings,
            self,  # type: ignore[arg-type]
            self.members,
            counters,
        )
        views = ViewsProcessor(
            LiveSettings(self.settings, self.disk),
            ControllersView(self.name, self, self.members),
            groups,
            RouteTable(),
            counters,
            self.machine,
        )
        self._returns = Returns(raft.group, self, self.members, owner)
        self._handlers = {
            **serving.measured(replicas.handles()),
            **serving.measured(self._heartbeats.handles()),
            **serving.handlers(membership.handles()),
            **serving.handlers(self._returns.handles()),
            **serving.handlers(views.handles()),
        }

    def _core_settings(self) -> CoreSettings:
        raft, story = self.settings.raft, self.cluster.story
        settings = CoreSettings(election_ticks=raft.election_ticks, heartbeat_ticks=story.heartbeat_ticks)
        if not story.calm_ticks:
            return settings
        return replace(settings, calm_heartbeat_ticks=raft.calm_heartbeat_ticks, calm_after_ticks=_CALM_AFTER_TICKS)

    def _draw(self) -> str:
        return f"{self._lives.getrandbits(32):08x}"

    def _come_back(self, reason: str) -> None:
        """What it promised is lost: ask the group for a new incarnation until that is decided, and start again as that one."""
        is_damaged = self.is_damaged or self.cluster.decay.is_damaged(self)
        self.world.require(is_damaged, f"{self.name} says that it lost its log: {reason}")
        self.is_waiting = True
        own = self.file.renounce(reason)
        self.world.note(f"{self.name} asks to come back as {own.next_id}: {reason}")
        ext = {"group": own.group, "node": own.next_id, "address": f"{self.name}:9876"}
        life = self.life

        def answer(peer: SimController, code: int) -> None:
            if code == codes.SUCCESS and self.is_waiting:
                self.world.note(f"{peer.name} has taken it again, as {own.next_id}")
                self.file.begin_anew()
                self.kill("ends, to begin anew")
                self.start()

        def arrive(peer: SimController) -> None:
            request = SessionRequest(1, "", codes.RAFT_RETURN, ext)
            peer.handle(
                self,
                life,
                request,
                lambda code, ext, body: self.network.reply(
                    peer, self, lambda: self.do(life, self.guarded(lambda: answer(peer, code)))
                ),
            )

        def ask() -> None:
            for peer in self._peers.values():
                if peer is not self:
                    self.network.send(self, peer, lambda peer=peer: arrive(peer))

        self.every(_RETURN_MS, self.guarded(ask))

    def kill(self, how: str = "is killed") -> None:
        self.world.note(f"{self.name} {how}")
        self.end_life()
        self.disk.kill()
        for peer in self._peers.values():  # whose connections to it close
            if peer is not self:
                self.network.send(self, peer, peer.guarded(lambda peer=peer: peer.peer_lost(self.name)))  # type: ignore[misc]

    def _refuse(self, why: str) -> None:
        """It has lost what it had acknowledged, and says so. Whose disk is well has no reason to; the others do without it."""
        self.world.require(self.cluster.decay.is_damaged(self), f"{self.name} {why}")
        self.kill(why)

    def stop_process(self, reason: str) -> None:
        """The process ends of itself, as the daemon does when its disk fails; its supervisor starts it again."""
        if self.is_up:
            self.kill(f"stops: {reason}")
            self.cluster.stopped_itself(self)

    def crash(self, how: str = "loses power") -> None:
        self.world.note(f"{self.name} {how}")
        self.end_life()
        self.disk.crash()
        self.cluster.lost_power(self)

    def guarded(self, action: Callable[[], None]) -> Callable[[], None]:
        """The action; a loss of power inside it ends this life, and so does a disk that refuses."""

        def run() -> None:
            try:
                action()
            except PowerLost:
                if self.is_up:
                    self.crash("loses power at a sync")
            except LostLog as error:
                self.kill(f"stops: {error}")
                self.begin_life()
                self._come_back(str(error))
            except StorageError as error:
                self.stop_process(str(error))

        return run

    # ---- what the processors see as the driver

    @property
    def is_serving(self) -> bool:
        return not self.is_waiting and not self.disk_error and self.node.is_serving

    async def change_membership(
        self,
        changes: Sequence[MemberChange],
        addresses: Mapping[str, str],
        timeout_ms: int,
    ) -> Configuration:
        decision = Decision()
        self._pass_time()
        self.node.change_membership(changes, addresses, decision.answered)
        self._carry_out_soon()
        configuration: Configuration = await decision
        return configuration

    async def transfer_leader(self, target: str, timeout_ms: int) -> None:
        decision = Decision()
        self._pass_time()
        self.node.transfer_leader(target, decision.answered)
        self._carry_out_soon()
        await decision

    async def propose(self, request: Any, timeout_ms: int) -> Any:
        decision = Decision()
        self._pass_time()
        self.node.propose(request, decision.answered)
        self._carry_out_soon()
        return await decision

    async def read_barrier(self, timeout_ms: int) -> None:
        decision = Decision()
        self._pass_time()
        self.node.read(decision.answered)
        self._carry_out_soon()
        await decision

    # ---- what the heartbeat processor sees as the elections

    def look(self, names: Any = None) -> None:
        if not self.node.is_serving:
            return
        state, now_ms = self.machine.replicas, self.monotonic_ms()
        elections = due_elections(state, self.table, now_ms, unclean=False, names=names)
        for request in (*elections, *due_counts(state, self.table, now_ms, names)):
            if request.broker_name in self._under_way:
                continue
            name = request.broker_name
            self._under_way.add(name)
            with contextlib.suppress(LogboomError):
                self.node.propose(request, lambda _, name=name: self._under_way.discard(name))  # type: ignore[misc]
                self._carry_out_soon()
                continue
            self._under_way.discard(name)

    def raise_level_soon(self) -> None:
        """All of them are of one version here, which may be said a while after they started."""
        self.every(_LOOK_MS, self.guarded(self._raise_level))

    def _raise_level(self) -> None:
        level = self.machine.highest_level
        if self.is_serving and self.machine.features.level < level:
            with contextlib.suppress(LogboomError):
                self.node.propose(RaiseLevel((level,)), lambda _: None)
                self._carry_out_soon()

    def _level_recorded(self, _record: LevelRaised | None, features: Features) -> None:
        self.table.counts_lives = features.level >= LIVES_LEVEL

    def _scan(self) -> None:
        self.table.scan(self.monotonic_ms())
        self.look()

    def _recorded(self, record: Record | None, state: ReplicasState) -> None:
        if isinstance(record, MasterElected) and self.node.is_serving:
            group = state.groups[record.broker_name]
            self.world.note(f"{self.name}: broker {record.broker_id} is master of epoch {record.master_epoch}")
            for replica in group.replicas.values():
                broker = self._brokers.get(replica.address)
                if broker is not None:
                    self.network.send(self, broker, broker.notified)

    # ---- raft

    def _tick(self) -> None:
        if not self.disk_error:
            self.node.tick()
        self._carry_out_soon()

    def _tick_together(self) -> None:
        """As the daemon does: some ticks together while they bring nothing."""
        self._pass_time()
        self._carry_out_soon()
        self._look_at(self._ticking.plan(self.time()))

    def _look_at(self, at_s: float) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = self.call_later(max(0.0, at_s - self.time()), self._tick_together)

    def _pass_time(self) -> None:
        if self._ticking is None:
            return
        for _ in range(self._ticking.passed(self.time())):
            if not self.disk_error:
                self.node.tick()

    def receive(self, peer: SimController, lives: Sequence[str], message: Message) -> None:
        """A Raft message that another controller sent in the first of these lives."""
        if self.disk_error or self.is_waiting or message.to != self.node_id:
            return  # what it would answer could not be kept, or is for an incarnation that is no more
        if not self._admits(peer, message.sender, lives):
            return
        self._pass_time()
        self.node.step(message)
        self._carry_out_soon()

    def _admits(self, peer: SimController, node: NodeId, lives: Sequence[str]) -> bool:
        """Whether it listens to the other one, as is settled where a connection begins."""
        if (node, lives[0]) in self._admitted:
            return True
        at_home = peer.members.lives[0] if peer.is_running and peer.node_id == node else ""
        acquaintances, configuration = self.members.acquaintances, self.node.core.configuration
        found = standing(lives, acquaintances.life(node), at_home)
        if node in configuration.retired and incarnations(configuration, name_of(node)):
            found = Standing.OLDER
        if found is Standing.ITSELF:
            if acquaintances.life(node) != lives[0]:
                acquaintances.note(node, lives[0], {*configuration.members, *configuration.retired})
            self._admitted.add((node, lives[0]))
        elif found is Standing.OLDER:
            life, refusal = peer.life, f"{self.name} knows that it was in a later life"
            self.network.reply(self, peer, lambda: peer.do(life, peer.guarded(lambda: _lost_log(refusal))))
        return found is Standing.ITSELF

    def _greet(self) -> None:
        """Introduce this node to each member that has not taken its introduction yet."""
        configuration, lives = self.node.core.configuration, self.members.lives
        for node in configuration.members if configuration.cluster and not self.is_waiting else ():
            if node not in self._greeted and node != self.node_id:
                target = self._peers[name_of(node)]
                self.network.send(self, target, target.guarded(partial(target.greeted, self, self.life, lives)))

    def greeted(self, peer: SimController, life: int, lives: Sequence[str]) -> None:
        """Another controller introduces itself, in a life of its process."""
        if not self.is_waiting and self._admits(peer, peer.node_id, lives):
            self.network.reply(self, peer, partial(peer.do, life, partial(peer._greeted.add, self.node_id)))

    def peer_lost(self, name: str) -> None:
        """Another controller closed its connections."""
        if not self.is_waiting and name_of(self.node.core.leader or "") == name:
            self.node.core.forget_leader()
            self._carry_out_soon()

    def _carry_out_soon(self) -> None:
        if not self._is_carrying_out:
            self._is_carrying_out = True
            self.after(0, self.guarded(self._carry_out))

    def _carry_out(self) -> None:
        """One round: send, write, sync, send; the sync takes time, and nothing else of this node waits for it."""
        ready = self.node.ready()
        if ready is None:
            self._is_carrying_out = False
            if self._ticking is not None and (at_s := self._ticking.plan_anew(self.time())) is not None:
                self._look_at(at_s)
            return
        for message in ready.send_now:
            self._send(message)
        if ready.persist is None:
            self._finish(ready)
        else:
            self.after(self.rng.uniform(*self.sync_ms), self.guarded(lambda: self._persist(ready)))

    def _persist(self, ready: Ready) -> None:
        assert ready.persist is not None
        try:
            self.file.persist(ready.persist)
        except WriteRefused as error:
            if not self.disk_error:
                self.world.note(f"{self.name} is out of service: {error}")
            self.disk_error = str(error)
            self.node.step_down()
            self.after(_WRITE_RETRY_MS, self.guarded(lambda: self._persist(ready)))
            return
        self.disk_error = ""
        self._finish(ready)

    def _finish(self, ready: Ready) -> None:
        for message in ready.send_after_persist:
            self._send(message)
        for entry in ready.committed:
            self.cluster.decided(self, entry.index, entry.kind is EntryKind.DECISION, entry.data)
        self.node.finish()
        if ready.committed or ready.restore is not None:
            self.cluster.applied(self, self.node.core.log.applied, self.machine)
        self._report()
        compaction = self.node.compaction()
        if compaction is not None:
            try:
                self.file.compact(compaction)
            except WriteRefused:
                self.node.compaction_refused()
        self._carry_out()

    def _send(self, message: Message) -> None:
        target, lives = self._peers[name_of(message.to)], self.members.lives

        def arrive() -> None:
            target.receive(self, lives, message)
            if message.kind is MessageKind.SNAPSHOT:  # its sender learns that the last piece was taken
                life = self.life
                self.network.send(target, self, lambda: self.do(life, self.guarded(delivered)))

        def delivered() -> None:
            self.node.core.report_snapshot(message.to, delivered=True)
            self._carry_out_soon()

        self.network.send(self, target, target.guarded(arrive), may_double=message.kind is not MessageKind.SNAPSHOT)

    def _report(self) -> None:
        state = self.node.core.soft_state
        if state.role is Role.LEADER and state.term != self._term:
            self._term = state.term
            self.cluster.happened("leader", self)
            self.world.note(f"{self.name} leads term {state.term}")
            self.table.lead(self.monotonic_ms())
        configuration = self.node.core.configuration
        if configuration is not self.members.configuration:
            self.members.configured(configuration)
            if self.node_id in configuration.retired and not self.is_retired:
                self.is_retired = True
                self.after(1500, lambda: self.kill("ends: it was removed"))
        if not configuration.cluster and self.is_serving and state.term != self._founded_in_term:
            progress = self.node.core.progress
            if all(progress[node].match > 0 for node in configuration.voters):
                self._found(state.term)

    def _found(self, term: int) -> None:
        with contextlib.suppress(LogboomError):
            self.node.found("simulated", dict(self.settings.peers), lambda _: None)
            self._founded_in_term = term
            self._carry_out_soon()

    # ---- brokers

    def handle(self, client: Node, life: int, request: SessionRequest, answer: Answer) -> None:
        """A request of a broker, an administrator or another controller, in one of its lives."""
        if self.is_waiting:
            return
        connection = self._connections.setdefault((client.name, life), Connection(client))
        flag = codes.FLAG_ONEWAY if not request.token else 0
        command = Command(request.code, request.token, dict(request.ext), request.body, flag)
        connection.expect(command, answer)
        if request.code == codes.CONTROLLER_GET_METADATA_INFO:
            leader = self.node.core.soft_state.leader
            ext = {
                "controllerLeaderAddress": name_of(leader or ""),
                "isLeader": str(self.node.is_serving).lower(),
                "currentTimeMillis": str(self.wall_ms()),
            }
            connection.respond(command, ext=ext)
            return

        def run() -> None:
            self._handlers[request.code](connection, [command])  # type: ignore[arg-type]

        self.guarded(run)()

    def broker_left(self, broker: SimBroker) -> None:
        """The broker's connection closed."""
        for key in [key for key in self._connections if key[0] == broker.name]:
            connection = self._connections.pop(key)
            self.guarded(lambda connection=connection: self._heartbeats.connection_closed(connection))()  # type: ignore[arg-type, misc]


def _lost_log(reason: str) -> None:
    raise LostLog(reason)
