"""A push consumer: what it popped is leased to it for as long as it lives, however long it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import PopOutcome, PoppedMessage, PopRequest, PopStatus
from remoting.errors import ProtocolError
from remoting.record.codec import decode_record
from tests.sim.clients import TOPIC, Client, Reply
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

LEASE_GROUP = "leasers"
_HIDDEN_MS = 300  # much less than the consumer takes


class Leaser(Client):
    """Pops with leases, and acks late. While it has a message, the same master gives it to nobody of the group again."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self._in_hand: dict[bytes, int] = {}  # and in which of the masterships it came

    def step(self) -> None:
        broker = self.broker

        def run(reply: Reply) -> None:
            request = PopRequest(
                LEASE_GROUP,
                TOPIC,
                -1,
                self.rng.choice((1, 4)),
                _HIDDEN_MS,
                broker.monotonic_ms(),
                InitMode.MIN,
                client_id=self.name,
                auto_renew=True,
            )
            broker.core.pop.pop(request, reply)

        self.call(broker, run, self._popped, 1500)

    def _popped(self, outcome: PopOutcome | None) -> None:
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.history.count("leased pop", "unknown" if outcome is None else "failed")
            self.move()
        else:
            self.history.count("leased pop", "ok")
            for message in outcome.messages:
                self._take(message)
        self.again(20, 150)

    def _take(self, message: PoppedMessage) -> None:
        try:
            body = decode_record(message.record).body
        except ProtocolError as error:
            self.world.require(
                self.cluster.may_serve_damage(self.broker), f"{self.broker.name} leased what is no message: {error}"
            )
            return
        mastership = self.cluster.interruptions
        self.world.require(
            self._in_hand.get(body) != mastership or self.history.attempts[body] > 1,
            f"{self.broker.name} gave {body[:20]!r} out again while the one who leases it lives",
        )
        self._in_hand[body] = mastership
        self.after(self.rng.uniform(0, 1500), lambda: self._ack(body, message))

    def _ack(self, body: bytes, message: PoppedMessage) -> None:
        broker = self.broker
        self._in_hand.pop(body, None)
        self.call(
            broker,
            lambda reply: broker.core.pop.ack(LEASE_GROUP, message.topic, [message.receipt_handle], reply),
            lambda statuses: self.history.count("leased ack", "unknown" if statuses is None else "ok"),
            1500,
        )
