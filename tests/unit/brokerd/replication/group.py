"""A whole broker group in one process and one thread: real replication drivers, scripted network, controller and power.

Nothing happens by itself. Bytes wait on a `Wire` until somebody delivers them, requests wait at the `Controller` until somebody
processes them, answers wait until somebody delivers or loses them, logs are flushed when somebody says so, and the clock moves
when it is told. So one test can put any two events in any order, and a seeded one can put all of them in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.facts import driver_facts
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.driver import ReplicationDriver, Seams
from brokerd.replication.roles.effects import Ask, Role, RoleView
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.proof import NONCE_BYTES, Credentials
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError
from tests.support.disks import MemoryDisk, PowerLost

_NONCES = itertools.count()

TICK_MS = 50
NEVER = 10**9


def credentials(incarnation: int = 1, secret: bytes | None = b"known to this group only") -> Credentials:
    """What a broker of the group proves itself with; its random bytes are a count, which is never the same."""
    return Credentials(secret, b"c#b", incarnation, lambda: next(_NONCES).to_bytes(NONCE_BYTES))


class Fuse:
    """Blows at the n-th durable step of a node from now, before or after the step took effect."""

    def __init__(self) -> None:
        self.steps_left = 0
        self.before = False
        self.blown = False

    def arm(self, steps: int, before: bool) -> None:
        self.steps_left, self.before = steps, before

    def pass_step(self, before: bool) -> None:
        if self.steps_left and before == self.before:
            self.steps_left -= 1
            if not self.steps_left:
                self.blown = True
                raise PowerLost


class FusedDisk(MemoryDisk):
    """A memory disk whose durable steps may be a node's last."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self._fuse = fuse

    def replace_bytes(self, path: str, content: bytes) -> None:
        self._fuse.pass_step(before=True)
        super().replace_bytes(path, content)
        self._fuse.pass_step(before=False)


