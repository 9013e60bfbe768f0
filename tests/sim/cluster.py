"""A whole cluster under a seeded schedule of faults, with clients that record every outcome, and what must be true of it.

Safety is looked at while it runs (an epoch has one acknowledging master, a decided command is the same everywhere, what a reader
saw never changes) and at the end, after everything was healed: acknowledged messages are there, nothing was invented, queue
offsets are dense, replicas are byte-identical, topics and consumer offsets are there. Faults and operations are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from brokerd.replication.settings import ReplicationSettings
from brokerd.services import Draft, PutStatus, SendOutcome, TopicConfig
from remoting.errors import RequestError
from remoting.message import decode_record, encode_properties, pack_host
from tests.sim.broker import SimBroker
from tests.sim.controller import SimController
from tests.sim.world import Network, Node, World

TOPIC = "T"
QUEUES = 2
SEND_TIMEOUT_MS = 5000
SETTLE_LIMIT_MS = 60_000


@dataclass
class Outcomes:
    """What clients know. Bodies are unique and never sent twice."""

    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    unknown: set[bytes] = field(default_factory=set)
    refused: int = 0
    committed_offset: int = -1
    topics: set[str] = field(default_factory=set)


class Violation(AssertionError):
    """A promise was broken; the text says which, the world's trace how."""


class SimClient(Node):
    """Sends to whom it believes to be the master, one send in flight; also commits a consumer offset and reads now and then."""

    def __init__(self, world: World, cluster: SimCluster, name: str, queue_id: int) -> None:
        super().__init__(world, name)
        self.outcomes = Outcomes()
        self._cluster = cluster
        self._queue_id = queue_id
        self._count = 0
        self._target = 0
        self._is_active = True
        self.begin_life()
        self.after(1, self._send)

    def stop(self) -> None:
        self._is_active = False

    def _send(self) -> None:
        if not self._is_active:
            return
        broker = self._cluster.brokers[self._target]
        count = self.world.rng.choice((1, 1, 1, 2, 5))
        bodies = [
            f"{self.name}:{self._count + n}:".encode() + b"." * self.world.rng.randrange(400) for n in range(count)
        ]
        self._count += count
        properties = encode_properties({"UNIQ_KEY": f"{self.name}{self._count}", "TAGS": "a"})
        host = pack_host("10.1.0.1", 40000)
        drafts = [Draft(TOPIC, self._queue_id, body, properties, 1, host) for body in bodies]
        self.outcomes.unknown.update(bodies)
        finished = False

        def finish(known: bool, outcomes: list[SendOutcome] | None = None) -> None:
            nonlocal finished
            if finished:
                return
            finished = True
            self._record(bodies, outcomes if known else None)
            self.after(self.world.rng.uniform(1, 15), self._send)

        def answered(outcomes: list[SendOutcome]) -> None:
            self._cluster.network.send(broker, self, lambda: finish(True, outcomes))

        self._cluster.network.send(self, broker, lambda: broker.take_send(drafts, answered))
        self.after(SEND_TIMEOUT_MS, lambda: finish(False))

    def _record(self, bodies: list[bytes], outcomes: list[SendOutcome] | None) -> None:
        if outcomes is None:
            self._move()
            return
        for body, outcome in zip(bodies, outcomes, strict=True):
            if outcome.status is PutStatus.PUT_OK:
                self.outcomes.unknown.discard(body)
                self.outcomes.acknowledged[body] = outcome.queue_id, outcome.queue_offset
            elif outcome.queue_offset < 0:
                self.outcomes.unknown.discard(body)
                self.outcomes.refused += 1
        if outcomes[0].status is not PutStatus.PUT_OK:
            self._move()

    def _move(self) -> None:
        self._target = self.world.rng.randrange(len(self._cluster.brokers))


