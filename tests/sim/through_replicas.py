"""gRPC clients that speak to any broker: a replica has the master carry their calls out.

Methods, forwarding and the master's side of it are the daemon's; the sockets between are not: a call's message is given to a
broker, and what a replica asks of its master goes over the simulated network, where it may be lost. Verdict: what such a client
was answered OK is in the log at the offset that it was told, on every replica, like all that was acknowledged; and a send whose
outcome is not known is not carried out twice (`checks._check_counts`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from brokerd.members.registry import ClientRegistry
from brokerd.members.streams import CommandStream
from brokerd.metadata.configs import TopicConfig
from brokerd.proxy.forward import Forwarder, ForwardSettings
from brokerd.proxy.forwarded import ForwardedCalls
from brokerd.proxy.methods.base import Services
from brokerd.proxy.methods.table import build_methods
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.transactions.ids import SECRET_BYTES, SECRET_LENGTH
from remoting.disk import Bytes
from remoting.errors import ConnectionLost, LogboomError
from remoting.frame import Command
from remoting.transport.connection import Handler
from tests.sim.broker import SimBroker
from tests.sim.checks import read_queue
from tests.sim.clients import QUEUES, SURE_TIMEOUT_MS, TOPIC, Client, Reply
from tests.sim.controller import Decision, Steps
from tests.sim.grpc_calls import UnaryCall
from tests.sim.grpc_transactors import GRPC_TRANSACTION_TOPIC, GrpcTransactor
from tests.sim.world import World
from tests.support.open_guard import anybody_may, yes

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_CLIENTS: Final = 2
_LOOK_MS: Final = 20
_FORWARDING: Final = ForwardSettings(hold_ms=1000)


class ThroughReplicas:
    """The gRPC side of all brokers of one story, and its clients."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._proxies: dict[tuple[str, int], Proxy] = {}
        self.told: dict[bytes, int] = {}  # the offset in whatever queue

    def begin(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        master = cluster.master()
        assert master is not None
        topic = TopicConfig(GRPC_TRANSACTION_TOPIC, 1, 1, 6, attributes={"message.type": "TRANSACTION"})
        answers: list[object] = []
        master.core.metadata.put_topic(topic, answers.append)
        world.require(world.run_until(lambda: answers == [None], 10_000), f"no topic for transactions: {answers}")
        self._transactor = GrpcTransactor(world, self, "grpc transactor", cluster)
        cluster.clients += [GrpcProducer(world, self, f"grpc{n}", cluster) for n in range(_CLIENTS)]
        cluster.clients.append(self._transactor)

    def end(self) -> None:
        """Its clients are stopped with all others."""

    def is_settled(self) -> bool:
        return True

    def check(self) -> None:
        for broker in self._cluster.brokers:
            self._transactor.check(read_queue(self._cluster, broker, GRPC_TRANSACTION_TOPIC, 0), broker)
            places = {
                (body, offset)
                for queue_id in range(QUEUES)
                for offset, body in enumerate(read_queue(self._cluster, broker, TOPIC, queue_id))
            }
            for body, offset in self.told.items():
                self._cluster.world.require(
                    (body, offset) in places,
                    f"{broker.name} lost {body[:20]!r}, answered OK over gRPC at offset {offset}",
                )

    def of(self, broker: SimBroker) -> Proxy:
        """What a broker's present life has of it."""
        key = broker.name, broker.life
        if key not in self._proxies:
            self._proxies[key] = Proxy(broker, self)
        return self._proxies[key]

    def streams_at(self, broker: SimBroker, topic: str) -> Sequence[CommandStream]:
        """Whom a broker's checks may ask."""
        return self.of(broker).clients.producer_streams(topic, topic)

    def at(self, address: str) -> SimBroker | None:
        return next((each for each in self._cluster.offered if each.address == address), None)


class Proxy:
    """One life of a broker, as gRPC clients and other brokers' proxies see it. It is the `Sender` of its methods."""

    def __init__(self, broker: SimBroker, proxies: ThroughReplicas) -> None:
        core = broker.core
        self._broker = broker
        self._proxies = proxies
        nowhere: Any = None  # nobody asks for routes
        self.clients = ClientRegistry(broker.monotonic_ms, broker.wall_ms, yes)
        services = Services(
            self,
            core.pop,
            core.metadata,
            self.clients,
            nowhere,
            core.transactions,
            core.timed,
            core.store,
            core.progress,
            core.counters,
            "broker-a",
            lambda _call: anybody_may,
        )
        rng = broker.world.random(f"secrets of {broker.name}, life {broker.life}")
        methods = build_methods(
            services,
            scheduler=broker,
            monotonic_ms=broker.monotonic_ms,
            wall_ms=broker.wall_ms,
            new_secret=lambda: f"{rng.getrandbits(8 * SECRET_BYTES):0{SECRET_LENGTH}x}",
        )
        here: Any = self  # the dialler, and the `Replica` of the forwarder
        tasks: Any = Steps(broker)
        self.forwarder = Forwarder(methods, here, here, scheduler=broker, tasks=tasks, settings=_FORWARDING)
        self.forwarded = ForwardedCalls(methods.forwarded_handlers, here, broker, lambda _client: None)

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        self._broker.take_send(list(drafts), done)

    @property
    def is_master(self) -> bool:
        return self._broker.driver.is_master

    @property
    def is_handing_over(self) -> bool:
        return self._broker.driver.is_handing_over

    @property
    def serves_clients(self) -> bool:
        return self.is_master and not self.is_handing_over

    @property
    def master_address(self) -> str:
        view = self._broker.driver.machine.view
        return view.master_address if view is not None and view.master_id is not None else ""

    async def dial(self, address: str, handlers: Mapping[int, Handler]) -> Wire:
        """A connection to another broker, once the network has been there and back."""
        decision = Decision()
        source, target, network = self._broker, self._proxies.at(address), self._broker.network

        def answer(found: Wire | ConnectionLost) -> None:
            if not decision.is_done:  # the network may be slower than whoever waits for it
                decision.answered(found)

        def there() -> None:
            assert target is not None
            wire = Wire(source, target, self._proxies, handlers)
            network.send(target, source, source.guarded(lambda: answer(wire)))

        if target is not None and target.is_up:
            network.send(source, target, target.guarded(there))
        expired = ConnectionLost(f"nobody answers at {address}")
        source.call_later(0.5, answer, expired)
        wire: Wire = await decision
        return wire


class Wire:
    """A remoting connection from a replica to its master, as both ends see it, for as long as both live."""

    def __init__(
        self, source: SimBroker, target: SimBroker, proxies: ThroughReplicas, handlers: Mapping[int, Handler]
    ) -> None:
        self._source, self._target = source, target
        self._end = MastersEnd(self)
        self._handlers = handlers
        self._lives = source.life, target.life
        self._proxies = proxies
        self._answers: dict[int, Callable[[Command | LogboomError], None]] = {}
        self._count = 0

    @property
    def is_open(self) -> bool:
        return (self._source.life, self._target.life) == self._lives and self._source.is_up and self._target.is_up

    def close(self) -> None:
        """Nothing more is asked here."""

    # ---- the replica's end

    def notify(self, code: int, ext: Mapping[str, str], body: Bytes = b"") -> None:
        self._send(Command(code, 0, dict(ext), bytes(body)))

    def request(
        self,
        code: int,
        ext: Mapping[str, str],
        body: Bytes,
        timeout_ms: int,
        answered: Callable[[Command | LogboomError], None],
    ) -> None:
        self._count += 1
        opaque = self._count
        self._answers[opaque] = answered
        self._send(Command(code, opaque, dict(ext), bytes(body)))
        self._source.call_later(timeout_ms / 1000, self._lose, opaque)
        self._look(opaque)

    def _send(self, command: Command) -> None:
        end: Any = self._end

        def arrive() -> None:
            self._proxies.of(self._target).forwarded.handle(end, [command])

        self._source.network.send(self._source, self._target, self._target.guarded(arrive))

    def _look(self, opaque: int) -> None:
        """Whoever waits hears soon that the connection closed."""
        if opaque in self._answers:
            if not self.is_open:
                self._lose(opaque)
            else:
                self._source.call_later(_LOOK_MS / 1000, self._look, opaque)

    def _lose(self, opaque: int) -> None:
        answered = self._answers.pop(opaque, None)
        if answered is not None:
            answered(ConnectionLost(f"the connection to {self._target.name} is gone"))

    # ---- the master's end

    def answer(self, response: Command) -> None:
        def arrive() -> None:
            answered = self._answers.pop(response.opaque, None)
            if answered is not None:
                answered(response)

        self._target.network.send(self._target, self._source, self._source.guarded(arrive))

    def push(self, command: Command) -> None:
        replicas_end: Any = self

        def arrive() -> None:
            self._handlers[command.code](replicas_end, [command])

        self._target.network.send(self._target, self._source, self._source.guarded(arrive))


class MastersEnd:
    """What the master sees of such a connection."""

    is_slow = False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    @property
    def is_open(self) -> bool:
        return self._wire.is_open

    def notify(self, code: int, ext: Mapping[str, str], body: Bytes = b"") -> bool:
        self._wire.push(Command(code, 0, dict(ext), bytes(body)))
        return self.is_open

    def respond(
        self,
        request: Command,
        code: int = 0,
        ext: Mapping[str, str] | None = None,
        body: Bytes = b"",
        *,
        remark: str | None = None,
    ) -> None:
        self._wire.answer(Command(code, request.opaque, dict(ext or {}), bytes(body), remark=remark))

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))


