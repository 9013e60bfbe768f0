"""A second broker group in the story of a first one: its brokers, what its clients know, and what must be true of it.

Whoever needs a cluster of a broker, a client or a check gets this group instead: controllers, network and faults are those of the
first one. A `Chooser` is a client of both. `SecondGroup` is elected by the same controllers; `fixed_roles` has one that is not.
Verdict: each group keeps what it acknowledged, on all of its replicas, and nothing of it is in the other one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerd.metadata.configs import TopicConfig
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from controllerd.replicas.state import Group
from tests.sim.administration import Maker
from tests.sim.broker import SimBroker
from tests.sim.checks import Promises, check_messages
from tests.sim.clients import QUEUES, TOPIC, Client, Producer, Puller
from tests.sim.history import History
from tests.sim.world import World
from tests.support.disks import MemoryFile

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController

_FIRST_INDEX = 20  # of its brokers' names and hosts
SIZE = 2
NAME = "broker-b"


class SideGroup:
    """What brokers, clients and checks use of a cluster, for the brokers of another group."""

    def __init__(self, cluster: SimCluster, name: str, letter: str) -> None:
        self.main = cluster
        self.name = name
        self.world = cluster.world
        self.network = cluster.network
        self.history = History()
        self.history.operations = cluster.history.operations
        self.ids: dict[int, SimBroker] = {}
        self.rotten: list[SimBroker] = []
        self.second_processes: dict[SimBroker, list[SimBroker]] = {}
        self.put_aside: dict[SimBroker, list[dict[str, MemoryFile]]] = {}
        self.unhandled: Counter[str] = Counter()
        self.interruptions = 0
        self.scrub_round_ms = cluster.scrub_round_ms
        self.calm_ticks = cluster.calm_ticks
        self.writes_ahead = cluster.writes_ahead
        self.tiered = None  # its messages stay where they are
        self.promises = Promises(self)
        self.letter = letter
        self.brokers: list[SimBroker] = []
        self.offered = self.brokers
        self.clients: list[Client] = []

    # ---- what it is made of

    def populate(self, brokers: Sequence[SimBroker]) -> None:
        """These are its brokers; faults hit them as all others."""
        for broker in brokers:
            broker.cluster = self
            self.brokers.append(broker)
            self.main.nodes.append(broker)

    def begin(self) -> None:
        world, letter = self.world, self.letter
        topic = TopicConfig(TOPIC, QUEUES, QUEUES, 6)
        make = Maker(world, self, f"{letter}-maker", lambda metadata, done: metadata.put_topic(topic, done))
        makers: list[Client] = [make]
        makers += [Producer(world, self, f"{letter}-p{n}", n, repeats=n == 1) for n in range(QUEUES)]
        makers += [Puller(world, self, f"{letter}-g{n}", n) for n in range(QUEUES)]
        self.clients = makers
        self.main.clients += [*makers, Chooser(world, (self.main, self), f"{letter}-both")]

    def end(self) -> None:
        """Its clients are stopped with all others."""

    def is_settled(self) -> bool:
        return self.main.is_alike(self)

    def check(self) -> None:
        check_messages(self)
        self.world.require(not self.unhandled, f"nobody handled errors of a disk: {dict(self.unhandled)}")

    # ---- who is who

    @property
    def group(self) -> Group | None:
        """As the controllers decided."""
        return self.main.truth.group_of(self.name)

    @property
    def members(self) -> Sequence[int]:
        return () if self.group is None else self.group.sync_state_set

    def master(self) -> SimBroker | None:
        masters = [b for b in self.brokers if b.is_up and not b.is_paused and b.driver.is_master]
        return max(masters, key=lambda b: b.driver.machine.master_epoch, default=None)

    def id_of(self, broker: SimBroker) -> int | None:
        return next((broker_id for broker_id, each in self.ids.items() if each is broker), None)

    def may_serve_damage(self, broker: SimBroker) -> bool:
        return False

    # ---- what its brokers tell

    def recovered(self, broker: SimBroker) -> None:
        if broker.driver.machine.broker_id is not None:
            self.ids[broker.driver.machine.broker_id] = broker

    def became_master(self, broker: SimBroker) -> None:
        self.interruptions += 1
        self.recovered(broker)
        self.promises.became_master(broker)

    def answered(self, broker: SimBroker, drafts: list[Draft], outcomes: list[SendOutcome]) -> None:
        self.promises.answered(broker, drafts, outcomes)

    def happened(self, change: str, node: SimBroker | SimController | None) -> None:
        self.main.happened(change, node)
        if isinstance(node, SimBroker):
            self.recovered(node)

    def stopped_itself(self, node: SimBroker) -> None:
        self.world.require(node.refusal_to_start is None, f"{node.name} refuses to start: {node.refusal_to_start}")
        self.main.injector.later(node, self.world.random(f"{node.name} {node.life}").uniform(20, 800))

    def lost_power(self, node: SimBroker) -> None:
        self.main.lost_power(node)


class SecondGroup(SideGroup):
    """Elected by the controllers of the first one."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster, NAME, "b")
        first = cluster.brokers[0]
        peers: dict[str, SimBroker] = {}
        self.populate([first.of_group(NAME, _FIRST_INDEX + n, peers) for n in range(SIZE)])
        for controller in cluster.controllers:
            controller.meet({broker.address: broker for broker in self.brokers})


class Chooser(Producer):
    """Sends each of its messages to one group or the other, as a client does that knows the queues of both."""

    def __init__(self, world: World, groups: Sequence[SimCluster | SideGroup], name: str) -> None:
        super().__init__(world, groups[0], name, 0, repeats=True)
        self._groups = groups

    def step(self) -> None:
        self.cluster = self.rng.choice(self._groups)
        self.history = self.cluster.history
        self.move()
        self.history.count("send to either group", self.cluster.name)
        super().step()