class SimCluster:
    """Three controllers, three brokers, two clients and an administrator; `run` is one whole story."""

    def __init__(self, seed: int, *, settings: ReplicationSettings | None = None, max_faults: int = 12) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.faults: Counter[str] = Counter()
        self._max_faults = max_faults
        self._ackers: dict[int, str] = {}
        self._decided: dict[int, bytes] = {}
        self._seen: dict[tuple[int, int], bytes] = {}
        self._offset = 0
        self.reads = 0
        controllers: dict[str, SimController] = {}
        for n in range(3):
            controllers[f"c{n}"] = SimController(self.world, self.network, f"c{n}", controllers)
        self.controllers = list(controllers.values())
        by_ha_address: dict[str, SimBroker] = {}
        self.brokers = [
            SimBroker(self.world, self.network, n, by_ha_address, controllers, settings or ReplicationSettings())
            for n in range(3)
        ]
        for broker in self.brokers:
            broker.cluster = self
        for controller in self.controllers:
            controller.meet({broker.address: broker for broker in self.brokers})
            controller.cluster = self
        self.clients: list[SimClient] = []

    # ---- the story

    def run(self, fault_ms: float = 6000) -> None:
        """Start, make the topic, send under faults, heal, settle, check. Raises Violation."""
        for node in (*self.controllers, *self.brokers):
            node.start()
        self._require(self.world.run_until(self._has_master, 20_000), "no master at the beginning")
        self._create_topic()
        self.clients = [SimClient(self.world, self, f"p{n}", n) for n in range(QUEUES)]
        for n in range(QUEUES):
            self._later_commit(n)
        self._later_read()
        self._later_fault()
        self.world.run(fault_ms)
        for client in self.clients:
            client.stop()
        self._max_faults = 0
        self._heal()
        self._require(
            self.world.run_until(self._is_settled, SETTLE_LIMIT_MS), "the cluster did not settle after it was healed"
        )
        self.world.run(200)
        self._check_end()

    def _has_master(self) -> bool:
        return self._master() is not None

    def _master(self) -> SimBroker | None:
        masters = [b for b in self.brokers if b.is_up and not b.is_paused and b.engine.is_master]
        return max(masters, key=lambda b: b.engine.core.master_epoch, default=None)

    def _create_topic(self) -> None:
        results: list[RequestError | None] = []

        def attempt() -> None:
            master = self._master()
            if master is not None:
                master.core.metadata.put_topic(TopicConfig(TOPIC, QUEUES, QUEUES, 6), results.append)

        attempt()
        self._require(self.world.run_until(lambda: bool(results), 10_000), "no answer to the creation of a topic")
        self._require(results[0] is None, f"the topic could not be created: {results[0]}")

    # ---- faults

    def _later_fault(self) -> None:
        self.world.after(self.world.rng.uniform(50, 900), self._fault)

    def _fault(self) -> None:
        if self.faults.total() >= self._max_faults:
            return
        rng = self.world.rng
        name = rng.choice(
            ("kill", "kill", "crash", "crash", "power", "pause", "split", "oneway", "loss", "heal", "controllers")
        )
        node = rng.choice([*self.brokers, *self.brokers, *self.controllers])
        if name in ("kill", "crash", "power", "pause") and not node.is_up:
            name = "heal"
        self.faults[name] += 1
        back_ms = rng.uniform(20, 1500)
        match name:
            case "kill":
                node.kill()
                self.world.after(back_ms, lambda: self._restart(node))
            case "crash":
                node.crash()
                self.world.after(back_ms, lambda: self._restart(node))
            case "power":
                node.disk.lose_power_at(rng.randrange(1, 6))
            case "pause":
                if not node.is_paused:
                    node.pause()
                    life = node.life
                    self.world.after(rng.uniform(100, 4000), lambda: self._resume(node, life))
            case "split":
                self._split()
            case "oneway":
                a, b = rng.sample([*self.brokers, *self.controllers], 2)
                self.network.cut(a.name, b.name)
            case "loss":
                self.network.loss = rng.uniform(0.05, 0.5)
            case "heal":
                self.network.heal()
            case "controllers":
                for each in self.controllers:
                    if each.is_up:
                        each.kill()
                        self.world.after(back_ms, lambda each=each: self._restart(each))  # type: ignore[misc]
        self.world.note(f"fault: {name} {node.name if name in ('kill', 'crash', 'power', 'pause') else ''}")
        self._restart_what_lost_power()
        self._later_fault()

    def _split(self) -> None:
        nodes = [*self.brokers, *self.controllers, *self.clients]
        side = {node.name for node in nodes if self.world.rng.random() < 0.5}
        for a in nodes:
            for b in nodes:
                if (a.name in side) != (b.name in side):
                    self.network.cut(a.name, b.name)

    def _restart(self, node: SimBroker | SimController) -> None:
        if not node.is_up:
            node.start()

    def _restart_what_lost_power(self) -> None:
        """A node whose power went out at a sync was not told to come back by anybody."""
        for node in (*self.brokers, *self.controllers):
            if not node.is_up:
                self.world.after(self.world.rng.uniform(20, 1500), lambda node=node: self._restart(node))  # type: ignore[misc]

    def _resume(self, node: Node, life: int) -> None:
        if node.is_up and node.is_paused and node.life == life:
            node.resume()

    def _heal(self) -> None:
        self.world.note("everything is healed")
        self.network.heal()
        for node in (*self.controllers, *self.brokers):
            node.disk.no_more_faults()
            if node.is_up and node.is_paused:
                node.resume()
            if not node.is_up:
                node.start()

    # ---- consumers

    def _later_commit(self, group: int) -> None:
        self.world.after(self.world.rng.uniform(20, 200), lambda: self._commit(group))

    def _commit(self, group: int) -> None:
        """Commit the next consumer offset at the master; what was acknowledged must never go back."""
        if self._max_faults == 0:
            return
        master = self._master()
        client = self.clients[group]
        if master is not None:
            self._offset += 1
            offset = self._offset

            def done(error: RequestError | None) -> None:
                if error is None:
                    client.outcomes.committed_offset = max(client.outcomes.committed_offset, offset)

            master.guarded(
                lambda: master.core.metadata.commit_offset(f"g{group}", TOPIC, 0, offset, done)  # type: ignore[union-attr]
            )()
        self._later_commit(group)

    def _later_read(self) -> None:
        self.world.after(self.world.rng.uniform(5, 60), self._read)

    def _read(self) -> None:
        """Read somewhere, as a consumer would: what was seen once is seen by everybody for ever."""
        broker = self.world.rng.choice(self.brokers)
        if broker.is_up and not broker.is_paused:
            queue_id = self.world.rng.randrange(QUEUES)
            high = broker.core.store.max_offset(TOPIC, queue_id)
            start = max(0, high - self.world.rng.randrange(1, 40))
            for record in broker.core.store.read_messages(TOPIC, queue_id, start, 32, 1 << 20).records:
                decoded = decode_record(record)
                self.reads += 1
                before = self._seen.setdefault((queue_id, decoded.queue_offset), decoded.body)
                self._require(
                    before == decoded.body,
                    f"{broker.name} shows another message at offset {decoded.queue_offset} of queue {queue_id} than was seen",
                )
        self._later_read()

    # ---- promises while it runs

    def acknowledged(self, broker: SimBroker) -> None:
        """A broker acknowledged something."""
        epoch = broker.engine.core.master_epoch
        first = self._ackers.setdefault(epoch, broker.name)
        self._require(first == broker.name, f"{first} and {broker.name} both acknowledged in epoch {epoch}")

    def decided(self, controller: SimController, index: int, command: bytes) -> None:
        """A controller applied a command."""
        first = self._decided.setdefault(index, command)
        self._require(first == command, f"{controller.name} applied another command at {index} than others did")

    # ---- promises at the end

    def _is_settled(self) -> bool:
        self._restart_now()
        master = self._master()
        if master is None or not all(broker.is_up for broker in self.brokers):
            return False
        end = master.core.store.commitlog.end_offset
        leading = master.engine.core.leading
        if leading is None or len(leading.sync.local) < 3 or leading.sync.required != leading.sync.local:
            return False
        return all(
            broker.core.store.commitlog.end_offset == end and broker.core.store.dispatch_offset == end
            for broker in self.brokers
        )

    def _restart_now(self) -> None:
        for node in (*self.controllers, *self.brokers):
            if not node.is_up:
                node.start()

    def _check_end(self) -> None:
        master = self._master()
        assert master is not None
        sent: set[bytes] = set()
        for client in self.clients:
            sent |= set(client.outcomes.acknowledged) | client.outcomes.unknown
        for broker in self.brokers:
            for client in self.clients:
                self._check_queue(broker, client, sent)
                self._check_tables(broker, client)
        logs = [self._log(broker) for broker in self.brokers]
        self._require(logs[0] == logs[1] == logs[2], "the replicas' logs differ")
        epochs = [broker.engine.core.epochs.entries for broker in self.brokers]
        self._require(epochs[0] == epochs[1] == epochs[2], f"the replicas' epochs differ: {epochs}")

    def _check_queue(self, broker: SimBroker, client: SimClient, sent: set[bytes]) -> None:
        queue_id = self.clients.index(client)
        store = broker.core.store
        records: list[bytes] = []
        while len(records) < store.max_offset(TOPIC, queue_id):
            more = store.read_messages(TOPIC, queue_id, len(records), 1000, 1 << 30).records
            self._require(bool(more), f"queue {queue_id} of {broker.name} ends early")
            records += more
        bodies: dict[int, bytes] = {}
        for n, encoded in enumerate(records):
            record = decode_record(encoded)
            self._require(record.queue_offset == n, f"{broker.name}: queue offsets are not dense at {n}")
            bodies[n] = record.body
        for body, (_, offset) in client.outcomes.acknowledged.items():
            self._require(
                bodies.get(offset) == body, f"{broker.name} lost {body[:20]!r}, acknowledged at offset {offset}"
            )
        invented = [body for body in bodies.values() if body not in sent]
        self._require(not invented, f"{broker.name} has messages that nobody sent: {invented[:2]!r}")
        twice = [body for body, count in Counter(bodies.values()).items() if count > 1]
        self._require(not twice, f"{broker.name} has messages twice: {twice[:2]!r}")
        for (seen_queue, offset), body in self._seen.items():
            if seen_queue == queue_id:
                self._require(bodies.get(offset) == body, f"a message that was read is not at offset {offset} any more")

    def _check_tables(self, broker: SimBroker, client: SimClient) -> None:
        metadata = broker.core.metadata
        self._require(metadata.topic(TOPIC) is not None, f"{broker.name} lost the topic")
        group = f"g{self.clients.index(client)}"
        committed = metadata.consumer_offset(group, TOPIC, 0)
        known = -1 if committed is None else committed
        self._require(
            known >= client.outcomes.committed_offset,
            f"{broker.name} has consumer offset {known} of {group}; {client.outcomes.committed_offset} was acknowledged",
        )

    @staticmethod
    def _log(broker: SimBroker) -> bytes:
        log = broker.core.store.commitlog
        parts = []
        position = log.min_offset
        while position < log.end_offset:
            part = log.read(position, 1 << 20)
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def _require(self, condition: bool, promise: str) -> None:
        if not condition:
            raise Violation(f"seed {self.world.seed}: {promise}")
