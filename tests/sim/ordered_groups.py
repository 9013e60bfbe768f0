"""An ordered consumer group that keeps order in each message group, with a producer and two consumers of its own.

One message group of a few is poisoned: its messages are hardly ever acknowledged while there are faults. A message that comes
while an earlier one of its message group is neither finished nor beside it in the same answer breaks the order; so do two
consumers that have a message group at the same time. At the end everything that was sent came, whatever was passed over before a
switch.

The order is promised to receives that begin when a master has said that the group is ordered. Who receives earlier makes a group
without an order, as anybody does who names one that is not there; what is in flight from then is waited for like the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from brokerd.metadata.configs import ORDER_SCOPE, GroupConfig, TopicConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import AckStatus, PopOutcome, PoppedMessage, PopRequest, PopStatus
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting.message_groups import SHARDING_KEY
from remoting.record.properties import encode_properties
from tests.sim.administration import Maker
from tests.sim.asked_acks import AskedAcks
from tests.sim.broker import SimBroker
from tests.sim.clients import SURE_TIMEOUT_MS, Client, Reply, make_draft
from tests.sim.records import look_at
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_TOPIC: Final = "grouped"
_GROUP: Final = "in-groups"
_NAMES: Final = ("a", "b", "c", "d", "")
_HIDDEN_MS: Final = 700
_IDLE_POPS: Final = 3


class Seen:
    """What both consumers know: the `acks` of both, and `groups` are those of the offsets."""

    def __init__(self) -> None:
        self.acks = AskedAcks()
        self.groups: list[str] = []
        self.came: set[bytes] = set()


class OrderedGroups:
    """The whole of it, in one story."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._seen = Seen()
        self._poppers: list[GroupPopper] = []
        self._producer: GroupProducer | None = None

    def begin(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        group = GroupConfig(_GROUP, fifo=True, retry_max_times=1000, attributes={ORDER_SCOPE: "MESSAGE_GROUP"})
        topic = TopicConfig(_TOPIC, 1, 1, 6)
        self._producer = GroupProducer(world, cluster, "group-producer")
        maker = Maker(world, cluster, "order-maker", lambda metadata, done: metadata.put_group(group, done))
        self._poppers = [GroupPopper(world, cluster, f"group-popper-{n}", self._seen, maker) for n in range(2)]
        cluster.clients += [
            Maker(world, cluster, "group-topic-maker", lambda metadata, done: metadata.put_topic(topic, done)),
            maker,
            self._producer,
            *self._poppers,
        ]

    def end(self) -> None:
        """The consumers read on to the end."""

    def is_settled(self) -> bool:
        return not any(popper.is_active for popper in self._poppers)

    def check(self) -> None:
        assert self._producer is not None
        missing = sorted(self._producer.stored - self._seen.came)
        self._cluster.world.require(not missing, f"{missing[:3]} never came to the group {_GROUP}")


class GroupProducer(Client):
    """Sends to one queue, each message in one of a few message groups or in none."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.stored: set[bytes] = set()
        self._count = 0

    def step(self) -> None:
        broker = self.broker
        drafts = [self._next() for _ in range(self.rng.choice((1, 2, 5)))]

        def sent(outcomes: Sequence[SendOutcome] | None) -> None:
            for n, outcome in enumerate(outcomes or ()):
                if outcome.status is PutStatus.PUT_OK:
                    self.stored.add(drafts[n].body)
            if outcomes is None or any(outcome.status is not PutStatus.PUT_OK for outcome in outcomes):
                self.move()
            self.again(10, 120)

        self.call(broker, lambda reply: broker.take_send(drafts, reply), sent, 1500)

    def _next(self) -> Draft:
        self._count += 1
        draft = make_draft(_TOPIC, 0, f"{self.name}:{self._count}:.".encode())
        name = self.rng.choice(_NAMES)
        return draft._replace(properties=encode_properties({SHARDING_KEY: name}) + draft.properties) if name else draft


class GroupPopper(Client):
    """Pops; leaves the poisoned group to expire as long as there are faults."""

    def __init__(self, world: World, cluster: SimCluster, name: str, seen: Seen, maker: Maker) -> None:
        super().__init__(world, cluster, name)
        self._seen = seen
        self._maker = maker
        self._is_ending = False
        self._idle = 0

    def stop(self) -> None:
        self._is_ending = True

    def step(self) -> None:
        broker = self.broker
        asked_ms, is_ordered = self.world.now_ms, self._maker.is_made

        def run(reply: Reply) -> None:
            request = PopRequest(
                _GROUP,
                _TOPIC,
                0,
                self.rng.choice((1, 4, 16)),
                _HIDDEN_MS,
                broker.monotonic_ms(),
                InitMode.MIN,
                attempt_id=f"{self.name}{asked_ms}",
            )

            def popped(outcome: PopOutcome) -> None:
                if outcome.messages:
                    self._learn(broker, max(message.queue_offset for message in outcome.messages))
                reply(outcome)

            broker.core.pop.pop(request, popped)

        self.call(broker, run, lambda outcome: self._popped(broker, outcome, is_ordered=is_ordered), 1500)

    def _learn(self, broker: SimBroker, last: int) -> None:
        """Which groups the messages belong to: what is given is confirmed, and so is everything before it. Of what is in the
        tier alone by now nobody looks it up: it counts as of no group."""
        groups = self._seen.groups
        groups += [""] * (broker.core.store.local_min_offset(_TOPIC, 0) - len(groups))
        while len(groups) <= last:
            records = broker.core.store.read_messages(_TOPIC, 0, len(groups), 100, 1 << 20).records
            groups += [look_at(each).record.property_map().get(SHARDING_KEY, "") for each in records]
            assert records

    def _popped(self, broker: SimBroker, outcome: PopOutcome | None, *, is_ordered: bool) -> None:
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.history.count("pop in groups", "unknown" if outcome is None else "failed")
            self.move()
        elif outcome.messages:
            self._idle = 0
            self.history.count("pop in groups", "ok" if is_ordered else "too early for an order")
            if is_ordered:
                self._check_order(broker, outcome.messages)
            self._take(broker, outcome.messages)
        else:
            self._idle += 1
            if self._is_ending and self._idle >= _IDLE_POPS and self._has_all(broker):
                self.is_active = False
        self.again(5, 60)

    def _check_order(self, broker: SimBroker, messages: Sequence[PoppedMessage]) -> None:
        """Nothing is before them in their message groups that is neither finished nor beside them."""
        seen, together = self._seen, {message.queue_offset for message in messages}
        for offset in sorted(together):
            name = seen.groups[offset]
            waiting = [
                earlier
                for earlier in range(offset)
                if name
                and seen.groups[earlier] == name
                and earlier not in together
                and not seen.acks.may_be_finished(earlier)
            ]
            self.world.require(
                not waiting,
                f"{broker.name} gave {offset} of the message group {name} before {waiting[:5]} is finished",
            )
        offsets = [message.queue_offset for message in messages]
        self.world.require(offsets == sorted(offsets), f"{broker.name} gave message groups the offsets {offsets}")

    def _take(self, broker: SimBroker, messages: Sequence[PoppedMessage]) -> None:
        self._seen.came.update(look_at(message.record).record.body for message in messages)
        kept = {"a"} if not self._is_ending and self.rng.random() < 0.9 else set()
        part = [message for message in messages if self._seen.groups[message.queue_offset] not in kept]
        if part and (self._is_ending or self.rng.random() < 0.85):
            self.after(self.rng.uniform(0, 150), lambda: self._ack(broker, part))

    def _ack(self, broker: SimBroker, messages: Sequence[PoppedMessage]) -> None:
        offsets = [message.queue_offset for message in messages]
        self._seen.acks.ask(offsets)

        def answered(statuses: Sequence[AckStatus] | None) -> None:
            self._seen.acks.answer(offsets, statuses)

        handles = [message.receipt_handle for message in messages]
        self.call(broker, lambda reply: broker.core.pop.ack(_GROUP, _TOPIC, handles, reply), answered, SURE_TIMEOUT_MS)

    def _has_all(self, broker: SimBroker) -> bool:
        ledger, store = broker.core.pop.ledger, broker.core.store
        return (
            broker.driver.is_master
            and store.dispatch_offset == store.commitlog.end_offset
            and not ledger.in_flight(_GROUP)
            and (ledger.committed_offset(_GROUP, _TOPIC, 0) or 0) == store.max_offset(_TOPIC, 0)
        )
