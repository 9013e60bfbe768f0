"""A whole cluster under a seeded schedule of faults: three to five controllers, two to four brokers, clients that know outcomes.

`SimCluster(seed).run()` is one whole story: start, work under faults, heal, settle, check; in some stories also a second start of
everything, after which all must be as it was. It raises Violation when a promise was broken (see `checks`).
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brokerd.journal.journal import JournalSettings
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.replication.settings import ReplicationSettings
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.settings import StoreSettings
from controllerd.settings import RaftSettings
from controllerd.state.machine import ControllerMachine
from remoting.errors import CorruptedFile, RequestError
from tests.sim.administration import Administrator, TopicOwner
from tests.sim.broker import GROUP, SimBroker
from tests.sim.checks import Promises, Truth, check_end, log_of, open_transactions, pops_left
from tests.sim.clients import QUEUES, TOPIC, Client, Producer, Puller
from tests.sim.controller import SimController
from tests.sim.coverage import Coverage
from tests.sim.decay import Decay
from tests.sim.delays import BACK_GROUP, DELAYED_TOPIC, MAX_RETRIES, Backer, DelayedProducer, delays_left
from tests.sim.faults import TIER_MOOD, Injector, choose_mood
from tests.sim.history import History
from tests.sim.ingredients import INGREDIENTS, Addition, draw_ingredients
from tests.sim.leasers import LEASE_GROUP, Leaser
from tests.sim.poppers import ORDERED_GROUP, POP_GROUP, OrderedPopper, Popper
from tests.sim.side_group import SideGroup
from tests.sim.stowed_timers import STOWED_TIMERS
from tests.sim.tiered import SEGMENT_BYTES, TIERED, WITHOUT_CLIENTS, Tiered
from tests.sim.transactors import TRANSACTION_TOPIC, Transactor
from tests.sim.world import Network, Violation, World, collector_off
from tests.support.disks import Counters, MemoryFile

SETTLE_LIMIT_MS = 60_000
DRAIN_LIMIT_MS = 60_000
FAULT_MS = 4500
MAX_FAULTS = 14


@dataclass(frozen=True)
class Story:
    """What of a seed's story is told; everything, unless it is shrunk."""

    seed: int
    mood: str | None = None
    fault_ms: float = FAULT_MS
    ingredients: frozenset[str] | None = (
        None  # what not all have; None = drawn from the seed, none if the mood is given
    )
    without_faults: frozenset[int] = frozenset()
    without_clients: frozenset[str] = frozenset()
    heartbeat_ticks: int = RaftSettings().heartbeat_ticks  # of the controllers
    calm_ticks: bool = (
        False  # whether daemons look at their clocks seldom while nothing is under way, as those that run do
    )
    writes_ahead: bool = False  # whether they write blocks of the log before records come, likewise
    counts_lives: bool = (
        False  # whether controllers agree on the newest formats of records, and so on brokers' lives, likewise
    )


