"""Consumers that lease messages and die: their leases end, others get the messages, and what the dead still say counts no more.

`leasers` has one that lives for ever. Verdict here: nobody gets a message while the one who leases it lives; after its death each
comes again; and an ack by the handle of a lease that ended, of a message that somebody else has by then, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brokerd.metadata.configs import GroupConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import AckStatus, PopOutcome, PoppedMessage, PopRequest, PopStatus
from remoting.record.codec import decode_record
from tests.sim.administration import Maker
from tests.sim.broker import SimBroker
from tests.sim.clients import TOPIC, Client, Reply
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_GROUP: Final = "mortals"
_HIDDEN_MS: Final = 300
_DEATHS: Final = 0.08  # of the steps
_IDLE_POPS: Final = 3


class Mortals:
    """The group of one story, whose consumers live one after the other."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._consumer: Mortal

    def begin(self) -> None:
        cluster = self._cluster
        group = GroupConfig(_GROUP, retry_max_times=1000)
        maker = Maker(cluster.world, cluster, "mortal-maker", lambda metadata, done: metadata.put_group(group, done))
        self._consumer = Mortal(cluster.world, cluster, "mortal")
        cluster.clients += [maker, self._consumer]

    def end(self) -> None:
        """The last consumer lives until it has everything."""

    def is_settled(self) -> bool:
        return not self._consumer.is_active

    def check(self) -> None:
        left = {body for body in self._cluster.history.acknowledged if body not in self._consumer.came}
        self._cluster.world.require(
            not left, f"{len(left)} messages never came to {_GROUP}, such as {sorted(left)[:1]}"
        )


class Mortal(Client):
    """Leases messages and acks late; dies now and then, and somebody else takes its place."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.came: set[bytes] = set()
        self._lives = 0
        self._in_hand: dict[bytes, int] = {}  # of the living one, and in which of the masterships each came
        self._of_the_dead: dict[bytes, tuple[PoppedMessage, int]] = {}
        self._is_ending = False
        self._idle = 0
        cluster.living.add(self._identity)

    @property
    def _identity(self) -> str:
        return f"{self.name}-{self._lives}"

    def stop(self) -> None:
        self._is_ending = True

    def step(self) -> None:
        if not self._is_ending and self.rng.random() < _DEATHS:
            self._die()
        broker, identity = self.broker, self._identity

        def run(reply: Reply) -> None:
            request = PopRequest(
                *(_GROUP, TOPIC, -1, self.rng.choice((1, 8)), _HIDDEN_MS, broker.monotonic_ms(), InitMode.MIN),
                client_id=identity,
                auto_renew=True,
            )
            broker.core.pop.pop(request, reply)

        self.call(broker, run, lambda outcome: self._popped(broker, identity, outcome), 1500)

    def _die(self) -> None:
        self.cluster.living.discard(self._identity)
        self.world.note(f"{self._identity} dies with {len(self._in_hand)} messages")
        self.history.count("lease holder", "dies")
        self._lives += 1
        self._in_hand.clear()
        self.cluster.living.add(self._identity)

    def _popped(self, broker: SimBroker, identity: str, outcome: PopOutcome | None) -> None:
        if outcome is None:
            if identity == self._identity:
                self._die()  # what it leases and does not know of would be its own for as long as it lives
            self.move()
        elif outcome.status is PopStatus.REFUSED:
            self.move()
        elif outcome.messages:
            self._idle = 0
            for message in outcome.messages:
                self._take(broker, identity, message)
        else:
            self._idle += 1
            if self._is_ending and self._idle >= _IDLE_POPS and self._has_all(broker):
                self.is_active = False
        self.again(10, 80)

    def _take(self, broker: SimBroker, identity: str, message: PoppedMessage) -> None:
        body = decode_record(message.record).body
        mastership = self.cluster.interruptions
        is_single = self.history.attempts[body] == 1
        self.world.require(
            not is_single or self._in_hand.get(body) != mastership,
            f"{broker.name} gave {body[:20]!r} out again while {identity}, which leases it, lives",
        )
        self.came.add(body)
        dead = self._of_the_dead.pop(body, None)
        if dead is not None and is_single and dead[1] == mastership:
            self._ack_of_the_dead(broker, body, *dead)
        self._in_hand[body] = mastership
        self._of_the_dead[body] = message, mastership  # once it dies; until then it acks, and nobody looks here
        self.after(self.rng.uniform(0, 900), lambda: self._ack(broker, identity, body, message))

    def _ack(self, broker: SimBroker, identity: str, body: bytes, message: PoppedMessage) -> None:
        if identity != self._identity:
            return  # it is dead
        self._in_hand.pop(body, None)
        self._of_the_dead.pop(body, None)

        def answered(statuses: Sequence[AckStatus] | None) -> None:
            status = AckStatus.FAILED if statuses is None else statuses[0]
            self.history.count("mortal ack", "unknown" if statuses is None else status.name.lower())
            if status is AckStatus.FAILED:  # it is its own for as long as it lives, so it says it again
                self.move()
                self.after(self.rng.uniform(20, 100), lambda: self._ack(self.broker, identity, body, message))

        self.call(
            broker,
            lambda reply: broker.core.pop.ack(_GROUP, message.topic, [message.receipt_handle], reply),
            answered,
            1500,
        )

    def _ack_of_the_dead(self, broker: SimBroker, body: bytes, message: PoppedMessage, mastership: int) -> None:
        """The last word of a dead one comes when its message is somebody else's."""

        def answered(statuses: Sequence[AckStatus] | None) -> None:
            self.history.count("ack of the dead", "unknown" if statuses is None else statuses[0].name.lower())
            self.world.require(
                statuses is None or statuses[0] is not AckStatus.OK or self.cluster.interruptions != mastership,
                f"{broker.name} takes an ack of {body[:20]!r} by a lease that ended",
            )

        self.call(
            broker,
            lambda reply: broker.core.pop.ack(_GROUP, message.topic, [message.receipt_handle], reply),
            answered,
            1500,
        )

    def _has_all(self, broker: SimBroker) -> bool:
        store, ledger = broker.core.store, broker.core.pop.ledger
        is_at_rest = broker.driver.is_master and store.dispatch_offset == store.commitlog.end_offset
        return is_at_rest and not ledger.in_flight(_GROUP) and not self._in_hand and self.calls == 0
