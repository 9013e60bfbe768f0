"""A client that sends in transactions over gRPC: each call to any broker, and one telemetry stream, to any broker as well.

As with `transactors`, what it wants of a message is settled before it begins. It is asked on its stream, which is mostly at a
replica, by whoever is master; it opens another one now and then, and when its broker is gone. Verdict: a transaction that was
answered OK ends as it was to end, on every replica, and no other message of the topic is seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.transactions.decide import Outcome
from tests.sim.clients import SURE_TIMEOUT_MS, Client, Reply
from tests.sim.grpc_calls import StreamCall, UnaryCall
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster
    from tests.sim.through_replicas import ThroughReplicas

GRPC_TRANSACTION_TOPIC: Final = "GTX"
_RESOLUTIONS: Final = {
    Outcome.COMMIT: definition.TransactionResolution.Value("COMMIT"),
    Outcome.ROLLBACK: definition.TransactionResolution.Value("ROLLBACK"),
}
_SOURCES: Final = (0, definition.TransactionSource.Value("SOURCE_SERVER_CHECK"))  # some clients do not say so


class GrpcTransactor(Client):
    """One transaction at a time is begun; its end, and answers to checks, go on beside that."""

    def __init__(self, world: World, proxies: ThroughReplicas, name: str, cluster: SimCluster) -> None:
        super().__init__(world, cluster, name)
        self.wanted: dict[bytes, Outcome] = {}
        self.begun: set[bytes] = set()
        self._proxies = proxies
        self._count = 0
        self._stream: StreamCall | None = None
        self._silences: dict[bytes, int] = {}  # how many checks are heard without a word
        self.after(self.rng.uniform(1, 50), self._announce)

    def step(self) -> None:
        self._count += 1
        key = f"{self.name}:{self._count}:"
        body = key.encode() + b"." * self.rng.randrange(300)
        self.wanted[body] = self.rng.choice((Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK))
        self._silences[body] = self.rng.choice((0, 0, 1, 4))
        message = definition.Message(body=body)
        message.topic.name = GRPC_TRANSACTION_TOPIC
        system = message.system_properties
        system.message_id, system.message_type = key, definition.MessageType.Value("TRANSACTION")
        request = service.SendMessageRequest(messages=[message])
        self._ask("SendMessage", request.SerializeToString(), lambda answer: self._begun(key, body, answer))

    def check(self, found: list[bytes], broker: SimBroker) -> None:
        """Hold what a broker shows of the topic against what was wanted."""
        for body in found:
            self.world.require(
                self.wanted.get(body) is Outcome.COMMIT,
                f"{broker.name} delivers {body[:20]!r}, which was to end as {self.wanted.get(body)!r}",
            )
        lost = sorted(body for body in self.begun if self.wanted[body] is Outcome.COMMIT and body not in set(found))
        self.world.require(not lost, f"{broker.name} lost {lost[:1]}, which was to be committed")

    # ---- inside

    def _ask(self, name: str, message: bytes, answered: Reply, broker: SimBroker | None = None) -> None:
        target = broker or self.rng.choice(self.cluster.brokers)

        def run(reply: Reply) -> None:
            call = UnaryCall(self, target, message, lambda answer: reply((answer,)))
            self._proxies.of(target).forwarder.execute(name, [call])

        self.call(target, run, lambda answer: answered(answer[0] if answer is not None else None), SURE_TIMEOUT_MS)

    def _begun(self, key: str, body: bytes, answer: bytes | None) -> None:
        response = service.SendMessageResponse.FromString(answer or b"")
        is_fine = response.status.code == Code.OK
        self.history.count("begin over gRPC", "ok" if is_fine else "unknown" if answer is None else "failed")
        if is_fine:
            self.begun.add(body)
            if self.rng.random() < 0.6:  # else it is silent until it is asked
                self._end(key, body, response.entries[0].transaction_id, 0)
        self.again(10, 80)

    def _announce(self) -> None:
        """Say what it publishes, now and then on a new stream; else that it lives. What is said may be lost on its way."""
        stream = self._stream
        if stream is None or not stream.live or (self.is_active and self.rng.random() < 0.1):
            self._open(self.rng.choice(self.cluster.brokers))
        elif self.rng.random() < 0.3:
            self._open(stream.broker)
        else:
            request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
            self._ask("Heartbeat", request.SerializeToString(), lambda _answer: None, stream.broker)
        self.after(self.rng.uniform(200, 600), self._announce)

    def _open(self, broker: SimBroker) -> None:
        if self._stream is not None:
            self._stream.finish()
        settings = definition.Settings(client_type=definition.ClientType.Value("PRODUCER"))
        settings.publishing.topics.add(name=GRPC_TRANSACTION_TOPIC)
        message = service.TelemetryCommand(settings=settings).SerializeToString()
        stream = self._stream = StreamCall(self, broker, message, self._heard)
        self.cluster.network.send(self, broker, broker.guarded(lambda: self._arrives(broker, stream)))

    def _arrives(self, broker: SimBroker, stream: StreamCall) -> None:
        if broker.is_up:
            self._proxies.of(broker).forwarder.execute("Telemetry", [stream])

    def _heard(self, broker: SimBroker, message: bytes) -> None:
        command = service.TelemetryCommand.FromString(message)
        if not command.HasField("recover_orphaned_transaction_command"):
            return
        orphan = command.recover_orphaned_transaction_command
        body = orphan.message.body
        self.world.require(body in self.wanted, f"{broker.name} asks about {body[:20]!r}, which nobody began")
        self.history.count("check over gRPC", "at the master" if broker.driver.is_master else "through a replica")
        self._silences[body] -= 1
        if self._silences[body] < 0 or not self.is_active:
            key = orphan.message.system_properties.message_id
            self._end(key, body, orphan.transaction_id, self.rng.choice(_SOURCES))

    def _end(self, key: str, body: bytes, transaction_id: str, source: int) -> None:
        def answered(answer: bytes | None) -> None:
            code = service.EndTransactionResponse.FromString(answer or b"").status.code
            self.history.count("end over gRPC", "ok" if code == Code.OK else "unknown" if answer is None else "failed")

        request = service.EndTransactionRequest(
            message_id=key, transaction_id=transaction_id, resolution=_RESOLUTIONS[self.wanted[body]], source=source
        )
        request.topic.name = GRPC_TRANSACTION_TOPIC
        self._ask("EndTransaction", request.SerializeToString(), answered)