class SimCluster:
    """Controllers, brokers and clients in one process, on one clock and from one seed."""

    def __init__(self, story: Story | int, *, settings: ReplicationSettings | None = None) -> None:
        self.story = story = Story(story) if isinstance(story, int) else story
        self.world = world = World(story.seed)
        self.calm_ticks = story.calm_ticks
        self.writes_ahead = story.writes_ahead
        self.counts_lives = story.counts_lives  # or from when on; see `older_directories`
        self.network = Network(world)
        self.history = History()
        self.unhandled: Counter[str] = Counter()  # errors of a disk that nobody handled
        self.ids: dict[int, SimBroker] = {}  # whose disk holds what a broker id stands for; gone when the disk is
        self.rotten: list[SimBroker] = []
        self.second_processes: dict[SimBroker, list[SimBroker]] = {}  # which run on copies of a broker's directory
        self.put_aside: dict[SimBroker, list[dict[str, MemoryFile]]] = {}  # directories that others took the place of
        self.clients: list[Client] = []
        self.living: set[str] = set()  # consumers that are there, besides clients by their names
        self.interruptions = 0  # masterships that ended, and disks that refused
        self.restarted = False
        rng = world.random("cluster")
        self._settings = settings or ReplicationSettings()
        self._store = StoreSettings(
            segment_size_bytes=rng.choice((16384, 65536)),
            queue_file_units=64,
            max_record_bytes=8192,
            dispatch_chunk_bytes=rng.choice((4096, 65536)),
            index_slots=32,
            index_items=128,
        )
        self._journal = JournalSettings(snapshot_every_records=rng.choice((20, 4096)), snapshot_part_bytes=1024)
        mood = story.mood or choose_mood(rng)
        needs_all = mood in ("rot", "decay", "memory")  # one disk is damaged, so there must be others
        brokers = 2 if not needs_all and rng.random() < 0.15 else 3
        learners = 1 if not needs_all and rng.random() < 0.15 else 0
        self.ingredients = self._choose_ingredients(mood)
        if not {TIERED, STOWED_TIMERS}.isdisjoint(self.ingredients):
            self._store = replace(self._store, segment_size_bytes=SEGMENT_BYTES)
        self.scrub_round_ms = 2000 if needs_all else 10_000  # where nothing rots there is little to find
        self._restarts_at_end = rng.random() < 0.35 and mood != "memory"
        self.name = GROUP
        self.truth = Truth(self)
        self.promises = Promises(self)
        controllers: dict[str, SimController] = {}
        founders = ("c0", "c1", "c2")
        self.changes_members = rng.random() < 0.25
        for n in range(5 if self.changes_members else 3):
            controllers[f"c{n}"] = SimController(world, self.network, f"c{n}", controllers, founders)
        self.controllers = list(controllers.values())
        by_ha_address: dict[str, SimBroker] = {}
        self.brokers = [
            SimBroker(
                world,
                self.network,
                n,
                by_ha_address,
                controllers,
                replace(self._settings, learner=n >= brokers),
                self._store,
                self._journal,
            )
            for n in range(brokers + learners)
        ]
        self.nodes: list[SimBroker | SimController] = [*self.brokers, *self.controllers]
        self.victim = rng.choice(self.brokers)
        self.decay = Decay(self, self.victim, rng.choice(self.controllers))
        self.offered = list(self.brokers)  # whom clients try, also what only claims to be one
        for node in self.nodes:
            node.cluster = self
        for controller in self.controllers:
            controller.meet({broker.address: broker for broker in self.brokers})
        self.coverage = Coverage()
        self.injector = Injector(self, mood, MAX_FAULTS, story.fault_ms)
        self.additions: list[Addition] = []
        self.additions += [make(self) for name, make in INGREDIENTS.items() if name in self.ingredients]
        self.tiered = next((each for each in self.additions if isinstance(each, Tiered)), None)

    def _choose_ingredients(self, mood: str) -> frozenset[str]:
        if self.story.ingredients is not None:
            return self.story.ingredients
        if self.story.mood:
            return frozenset({TIERED}) if mood == TIER_MOOD else frozenset()
        return draw_ingredients(self.world.random("ingredients"), mood)

    # ---- the story

    def run(self) -> None:
        """Tell it. Raises Violation."""
        try:
            with collector_off():
                self._run()
        except Violation:
            raise
        except Exception as error:
            self.world.note("".join(traceback.format_exception(error)))
            raise Violation(f"seed {self.world.seed}: {type(error).__name__}: {error}") from error
        finally:
            if self.tiered is not None:
                self.tiered.close()

    def _run(self) -> None:
        require, world = self.world.require, self.world
        world.note(f"seed {self.story.seed}, mood {self.injector.mood}, {len(self.brokers)} brokers")
        if self.ingredients:
            world.note(f"with {', '.join(sorted(self.ingredients))}")
        for node in self.nodes:
            node.start()
        require(world.run_until(lambda: self.master() is not None, 20_000), "no master at the beginning")
        self._create()
        self._employ()
        self.injector.start(self.story.without_faults)
        for addition in self.additions:
            addition.begin()
        world.run(self.story.fault_ms)
        for client in self.clients:
            client.stop()
        for addition in self.additions:
            addition.end()
        self.injector.heal()
        if self.injector.mood == "decay":
            self._mend()
        elif self.rotten:
            world.run(3000)  # until the others are in the set again
            for broker in self.rotten:
                self.replace(broker)
            self.restart_all()
        self._settle("healed")
        self._let_clients_end()
        self._settle("left alone")
        if self.injector.mood == "decay":
            is_over = world.run_until(self._are_queues_right, SETTLE_LIMIT_MS, every=20)
            require(is_over, "a queue that rotted is not put right")
        check_end(self)
        for addition in self.additions:
            addition.check()
        self.decay.check()
        if self._restarts_at_end:
            self._restart_everything()
        require(
            not self.unhandled or self.injector.mood in ("rot", "decay"),
            f"nobody handled errors of a disk: {dict(self.unhandled)}",
        )

    def _mend(self) -> None:
        """The group goes on with those that are well, and the damaged broker is mended, or rightly refuses to go on."""
        others = [each for each in self.brokers if each not in self.rotten]

        def is_served() -> bool:
            group, master = self.truth.group, self.master()
            members = () if group is None else group.sync_state_set
            return (
                master is not None
                and master.driver.accepts_messages
                and all(each.is_up and self.id_of(each) in members for each in others)
            )

        is_over = self.world.run_until(is_served, SETTLE_LIMIT_MS, every=20)
        self.world.require(is_over, "the group does not go on, although all but one broker are well")
        for broker in list(self.rotten):
            self._have_mended(broker)
        self.restart_all()

    def _have_mended(self, broker: SimBroker) -> None:
        """What the others have intact must be whole again here, in place; who cannot be mended by anybody gets an empty disk."""
        decay, world = self.decay, self.world

        def refuses() -> bool:
            return broker.refusal_to_start is not None and not decay.is_mendable(broker)

        world.run_until(lambda: refuses() or (broker.is_up and decay.is_whole(broker)), SETTLE_LIMIT_MS, every=20)
        if not refuses():
            world.require(broker.is_up, f"{broker.name} does not start: {broker.refusal_to_start}")
            decay.check()
            return
        world.run_until(lambda: self.may_be_replaced(broker), SETTLE_LIMIT_MS, every=20)
        world.require(self.may_be_replaced(broker), f"the group does not go on without {broker.name}")
        self.replace(broker)

    def _create(self) -> None:
        """The topic and the groups that all of the story is about."""
        answers: list[RequestError | None] = []

        def create() -> None:
            master = self.master()
            assert master is not None
            said = self.tiered.said_of if self.tiered is not None else lambda _: {}
            for topic, queues in ((TOPIC, QUEUES), (TRANSACTION_TOPIC, 1)):
                config = TopicConfig(topic, queues, queues, 6, attributes=said(topic))
                master.core.metadata.put_topic(config, answers.append)
            master.core.metadata.put_group(GroupConfig(POP_GROUP, retry_max_times=1000), answers.append)
            ordered = GroupConfig(ORDERED_GROUP, fifo=True, retry_max_times=1000)
            master.core.metadata.put_group(ordered, answers.append)
            master.core.metadata.put_topic(TopicConfig(DELAYED_TOPIC, 1, 1, 6), answers.append)
            master.core.metadata.put_group(GroupConfig(BACK_GROUP, retry_max_times=MAX_RETRIES), answers.append)
            master.core.metadata.put_group(GroupConfig(LEASE_GROUP, retry_max_times=1000), answers.append)

        create()
        self.world.require(self.world.run_until(lambda: len(answers) == 7, 10_000), "the topic gets no answer")
        self.world.require(answers == [None] * 7, f"topic and group could not be created: {answers}")

    def _employ(self) -> None:
        world, without = self.world, self.story.without_clients
        without |= WITHOUT_CLIENTS if self.tiered is not None else frozenset()
        makers = {
            **{f"p{n}": lambda name, n=n: Producer(world, self, name, n, repeats=n == 1) for n in range(QUEUES)},  # type: ignore[misc]
            **{f"g{n}": lambda name, n=n: Puller(world, self, name, n) for n in range(QUEUES)},  # type: ignore[misc]
            "popper": lambda name: Popper(world, self, name),
            "ordered": lambda name: OrderedPopper(world, self, name, 0),
            "leaser": lambda name: Leaser(world, self, name),
            "transactor": lambda name: Transactor(world, self, name),
            "delayer": lambda name: DelayedProducer(world, self, name),
            "backer": lambda name: Backer(world, self, name),
            "owner": lambda name: TopicOwner(world, self, name),
            "admin": lambda name: Administrator(world, self, name),
        }
        self.clients = [make(name) for name, make in makers.items() if name not in without]

    def _let_clients_end(self) -> None:
        """Requests that are still under way end; the consumer finishes what it was promised."""
        self.world.require(self.world.run_until(self._nobody_waits, 10_000, every=20), "a client waits for ever")
        is_over = self.world.run_until(
            lambda: not open_transactions(self) and self._nobody_waits(), DRAIN_LIMIT_MS, every=20
        )
        self.world.require(is_over, f"transactions are never ended: {open_transactions(self)}")
        is_over = self.world.run_until(lambda: not delays_left(self), DRAIN_LIMIT_MS, every=20)
        self.world.require(is_over, f"delayed messages are not delivered: {delays_left(self)}")
        poppers = [client for client in self.clients if isinstance(client, Popper)]
        if not poppers:
            return
        (popper,) = poppers
        popper.drain()
        popper.is_active = True
        popper.step()
        self.world.run_until(
            lambda: popper.idle_pops >= 3 and not popper.in_hand and not pops_left(self), DRAIN_LIMIT_MS, every=20
        )
        popper.stop()
        # A record of the broker's own may be on its way to the queues in the moment in which the last answer comes.
        self.world.run_until(
            lambda: self._nobody_waits() and not popper.in_hand and not pops_left(self), 10_000, every=20
        )
        left = pops_left(self)
        self.world.require(not left, f"the consumer gets no more, and {left}")

    def _are_queues_right(self) -> bool:
        """Whether no broker refuses to read a queue. What does not pass its check waits for the scrubber, which looks at a queue
        at once when somebody is refused it."""
        for broker in self.brokers:
            store = broker.core.store
            try:
                for (topic, queue_id), queue in store.queues.table.items():
                    store.read_messages(topic, queue_id, queue.first_offset, 1000, 1 << 30)
            except CorruptedFile:
                return False
        return True

    def _nobody_waits(self) -> bool:
        return not any(client.calls for client in self.clients)

    def _restart_everything(self) -> None:
        """All lose power; what comes back is what was there."""
        self.restarted = True
        before = {broker.name: (log_of(broker), self._tables(broker)) for broker in self.brokers}
        for node in self.nodes:
            if node.is_running:
                node.crash()
        self.restart_all()
        self._settle("started again")
        check_end(self)
        for broker in self.brokers:
            log, tables = before[broker.name]
            self.world.require(
                log_of(broker).goes_on(log), f"the log of {broker.name} changed by a loss of power of everything"
            )
            self.world.require(
                self._tables(broker) == tables, f"the tables of {broker.name} changed by a loss of power of everything"
            )

    @staticmethod
    def _tables(broker: SimBroker) -> list[str]:
        return sorted(map(repr, broker.core.metadata.tables.snapshot_rows()))

    def second_process(self, first: SimBroker, index: int) -> SimBroker:
        """One like the first, with an address of its own and an empty disk; it is not running."""
        second = first.another(index)
        second.cluster = self
        self.second_processes.setdefault(first, []).append(second)
        self.nodes.append(second)
        self.offered.append(second)
        return second

    # ---- who is who

    def master(self) -> SimBroker | None:
        """The running broker that leads in the highest epoch."""
        masters = [b for b in self.brokers if b.is_up and not b.is_paused and b.driver.is_master]
        return max(masters, key=lambda b: b.driver.machine.master_epoch, default=None)

    def leader(self) -> SimController | None:
        """The running controller that serves in the highest term."""
        leaders = [c for c in self.controllers if c.is_up and not c.is_paused and c.is_serving]
        return max(leaders, key=lambda c: c.node.core.term, default=None)

    def id_of(self, broker: SimBroker) -> int | None:
        return next((broker_id for broker_id, each in self.ids.items() if each is broker), None)

    @property
    def members(self) -> Sequence[int]:
        """The sync-state set."""
        group = self.truth.group
        return () if group is None else group.sync_state_set

    def ids_of(self, group: str) -> Mapping[int, SimBroker]:
        """Of a broker group that the controllers know: whose disk holds what a broker id stands for."""
        found = [each.ids for each in self.additions if isinstance(each, SideGroup) and each.name == group]
        return self.ids if group == GROUP else found[0]

    def disk_counters(self) -> list[Counters]:
        """What all disks did, also those of machines that were replaced."""
        disks = [node.disk for node in self.nodes] + [disk for broker in self.brokers for disk in broker.disks]
        return [disk.counters for disk in disks]

    def may_serve_damage(self, broker: SimBroker) -> bool:
        """In the mood of rot a flip of a length that no checksum covers reaches a consumer, who sees that it is no message."""
        return broker in self.rotten and self.injector.mood != "decay"

    def all_in_set(self) -> bool:
        """Every broker is in the sync-state set, so each of them has everything."""
        group = self.truth.group
        return group is not None and all(self.id_of(each) in group.sync_state_set for each in self.brokers)

    def may_be_replaced(self, broker: SimBroker) -> bool:
        """The group does not count on this broker's disk, and no proposal is on its way after which it would."""
        group, broker_id = self.truth.group, self.id_of(broker)
        if group is None or broker_id is None or broker_id in group.sync_state_set:
            return False
        # Of the dead ones, what they were when they died; what its own says goes with its disk.
        masters = [each.driver.machine.mastership for each in self.brokers if each is not broker]
        return not any(mastership is not None and broker_id in mastership.sync.required for mastership in masters)

    # ---- what nodes tell

    def recovered(self, broker: SimBroker) -> None:
        """A broker has read its disk."""
        if broker.driver.machine.broker_id is not None and broker in self.brokers:
            self._identify(broker)

    def _identify(self, broker: SimBroker) -> None:
        broker_id = broker.driver.machine.broker_id
        assert broker_id is not None
        self.ids[broker_id] = broker

    def became_master(self, broker: SimBroker) -> None:
        self.interruptions += self.truth.elections > 1
        self.promises.became_master(broker)

    def answered(self, broker: SimBroker, drafts: list[Draft], outcomes: list[SendOutcome]) -> None:
        self.promises.answered(broker, drafts, outcomes)

    def happened(self, change: str, node: SimBroker | SimController | None) -> None:
        """A role, a set or a file of a node changed: some faults wait for that."""
        self.coverage.changed(change, self.world.now_ms)
        self.injector.happened(change, node)

    def decided(self, controller: SimController, index: int, is_decision: bool, data: bytes) -> None:
        self.truth.decided(controller, index, is_decision, data)
        for broker in self.brokers:
            if broker.is_up and broker.driver.machine.broker_id is not None:
                self._identify(broker)

    def applied(self, controller: SimController, index: int, machine: ControllerMachine) -> None:
        self.truth.applied(controller, index, machine)

    def stopped_itself(self, node: SimBroker | SimController) -> None:
        """Its disk refused; the supervisor starts it again."""
        if isinstance(node, SimBroker) and node.refusal_to_start is not None:
            self.world.require(node in self.rotten, f"{node.name} refuses to start: {node.refusal_to_start}")
            # What others can mend they shall mend; and the only one that has everything is not thrown away.
            if self.injector.mood != "decay" or (self.may_be_replaced(node) and not self.decay.is_mendable(node)):
                self.replace(node)
        self.injector.later(node, self.world.random(f"{node.name} {node.life}").uniform(20, 800))

    def lost_power(self, node: SimBroker | SimController) -> None:
        """Whoever lost power in the middle of something comes back by itself, unless somebody is quicker."""
        self.injector.later(node, self.world.random(f"{node.name} {node.life}").uniform(100, 1500))

    def restart(self, node: SimBroker | SimController) -> None:
        if not node.is_running and not node.is_retired:
            node.start()

    def restart_all(self) -> None:
        for node in self.nodes:
            self.restart(node)

    def replace(self, broker: SimBroker) -> None:
        """Another machine takes the broker's place; an administrator has the controllers forget the old one."""
        if broker.is_running:
            broker.kill()
        broker.replace()
        self.decay.replaced(broker)
        self.rotten = [each for each in self.rotten if each is not broker]
        broker_id = self.id_of(broker)
        if broker_id is None:
            return
        del self.ids[broker_id]
        for client in self.clients:
            if isinstance(client, Administrator):
                client.clean(broker_id)

    # ---- settling

    def wait_until_settled(self, what: str) -> None:
        """After something happened to what had settled. Raises Violation when it does not come to rest."""
        self._settle(what)

    def check_messages_again(self) -> None:
        """Whether all that was promised still holds. Raises Violation."""
        check_end(self)

    def _settle(self, what: str) -> None:
        self.world.require(
            self.world.run_until(self._is_settled, SETTLE_LIMIT_MS, every=20), f"{what}, the cluster does not settle"
        )

    def _is_settled(self) -> bool:
        is_quiet = self.leader() is not None and self.is_alike(self)
        return is_quiet and all(addition.is_settled() for addition in self.additions)

    def is_alike(self, group: SimCluster | SideGroup) -> bool:
        """Whether a group of brokers has a master, and all others have what that has."""
        master = group.master()
        if master is None or not all(broker.is_up for broker in group.brokers):
            return False
        mastership = master.driver.machine.mastership
        end = master.core.store.commitlog.end_offset
        if mastership is None or not master.driver.accepts_messages or master.core.store.refusal is not None:
            return False
        members = {each.driver.machine.broker_id for each in group.brokers if not each.settings.learner}
        if mastership.sync.required != mastership.sync.local or mastership.sync.local != members:
            return False
        return all(
            broker.core.store.commitlog.end_offset == end and broker.core.store.dispatch_offset == end
            for broker in group.brokers
        )