class GrpcProducer(Client):
    """Sends one message after the other, each to any broker of the group."""

    def __init__(self, world: World, proxies: ThroughReplicas, name: str, cluster: SimCluster) -> None:
        super().__init__(world, cluster, name)
        self._proxies = proxies
        self._count = 0

    def step(self) -> None:
        self._count += 1
        key = f"{self.name}:{self._count}:"
        body = key.encode() + b"." * self.rng.randrange(300)
        message = definition.Message(body=body)
        message.topic.name = TOPIC
        system = message.system_properties
        system.message_id, system.tag, system.message_type = key, "a", definition.NORMAL
        system.keys.append(key)
        encoded = service.SendMessageRequest(messages=[message]).SerializeToString()
        broker = self.rng.choice(self.cluster.brokers)
        self.history.may_be_stored(body)

        def run(reply: Reply) -> None:
            how = "at the master" if broker.driver.is_master else "through a replica"
            call = UnaryCall(self, broker, encoded, lambda answer: reply((how, answer)))
            self._proxies.of(broker).forwarder.execute("SendMessage", [call])

        self.call(broker, run, lambda answer: self._sent(body, answer), SURE_TIMEOUT_MS)

    def _sent(self, body: bytes, answer: tuple[str, bytes | None] | None) -> None:
        how, encoded = (None, None) if answer is None else answer
        response = service.SendMessageResponse.FromString(encoded or b"")
        is_fine = response.status.code == Code.OK
        self.history.count(
            f"gRPC send {how}" if how else "gRPC send", "ok" if is_fine else "failed" if how else "unknown"
        )
        if is_fine:
            self._proxies.told[body] = response.entries[0].offset
            self.history.acknowledged.setdefault(body, [])
        self.again(5, 60)
