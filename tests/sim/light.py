"""Light stories: the replication of one broker group, one event at a time, thousands a minute.

Real replication drivers over logs in memory, and the controllers' rules for elections and sync-state sets; no store, no Raft, no
clients beside producers. A story is 80 events drawn from the seed: appends, flushes, parts of a stream, lost answers, elections,
crashes in the middle of a durable step. After every event it is checked that whoever could be elected has all that was
acknowledged or shown, that the required set holds the controllers' set, and that logs are identical as far as their epochs say.
In one of a few stories the faults end, and the group must heal and be alike. In some, older copies of brokers' directories take
their place (`light_directories`): who runs on another one than it had as a member of the set counts for nothing until it left.

The checks do the same as `check_safety` of the unit tests, but look only at what an event may have changed.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from brokerd.replication.epochs.epoch_file import EPOCH_FILE, MASTER_EPOCH_FILE
from brokerd.replication.epochs.epoch_list import EpochList, decode_epochs
from brokerd.replication.settings import ReplicationSettings
from remoting.errors import CorruptedFile
from tests.sim.coverage import Coverage
from tests.sim.light_directories import Directories
from tests.sim.world import Violation
from tests.support.disks import MemoryFile, PowerLost
from tests.unit.brokerd.replication.group import Group, MemoryReplicatedLog, Node
from tests.unit.brokerd.replication.invariants import check_acks_are_from_one_broker_per_epoch
from tests.unit.brokerd.replication.schedules import WEIGHTS, Story

STEPS = 80
HEALS = 10  # one story of so many is told to the end
ROTS = 5  # in one story of so many the files of epochs rot, in another one settings change, in another one old copies come back
_LIVE = {"reconfigure": 3.0}
_ROT = {"rot": 3.0, "crash": 2.5, "start": 8.0}
OLD = {"copy_directory": 3.0, "put_back": 3.0, "crash": 2.5, "start": 8.0}
LIGHT_CHANGES = ("master", "replica", "fenced", "set")
LIGHT_FAULTS = ("crash", "power_lost", "cut", "lose_answer", "abandon", "lose_master", "rot", "reconfigure", "put_back")
_NEAR_EVENTS = 8.0


class Watch:
    """The safety of a group, looked at after every event, and once before the first."""

    def __init__(self, group: Group, *, only_outcomes: bool = False) -> None:
        """`only_outcomes` leaves out the rule that makes losses impossible, so that a broken one is found by its loss."""
        self._group = group
        self._only_outcomes = only_outcomes
        self._nodes = list(group.nodes.values())
        self._checked_acks = 0
        self._last_cut: list[tuple[int, int, int]] = [(0, 0, 0)] * len(self._nodes)
        self._members: frozenset[int] = frozenset()
        self._shown = 0  # what was checked to be on all members, of what anybody showed
        self._lists: list[tuple[MemoryFile | None, EpochList, int]] = [(None, EpochList(), 0)] * len(self._nodes)
        self._alike: dict[tuple[int, int], int] = {}
        self._last_state: list[object] = []

    def look(self) -> None:
        """Raises AssertionError."""
        self._note_new_brokers()
        state = self._state()
        if state == self._last_state:
            return  # nothing that a promise is about has changed
        self._last_state = state
        again = self._note_cuts()
        self._look_at_required_sets()
        self._look_at_acknowledged(again)
        self._look_at_shown(again)
        self._look_at_logs()

    def _note_new_brokers(self) -> None:
        """Nothing is known of one that took another's place."""
        for index, node in enumerate(self._group.nodes.values()):
            if node is not self._nodes[index]:
                self._nodes[index] = node
                self._last_cut[index] = 0, 0, 0
                self._lists[index] = None, EpochList(), 0

    def _state(self) -> list[object]:
        """All that the checks go by."""
        controller = self._group.controller
        state: list[object] = [controller.trusted, controller.members, controller.master_epoch]
        state.append(len(self._group.acknowledged))
        for node in self._nodes:
            log = node.log
            state += (node.broker_id, node.alive, node.life, log.min_offset, len(log.data), log.flushed_offset)
            state.append(node.disk.files.get(EPOCH_FILE))
            if node.alive:
                machine = node.machine
                mastership = machine.mastership
                state += (machine.confirm_offset, machine.log.end_offset, machine.master_epoch)
                state.append(mastership.sync.required if mastership is not None else None)
                state.append(node.settings)
        return state

    def _note_cuts(self) -> bool:
        """Whether something that was checked may have changed: a log lost bytes, or the controllers' set is another one."""
        again = self._group.controller.trusted != self._members
        self._members = self._group.controller.trusted
        for index, node in enumerate(self._nodes):
            min_before, flushed_before, life = self._last_cut[index]
            log = node.log
            if log.flushed_offset < flushed_before or log.min_offset != min_before or node.life != life:
                again = True
                for pair in self._alike:
                    if index in pair:
                        self._alike[pair] = 0
            self._last_cut[index] = log.min_offset, log.flushed_offset, node.life
        return again

    def _look_at_required_sets(self) -> None:
        controller = self._group.controller
        for node in self._nodes:
            if not node.alive:
                continue
            least = node.settings.min_in_sync_replicas
            machine = node.machine
            assert machine.confirm_offset <= machine.log.end_offset == node.log.end_offset
            mastership = machine.mastership
            if mastership is not None and mastership.epoch == controller.master_epoch and not self._only_outcomes:
                assert controller.members <= mastership.sync.required, (
                    f"b{node.broker_id} requires {set(mastership.sync.required)}, the set is {set(controller.members)}"
                )
            if mastership is not None and least > 1 and node.driver.accepts_messages:
                copies = len(mastership.sync.required)
                assert copies >= least, f"b{node.broker_id} takes messages of which there will be {copies} copies"

    def _look_at_acknowledged(self, again: bool) -> None:
        acknowledged = self._group.acknowledged
        if again:
            self._checked_acks = 0
        for acked in acknowledged[self._checked_acks :]:
            end = acked.position + 1 + len(acked.payload)
            for broker_id in self._members:
                node = self._group.nodes[broker_id]
                held = node.log.content(acked.position + 1, end) if self._safe(node) >= end else b""
                assert held == acked.payload, f"b{broker_id} is electable and lacks {acked}"
        self._checked_acks = len(acknowledged)

    def _look_at_shown(self, again: bool) -> None:
        """What a consumer may have read is on every broker that could be elected, byte for byte."""
        group = self._group
        if again:
            self._shown = 0
        highest = self._shown
        for node in self._nodes:
            if not node.alive:
                continue
            visible = node.machine.confirm_offset
            if node.machine.mastership is not None:
                key = node.broker_id, node.machine.master_epoch
                assert visible >= group.confirmed.get(key, 0), "the confirm offset went back within a mastership"
                group.confirmed[key] = visible
            if visible <= self._shown:
                continue
            visible = _whole_records(node.log, visible)  # a replica may ack a part of a record, which nobody sees
            highest = max(highest, visible)
            for broker_id in self._members:
                member = group.nodes[broker_id]
                safe = self._safe(member)
                assert safe >= visible, f"b{node.broker_id} shows {visible}, of which electable b{broker_id} has {safe}"
                start = max(node.log.min_offset, member.log.min_offset, self._shown)
                assert member.log.content(start, visible) == node.log.content(start, visible), (
                    f"b{node.broker_id} shows below {visible} what electable b{broker_id} has differently"
                )
        if self._members:
            self._shown = highest

    def _look_at_logs(self) -> None:
        states = [self._epochs(index) for index in range(len(self._nodes))]
        for index, node in enumerate(self._nodes):
            own, own_end, own_changed = states[index]
            for other_index in range(index):
                entries, other_end, other_changed = states[other_index]
                if not own_changed and not other_changed:
                    continue
                other = self._nodes[other_index]
                common = _within(own, own_end).common_end(own_end, _within(entries, other_end).entries, other_end)
                known = self._alike.setdefault((other_index, index), 0)
                if common is None or common <= known:
                    continue
                start = max(node.log.min_offset, other.log.min_offset, known)
                assert node.log.content(start, common) == other.log.content(start, common), (
                    f"b{node.broker_id} and b{other.broker_id} differ below {common}, where their epochs say they agree"
                )
                self._alike[other_index, index] = common

    def _epochs(self, index: int) -> tuple[EpochList, int, bool]:
        """The list that a node wrote last, the end of its log, and whether either changed since the last look.

        A file is read once, in the look behind the event that wrote it, so before any of its bits flips: which bytes are whose
        stays what the broker wrote, and has in memory.
        """
        node = self._nodes[index]
        file = node.disk.files.get(EPOCH_FILE)
        known, entries, end = self._lists[index]
        new_end = node.log.end_offset
        if file is known:
            if new_end == end:
                return entries, end, False
        else:
            content = node.disk.read_bytes(EPOCH_FILE)
            entries = EpochList(decode_epochs(content, EPOCH_FILE) if content else ())
            for pair in self._alike:
                if index in pair:
                    self._alike[pair] = 0
        self._lists[index] = file, entries, new_end
        return entries, new_end, True

    def _safe(self, node: Node) -> int:
        return node.log.flushed_offset if self._group.settings.ack_after_flush else node.log.end_offset