class MemoryReplicatedLog:
    """A log of records (one length byte, then that many bytes) of which a crash keeps what was flushed and maybe more."""

    def __init__(self, fuse: Fuse) -> None:
        self._fuse = fuse
        self.min_offset = self.flushed_offset = 0
        self.data = bytearray()  # from min_offset on
        self.flush_requested = False
        self.segment_bytes = NEVER
        self.seals: bool | None = None

    @property
    def segment_size_bytes(self) -> int:
        return self.segment_bytes

    @property
    def end_offset(self) -> int:
        return self.min_offset + len(self.data)

    known_end_offset = end_offset

    def content(self, start: int, end: int) -> bytes:
        return bytes(self.data[start - self.min_offset : end - self.min_offset])

    def read(self, offset: int, length: int) -> bytes:
        assert self.min_offset <= offset < self.end_offset
        segment_end = (offset // self.segment_bytes + 1) * self.segment_bytes
        return self.content(offset, min(offset + length, segment_end, self.end_offset))

    def append_replicated(self, offset: int, buffers: Sequence[Bytes]) -> None:
        if offset != self.end_offset:
            raise ProtocolError(f"bytes for {offset} arrived, but this log ends at {self.end_offset}")
        self.data += b"".join(buffers)

    def append_record(self, payload: bytes) -> int:
        self.data += bytes((len(payload),)) + payload
        self.flush_requested = True
        return self.end_offset

    def truncate(self, offset: int) -> None:
        if offset not in (self.end_offset, *self.boundaries()):
            raise ProtocolError(f"no record starts at {offset}")
        self._fuse.pass_step(before=True)
        self._cut(offset)
        self._fuse.pass_step(before=False)

    def _cut(self, offset: int) -> None:
        del self.data[offset - self.min_offset :]
        self.flushed_offset = min(self.flushed_offset, offset)

    def reset(self, offset: int) -> None:
        self._fuse.pass_step(before=True)
        self.data.clear()
        self.min_offset = self.flushed_offset = offset
        self._fuse.pass_step(before=False)

    def remove_before(self, offset: int) -> None:
        """Retention (at a record boundary)."""
        del self.data[: offset - self.min_offset]
        self.min_offset = offset

    def settle(self) -> None:
        self.truncate(self.last_boundary())
        self.flushed_offset = self.end_offset

    def last_boundary(self) -> int:
        return self.boundaries()[-1]

    def boundaries(self) -> list[int]:
        """Where whole records start and end."""
        position, found = 0, [self.min_offset]
        while position < len(self.data) and position + 1 + self.data[position] <= len(self.data):
            position += 1 + self.data[position]
            found.append(self.min_offset + position)
        return found

    def records(self) -> list[bytes]:
        found, position = [], 0
        while position < len(self.data):
            found.append(bytes(self.data[position + 1 : position + 1 + self.data[position]]))
            position += 1 + self.data[position]
        return found

    def seal_records(self, on: bool | None) -> None:
        self.seals = on

    def request_flush(self) -> None:
        self.flush_requested = True

    def flush(self) -> None:
        self.flush_requested = False
        self.flushed_offset = self.end_offset

    def rot(self, offset: int) -> None:
        """What was durable is damaged from the record at the offset on: a start ends the log there."""
        self.crash(self.flushed_offset)
        self._cut(max(each for each in self.boundaries() if each <= offset))

    def crash(self, kept: int) -> None:
        """Power loss: of what was not flushed, `kept` bytes survive; recovery cuts an incomplete record."""
        assert self.flushed_offset <= kept <= self.end_offset
        del self.data[kept - self.min_offset :]
        self._cut(self.last_boundary())
        self.flush_requested = False
        self.flushed_offset = self.end_offset


@dataclass
class Request:
    """A request on its way to the controller."""

    node: Node
    life: int
    kind: str  # view, elect, members, alter
    proposal: Proposal | None = None
    master_epoch: int = 0
    abandoned: bool = False  # its sender gave up waiting; it may still arrive


@dataclass
class Answer:
    node: Node
    life: int
    kind: str
    token: int = 0
    code: int = 0
    view: RoleView | None = None
    members: frozenset[int] = frozenset()


class Controller:
    """The rules of the sync-state set and of elections, clean ones only; no clock, no log."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.master_id: int | None = None
        self.master_epoch = 0
        self.master_life = 0
        self.members: frozenset[int] = frozenset()
        self.set_epoch = 0
        self.registered: frozenset[int] = frozenset(group.nodes)
        self.suspects: set[int] = set()  # who said that it may have lost the end of its log, and was not judged since
        self.elsewhere: set[int] = set()  # those of them that run on another directory than they had as members

    @property
    def trusted(self) -> frozenset[int]:
        """Who has everything that was acknowledged, as far as anybody knows."""
        return self.members - self.suspects

    def judge(self, broker_id: int) -> None:
        """A suspect registers: it leaves the set if another member is there that is none."""
        if broker_id in self.members:
            if not any(self.group.nodes[each].alive for each in self.trusted):
                return
            if self.master_id == broker_id:
                self.lose_master()
            self._install(self.members - {broker_id})
            self.set_epoch += 1
        self.suspects.discard(broker_id)

    def view(self) -> RoleView:
        master = self.master_id
        return RoleView(
            *(master, self.master_epoch, self.members, self.set_epoch, f"b{master}", f"b{master}" if master else ""),
            master_incarnation=self.master_life,
        )

    def elect(self, winner: int) -> None:
        """Make `winner` master of a new epoch; only a member of the set may be. Members that live stay in the set."""
        assert not self.members or winner in self.members
        self.master_id = winner
        self.master_life = self.group.nodes[winner].life
        self.master_epoch += 1
        self._install(self.staying(winner))
        self.set_epoch += len(self.members) > 1
        self.set_epoch += 1

    def staying(self, winner: int) -> frozenset[int]:
        """The set behind an election."""
        if winner in self.suspects:
            self.suspects.discard(winner)
            return frozenset({winner})
        return frozenset(each for each in self.trusted if self.group.nodes[each].alive) | {winner}

    def lose_master(self) -> None:
        self.master_id = None
        self.master_epoch += 1

    def candidates(self) -> list[int]:
        eligible = self.members or self.registered - self.group.learners
        live = sorted(each for each in eligible - self.elsewhere if self.group[each].alive)
        trusted = [each for each in live if each not in self.suspects]
        if trusted or not self.members or 2 * len(live) <= len(self.members):
            return trusted
        return [max(live, key=self._freshness)]

    def _freshness(self, broker_id: int) -> tuple[int, int]:
        machine = self.group.nodes[broker_id].machine
        return machine.epochs.last_epoch, machine.log.end_offset

    def alter(self, requester: int, master_epoch: int, proposal: Proposal) -> int:
        if proposal.members == self.members:
            return codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
        if self.master_id != requester:
            return codes.CONTROLLER_INVALID_MASTER
        if master_epoch != self.master_epoch:
            return codes.CONTROLLER_FENCED_MASTER_EPOCH
        if proposal.base_epoch != self.set_epoch:
            return codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
        if not proposal.members <= self.registered:
            return codes.CONTROLLER_INVALID_REPLICAS
        if not all(self.group[each].alive for each in proposal.members):
            return codes.CONTROLLER_BROKER_NOT_ALIVE
        self._install(proposal.members)
        self.set_epoch += 1
        return codes.SUCCESS

    def _install(self, members: frozenset[int]) -> None:
        self.suspects -= self.elsewhere - members  # who leaves the set may run on any directory
        self.elsewhere, self.members = self.elsewhere & members, members

    def process(self, request: Request) -> Answer:
        requester = request.node.broker_id
        if requester in self.suspects and request.life == request.node.life:
            self.judge(requester)
        answer = Answer(request.node, request.life, request.kind)
        if request.kind == "alter":
            assert request.proposal is not None
            answer.token = request.proposal.token
            answer.code = self.alter(requester, request.master_epoch, request.proposal)
        elif request.kind == "elect":
            stale_self = self.master_id == requester and self.master_life != request.life
            if self.master_id is None or stale_self:
                candidates = self.candidates()
                if candidates:
                    self.elect(requester if requester in candidates else candidates[0])
        elif request.kind == "members":
            answer.members = self.registered
        answer.view = self.view()
        return answer


class Wire:
    """One replication connection: bytes in both directions, in order, until one end closes it."""

    def __init__(self, number: int, replica: Node, master: Node) -> None:
        self.number = number
        self.replica = replica
        self.master = master
        self.lives = (replica.life, master.life)
        self.to_master: list[bytes] = []
        self.to_replica: list[bytes] = []
        self.open_at_replica = True
        self.open_at_master = True

    def __repr__(self) -> str:
        return f"<wire {self.number} b{self.replica.broker_id} -> b{self.master.broker_id}>"


class Node:
    """One broker: its disk outlives its driver."""

    def __init__(self, group: Group, broker_id: int, settings: ReplicationSettings) -> None:
        self.group = group
        self.broker_id = broker_id
        self.settings = settings
        self.fuse = Fuse()
        self.disk = FusedDisk(self.fuse)
        self.log = MemoryReplicatedLog(self.fuse)
        self.life = 0
        self.alive = False
        self.full_connections: set[int] = set()
        self.dials: list[tuple[str, int]] = []
        self.roles: list[tuple[Role, int]] = []
        self.failures: list[str] = []
        self.waiting = 0

    def start(self) -> None:
        self.life += 1
        self.alive = True
        self.dials.clear()
        self.fuse.steps_left = 0
        self.fuse.blown = False
        self.driver = ReplicationDriver(
            self.settings,
            Seams(self.log, EpochFile(self.disk), self, self),
            credentials(self.life),
            confirm_offset=0,
            now_ms=self.group.now_ms,
        )
        self.driver.role_listeners.append(lambda role, epoch: self.roles.append((role, epoch)))
        self.driver.failure_listeners.append(self.failures.append)
        self.driver.identified(self.broker_id)

    @property
    def machine(self):
        return self.driver.machine

    def state(self):
        """What a person is told."""
        return driver_facts(self.driver, self.group.now_ms)

    @property
    def is_master(self) -> bool:
        return self.alive and self.machine.role is Role.MASTER

    # Outlet

    def connect(self, address: str, attempt: int) -> None:
        self.dials.append((address, attempt))

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        wire = self.group.wires.get(connection)
        if wire is not None:
            queue = wire.to_replica if wire.master is self else wire.to_master
            queue.append(b"".join(buffers))

    def can_send(self, connection: int) -> bool:
        return connection in self.group.wires and connection not in self.full_connections

    def close(self, connection: int) -> None:
        wire = self.group.wires.get(connection)
        if wire is None:
            return
        if wire.master is self:
            wire.open_at_master = False
        else:
            wire.open_at_replica = False
        if not wire.open_at_master and not wire.open_at_replica:
            del self.group.wires[connection]

    # RoleAuthority

    def ask(self, what: Ask) -> None:
        kind = {Ask.SYNC: "view", Ask.ELECTION: "elect", Ask.MEMBERS: "members"}[what]
        waiting = [
            each for each in self.group.requests if each.node is self and each.kind == kind and each.life == self.life
        ]
        if not waiting:
            self.group.requests.append(Request(self, self.life, kind))

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        self.group.requests.append(Request(self, self.life, "alter", proposal, master_epoch))


@dataclass
class Acknowledged:
    """A record whose producer was told that it is safe."""

    position: int
    payload: bytes
    epoch: int
    broker_id: int


@dataclass
class Group:
    """The nodes, what travels between them, and what was promised to producers."""

    size: int = 3
    settings: ReplicationSettings = field(default_factory=ReplicationSettings)
    learners: frozenset[int] = frozenset()
    registered: frozenset[int] | None = None

    def __post_init__(self) -> None:
        self.now_ms = 1000
        self.nodes: dict[int, Node] = {}
        self.retired: dict[int, Node] = {}  # whose data directories were moved away: dead for good
        self.wires: dict[int, Wire] = {}
        self.requests: list[Request] = []
        self.answers: list[Answer] = []
        self.acknowledged: list[Acknowledged] = []
        # What the invariants remember: (broker, master epoch) -> the confirm offset last seen, epoch -> where its bytes begin
        self.confirmed: dict[tuple[int, int], int] = {}
        self.epoch_starts: dict[int, int] = {}
        self.outcomes: list[PutStatus] = []
        self._wire_number = 0
        self._record_number = 0
        for broker_id in range(1, self.size + 1):
            own = replace(self.settings, learner=True) if broker_id in self.learners else self.settings
            self.nodes[broker_id] = Node(self, broker_id, own)
        self.controller = Controller(self)
        for node in self.nodes.values():
            node.start()

    def __getitem__(self, broker_id: int) -> Node:
        return self.nodes.get(broker_id) or self.retired[broker_id]

    @property
    def waiting(self) -> int:
        return sum(node.waiting for node in self.nodes.values())

    # Single events

    def begin_anew(self, node: Node) -> Node:
        """Move a dead node's data directory away and start with an empty one: as a broker of another id, in its place."""
        assert not node.alive
        broker_id = max([*self.nodes, *self.retired]) + 1
        fresh = Node(self, broker_id, node.settings)
        self.nodes = {
            each.broker_id: each for each in (fresh if each is node else each for each in self.nodes.values())
        }
        self.retired[node.broker_id] = node
        if node.broker_id in self.learners:
            self.learners |= {broker_id}
            self.learners -= {node.broker_id}
        self.controller.registered |= {broker_id}
        fresh.start()
        return fresh

    def append(self, node: Node, payload: bytes | None = None) -> None:
        """A producer's message on a master, and its wait for the acknowledgement."""
        if payload is None:
            self._record_number += 1
            payload = b"%d:%d:%d" % (self._record_number, node.broker_id, node.machine.master_epoch)
        epoch = node.machine.master_epoch
        end = node.log.append_record(payload)
        node.waiting += 1

        def done(status: PutStatus) -> None:
            node.waiting -= 1
            self.outcomes.append(status)
            if status is PutStatus.PUT_OK:
                self._check_order(node, epoch, end)
                self.acknowledged.append(Acknowledged(end - 1 - len(payload), payload, epoch, node.broker_id))

        node.driver.on_appended(end, self.now_ms)
        node.driver.wait(end, done, self.now_ms)

    def _check_order(self, node: Node, epoch: int, end: int) -> None:
        """Once somebody acknowledged in a newer epoch, a late ack may only complete what the newer master took over."""
        newest = max(self.acknowledged, key=lambda acked: acked.epoch, default=None)
        if newest is None or newest.epoch <= epoch:
            return
        entries = self[newest.broker_id].machine.epochs.entries
        begin = min(entry.start_offset for entry in entries if entry.epoch > epoch)
        assert end <= begin, f"b{node.broker_id} acknowledges {end} in epoch {epoch}, which ended at {begin}"

    def flush(self, node: Node) -> None:
        node.log.flush()
        node.driver.on_flushed(self.now_ms)

    def dial(self, node: Node) -> None:
        """Carry out the oldest dial of a node."""
        address, attempt = node.dials.pop(0)
        master = self[int(address[1:])]
        if not master.alive:
            node.driver.connect_failed(attempt, "refused", self.now_ms)
            return
        self._wire_number += 1
        wire = Wire(self._wire_number, node, master)
        self.wires[wire.number] = wire
        node.driver.connected(attempt, wire.number, self.now_ms)
        if wire.number in self.wires:
            master.driver.accepted(wire.number, self.now_ms, host=f"10.0.0.{node.broker_id}")
        if wire.open_at_master and wire.open_at_replica:
            # Hello and challenge; what the replica sends next proves it, and counts as its handshake.
            self.deliver_to_master(wire)
            self.deliver_to_replica(wire)

    def deliver_to_master(self, wire: Wire, count: int | None = None) -> None:
        """Deliver the next bytes that the replica sent; all that was sent at once, or `count` bytes of it."""
        data = self._take(wire.to_master, count)
        if wire.open_at_master and wire.master.alive and wire.lives[1] == wire.master.life:
            wire.master.driver.received(wire.number, data, self.now_ms)

    def deliver_to_replica(self, wire: Wire, count: int | None = None) -> None:
        data = self._take(wire.to_replica, count)
        if wire.open_at_replica and wire.replica.alive and wire.lives[0] == wire.replica.life:
            wire.replica.driver.received(wire.number, data, self.now_ms)

    def notice_close(self, wire: Wire) -> None:
        """The end that is still open learns that the other one is not; what was sent before has arrived first."""
        if not wire.open_at_master and wire.open_at_replica:
            while wire.to_replica and wire.open_at_replica:
                self.deliver_to_replica(wire)
        if not wire.open_at_replica and wire.open_at_master:
            while wire.to_master and wire.open_at_master:
                self.deliver_to_master(wire)
        self.wires.pop(wire.number, None)
        if wire.open_at_replica and wire.replica.alive and wire.lives[0] == wire.replica.life:
            wire.replica.driver.lost(wire.number, self.now_ms)
        if wire.open_at_master and wire.master.alive and wire.lives[1] == wire.master.life:
            wire.master.driver.lost(wire.number, self.now_ms)

    def cut(self, wire: Wire) -> None:
        """The network drops the connection with everything on it; both ends learn it at once."""
        wire.to_master.clear()
        wire.to_replica.clear()
        self.wires.pop(wire.number, None)
        for node, life in zip((wire.replica, wire.master), wire.lives, strict=True):
            if node.alive and node.life == life:
                node.driver.lost(wire.number, self.now_ms)

    def tick(self, milliseconds: int = TICK_MS) -> None:
        self.now_ms += milliseconds
        for node in self.nodes.values():
            if node.alive:
                node.driver.tick(self.now_ms, milliseconds)

    def process(self, request: Request) -> None:
        """The controller handles a request; its answer is on its way."""
        self.requests.remove(request)
        answer = self.controller.process(request)
        if not request.abandoned:
            self.answers.append(answer)

    def deliver(self, answer: Answer) -> None:
        self.answers.remove(answer)
        driver = answer.node.driver
        if not answer.node.alive or answer.node.life != answer.life:
            return
        if answer.kind == "alter":
            assert answer.view is not None
            if answer.code == codes.SUCCESS:
                driver.proposal_accepted(answer.token, answer.view.members, answer.view.set_epoch, self.now_ms)
            else:
                driver.proposal_failed(answer.token, answer.code, self.now_ms)
        elif answer.kind == "members":
            driver.members_known(answer.members, frozenset(), self.now_ms)
        else:
            assert answer.view is not None
            driver.observed(answer.view, self.now_ms)

    def lose_answer(self, answer: Answer) -> None:
        """The answer never arrives: the sender's time-out fires."""
        self.answers.remove(answer)
        if answer.kind == "alter" and answer.node.alive and answer.node.life == answer.life:
            answer.node.driver.proposal_failed(answer.token, None, self.now_ms)

    def abandon(self, request: Request) -> None:
        """The sender gives up; the request itself is still under way."""
        request.abandoned = True
        if request.kind == "alter" and request.node.alive and request.node.life == request.life:
            assert request.proposal is not None
            request.node.driver.proposal_failed(request.proposal.token, None, self.now_ms)

    def push(self, node: Node) -> None:
        """The controller's view reaches a node (a notification, or the answer to its poll)."""
        node.driver.observed(self.controller.view(), self.now_ms)

    def crash(self, node: Node, kept: int | None = None) -> None:
        """kill -9 with power loss: unflushed bytes beyond `kept` are gone; its connections close."""
        node.alive = False
        node.waiting = 0  # nobody is left to tell those who waited
        node.log.crash(node.log.flushed_offset if kept is None else kept)
        for wire in list(self.wires.values()):
            if wire.replica is node:
                wire.open_at_replica = False
            elif wire.master is node:
                wire.open_at_master = False

    # Many events

    def settle(self, rounds: int = 200, *, tick_ms: int = TICK_MS) -> None:
        """Let everything happen promptly and in order, for that many rounds of one tick."""
        for _ in range(rounds):
            self.settle_now()
            self.tick(tick_ms)
        self.settle_now()

    def settle_now(self) -> None:
        """Everything that can happen without time passing."""
        for _ in range(1000):
            if not self._one_round():
                return
        raise AssertionError("events without end")

    def settle_without_controllers(self) -> None:
        """The same while no controller handles a request."""
        for _ in range(1000):
            if not self.one_round_without_controllers():
                return
        raise AssertionError("events without end")

    def _one_round(self) -> bool:
        busy = self.one_round_without_controllers()
        while self.requests:
            self.process(self.requests[0])
            busy = True
        while self.answers:
            self.deliver(self.answers[0])
            busy = True
        return busy

    def one_round_without_controllers(self) -> bool:
        """Dials, flushes and everything on the wires, once; says whether anything happened."""
        busy = False
        for node in self.nodes.values():
            while node.alive and node.dials:
                self.dial(node)
                busy = True
            if node.alive and node.log.flush_requested:
                self.flush(node)
                busy = True
        for wire in list(self.wires.values()):
            if not wire.open_at_master or not wire.open_at_replica:
                self.notice_close(wire)
                busy = True
                continue
            if wire.to_master:
                self.deliver_to_master(wire)
                busy = True
            if wire.to_replica:
                self.deliver_to_replica(wire)
                busy = True
        return busy

    def push_all(self) -> None:
        for node in self.nodes.values():
            if node.alive:
                self.push(node)

    def elect(self, winner: int) -> None:
        """Elect and tell everybody, and let everything settle."""
        self.controller.elect(winner)
        self.push_all()
        self.settle(40)

    @staticmethod
    def _take(queue: list[bytes], count: int | None) -> bytes:
        if count is None:
            return queue.pop(0) if queue else b""
        data = b"".join(queue)
        queue[:] = [data[count:]] if len(data) > count else []
        return data[:count]


def pick(rng: Random, sequence):
    return sequence[rng.randrange(len(sequence))]