class LightStory(Story):
    """One story; `run` raises Violation."""

    kind = "light"

    def __init__(
        self,
        seed: int,
        *,
        settings: ReplicationSettings | None = None,
        steps: int = STEPS,
        heals: bool | None = None,
        only_outcomes: bool = False,
        weights: dict[str, float] | None = None,
        learners: frozenset[int] = frozenset(),
        ends_without_one: bool = False,
        without: frozenset[int] = frozenset(),
    ) -> None:
        """`weights` makes some events likelier or rarer than they are; without it the seed says whether files rot, or settings
        change. `ends_without_one`: one broker stays dead in the end, and the others must be able to do without it. The events
        `without` are left out; the others make the same choices then."""
        size = 3 if Random(seed).random() < 0.8 else Random(seed).choice((2, 4))
        super().__init__(seed, size=size, settings=settings, steps=steps, learners=learners & {*range(1, size + 1)})
        self.seed = seed
        self.heals = seed % HEALS == 0 if heals is None else heals
        self.trace: list[str] = []
        self.is_traced = False
        self._only_outcomes = only_outcomes
        self.coverage = Coverage(_NEAR_EVENTS)
        self.events = 0  # that were drawn, also those that could not take place
        self._victim = self.group.nodes[1 + seed % size]  # of rot
        self._ends_without_one = ends_without_one
        self._without = without
        self._roles = [0] * size  # how many role changes of each broker were noted
        if weights is None:
            weights = {ROTS - 1: _ROT, ROTS - 2: _LIVE, ROTS - 3: OLD}.get(seed % ROTS, {})
        self._weights = {**WEIGHTS, **weights}
        self._views = [self.group.controller.view()]  # the last of each epoch
        self._directories = Directories(self.group)

    def run(self, *_: object, **__: object) -> None:
        """Tell it, and in some stories let the group heal."""
        try:
            self._tell()
        except AssertionError as error:
            text = str(error) or repr(error)
            self.trace.append(f"VIOLATION: {text}")
            raise Violation(f"{self.kind} seed {self.seed}: {text}") from error

    def _tell(self) -> None:
        rng, group = self.rng, self.group
        if rng.random() < 0.8:
            group.controller.elect(1 + rng.randrange(group.size))
            group.push_all()
            if rng.random() < 0.5:  # else the first replicas join among all the other events
                group.settle(rng.randrange(4))
        watch = Watch(group, only_outcomes=self._only_outcomes)
        watch.look()
        left = self.steps
        names, shares = list(self._weights), list(self._weights.values())
        while left:
            for name in rng.choices(names, shares, k=left):
                self.events += 1
                if self.events in self._without:
                    left -= 1
                    continue
                self.rng = Random(self.seed << 32 | self.events)
                if self._happens(name):
                    left -= 1
                    self._note_changes(name)
                    self.did[name] += 1
                    if self.is_traced:
                        self.trace.append(f"{group.now_ms:8} {name:12} {self._state()}")
                    watch.look()
        check_acks_are_from_one_broker_per_epoch(group)
        self.rng = rng
        if self._ends_without_one:
            self._finish_without_one()
        elif self.heals:
            self.trace.append("everything is healed")
            self._take_settings_back()
            self._directories.bring_back()
            self.finish()
            self.did["healed"] += 1

    def _note_changes(self, event: str) -> None:
        """What the event was to the coverage, and what the controllers would say now."""
        if event in LIGHT_FAULTS:
            self.coverage.fault(event, self.events)
        for index, node in enumerate(self.group.nodes.values()):
            if len(node.roles) != self._roles[index]:
                for role, _ in node.roles[self._roles[index] :]:
                    self.coverage.changed(role.name.lower(), self.events)
                self._roles[index] = len(node.roles)
        view = self.group.controller.view()
        if view.members != self._views[-1].members:
            self.coverage.changed("set", self.events)
        if view.master_epoch == self._views[-1].master_epoch:
            self._views.pop()
        self._views.append(view)

    def push_old(self) -> bool:
        """Somebody tells a broker what was true in an earlier epoch."""
        nodes = [node for node in self.group.nodes.values() if node.alive]
        if not nodes or len(self._views) < 2:
            return False
        node = self.rng.choice(nodes)
        node.driver.observed(self.rng.choice(self._views[:-1]), self.group.now_ms)
        return True

    def rot(self) -> bool:
        """A bit flips in one of the files that say which epochs there were: always of the same broker."""
        node = self._victim
        files = [file for path, file in sorted(node.disk.files.items()) if path in (EPOCH_FILE, MASTER_EPOCH_FILE)]
        if not files:
            return False
        file = self.rng.choice(files)
        rot_bit(file, self.rng.randrange(len(file.seen.held)), self.rng.randrange(8))
        return True

    def copy_directory(self) -> bool:
        """Somebody copies what a broker has on its disk."""
        return self._directories.copy(self.rng)

    def put_back(self) -> bool:
        """A broker ends, and an older copy takes the place of its directory."""
        return self._directories.put_back(self.rng)

    def reconfigure(self) -> bool:
        """An administrator changes what may be changed while brokers run, on one of them: how many copies a message must have at
        least, how long is waited for them, and how long for a replica that does not keep up. One that is down starts with it."""
        node = self.rng.choice(list(self.group.nodes.values()))
        self._reconfigure(
            node,
            replace(
                node.settings,
                min_in_sync_replicas=self.rng.choice((1, 2, 3)),
                ack_timeout_ms=self.rng.choice((300, 3000)),
                not_caught_up_ms=self.rng.choice((500, 3000)),
            ),
        )
        return True

    def _take_settings_back(self) -> None:
        first = self.group.settings
        for node in self.group.nodes.values():
            own = replace(first, learner=node.settings.learner)
            if node.settings != own:
                self._reconfigure(node, own)

    def _reconfigure(self, node: Node, settings: ReplicationSettings) -> None:
        node.settings = settings
        if node.alive:
            node.driver.reconfigure(settings, self.group.now_ms)

    def start(self) -> bool:
        """A broker starts. One that finds its files damaged refuses; it begins anew when the group does not count on it.

        As its refusal says: the directory is moved away, with the broker's id, and what starts is a broker with another one. An
        empty log under the old id is promised nothing: the master has counted what that id acked, and its request to put it into
        the set may still be under way.
        """
        nodes = [node for node in self.group.nodes.values() if not node.alive]
        if not nodes:
            return False
        node = self.rng.choice(nodes)
        try:
            node.start()
        except CorruptedFile:
            assert node is self._victim, f"b{node.broker_id} refuses to start"
            node.alive = False
            self.did["refused"] += 1
            if node.broker_id not in self.group.controller.members:
                self._roles[list(self.group.nodes).index(node.broker_id)] = 0
                self._victim = self.group.begin_anew(node)
        return True

    def _finish_without_one(self) -> None:
        """Faults stop, and all but one broker are there: they must acknowledge, unless only that one may lead."""
        group = self.group
        dead = self.rng.choice([node for node in group.nodes.values() if group.controller.members != {node.broker_id}])
        self.trace.append(f"everything but b{dead.broker_id} is healed")
        self._take_settings_back()
        if dead.alive:
            group.crash(dead)
        for node in group.nodes.values():
            node.fuse.steps_left = 0
            if node is not dead and not node.alive:
                node.start()
        for _ in range(60):
            if group.controller.master_id in (None, dead.broker_id):
                group.controller.elect(self.rng.choice(group.controller.candidates()))
            group.push_all()
            group.settle(4, tick_ms=250)
        before = len(group.acknowledged)
        master = next(node for node in group.nodes.values() if node.broker_id == group.controller.master_id)
        group.append(master)
        group.settle(3)
        assert len(group.acknowledged) == before + 1, f"without b{dead.broker_id} the group does not acknowledge"

    def _happens(self, name: str) -> bool:
        """Have an event take place, if it can now."""
        try:
            happened: bool = getattr(self, name)()
        except PowerLost:
            self._lose_power()
            self.coverage.fault("power_lost", self.events)
            return True
        return happened

    def _state(self) -> str:
        controller = self.group.controller
        parts = [f"[{controller.master_id} e{controller.master_epoch} {sorted(controller.members)}]"]
        for node in self.group.nodes.values():
            role = f"{node.machine.role.value[:4]}/{node.machine.master_epoch}" if node.alive else "down"
            parts.append(f"b{node.broker_id}:{role} {node.log.flushed_offset}/{node.log.end_offset}")
        return " ".join(parts)


def rot_bit(file: MemoryFile, position: int, bit: int) -> None:
    """A disk flips it, in what is read and what a loss of power leaves."""
    for image in (file.seen, file.platter):
        image.held[position] ^= 1 << bit


def _whole_records(log: MemoryReplicatedLog, offset: int) -> int:
    """The end of the last whole record below the offset."""
    position, end = 0, offset - log.min_offset
    while position < end and position + 1 + log.data[position] <= end:
        position += 1 + log.data[position]
    return log.min_offset + position


def _within(epochs: EpochList, end_offset: int) -> EpochList:
    """The list without what begins beyond the log's end, as after a crash between two durable steps."""
    last = epochs.last
    if last is None or last.start_offset <= end_offset:
        return epochs
    return EpochList(entry for entry in epochs.entries if entry.start_offset <= end_offset)
