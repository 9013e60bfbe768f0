"""A broker's directory is put back from an older copy, or a second process runs on one, and nobody else may be there meanwhile.

Copies are taken of any broker at any time: of its files as a process reads them, as a loss of power leaves them, or while it is
stopped. Later one takes the place of the directory, or a process is started on it beside the first one; often the other brokers
are stopped then, too, and all controllers are started again, so that nobody remembers what he heard of the first directory. In
half of these stories controllers learn to count lives in the middle. Verdict: all that is promised anyhow. Whoever runs on a
directory that has not seen the life which is counted as the member leads nobody, so nothing is lost, and nothing is shown twice.

A copy that has seen that life is not used: that it is older, only what controllers heard could tell (W27). Nor is one used while
nobody counts lives. Directories that were exchanged are put aside. Where nobody leads in the end, since members of the set run on
others and the rest of them cannot tell what it lost, an operator does as he is told: he puts those back that the members had.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from brokerd.replication.controllers.identity import LIVES_FILE
from remoting.sealed_text import unseal
from tests.sim.broker import SimBroker
from tests.support.disks import FaultyDisk, MemoryFile

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

NAME: Final = "older directories"
_FIRST_INDEX: Final = 30  # of the names and hosts of second processes
_MOST_BESIDE: Final = 2
_LOOK_AGAIN_MS: Final = 150  # where no copy could be used
_LOOK_MS: Final = 100  # whether an operator has to do something
_HEADLESS_MS: Final = 3000  # so long nobody leads before he does


@dataclass
class Directory:
    """A copy of a broker's directory, or the directory itself that was put aside."""

    disk: FaultyDisk  # of the machine that it belongs to
    broker_id: int | None
    files: dict[str, MemoryFile]
    directories: set[str]
    lives: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.lives = lives_in(self.files)


class OlderDirectories:
    """The copies of one story, and what becomes of them."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = rng = cluster.world.random(NAME)
        self._copies: dict[SimBroker, list[Directory]] = {each: [] for each in cluster.brokers}
        self._aside: dict[SimBroker, list[Directory]] = {each: [] for each in cluster.brokers}
        self._beside: list[tuple[SimBroker, SimBroker]] = []  # (the first process, the second one)
        self._made = 0  # second processes
        self._is_over = False
        self._led_ms = 0.0  # when somebody led, as an operator saw it
        self._learns_later = rng.random() < 0.5
        cluster.counts_lives |= not self._learns_later

    def begin(self) -> None:
        world, rng, fault_ms = self._world, self._rng, self._cluster.story.fault_ms
        if self._learns_later:
            world.after(rng.uniform(0, 0.4) * fault_ms, self._learn)
        for broker in self._cluster.brokers:
            for _ in range(rng.randint(1, 2)):
                world.after(rng.uniform(0, 0.5) * fault_ms, self._copy, broker)
        for _ in range(rng.randint(2, 5)):
            world.after(rng.uniform(0.1, 0.9) * fault_ms, self._strike)

    def end(self) -> None:
        """The second processes are gone for good, and an operator sees to what is left."""
        self._is_over = True
        self._led_ms = self._world.now_ms
        for pair in list(self._beside):
            self._remove(pair)
        self._see_to_it()

    def is_settled(self) -> bool:
        return True

    def check(self) -> None:
        """All of it is looked at by the checks of the group."""

    # ---- copies

    def _learn(self) -> None:
        """All controllers are of a version that counts lives from now on."""
        self._cluster.counts_lives = True
        for controller in self._cluster.controllers:
            if controller.is_up:
                controller.raise_level_soon()

    def _copy(self, broker: SimBroker) -> None:
        """Take a copy. A while later the broker starts again: only a later life is told from those that the copy has seen."""
        if self._is_over or not broker.is_up or broker.driver.machine.broker_id is None:
            return
        how = self._rng.choice(("runs", "loses power", "is stopped"))
        if how == "is stopped":
            broker.kill()
        files = copy.deepcopy(broker.disk.files)
        image = FaultyDisk(self._world.random(f"{NAME} of {broker.name} at {self._world.now_ms}"))
        image.files.update(files)
        if how == "loses power":
            image.crash()
        else:
            _make_durable(files)
        broker_id = broker.driver.machine.broker_id
        self._copies[broker].append(Directory(broker.disk, broker_id, files, set(broker.disk._directories)))
        self._world.note(f"the directory of {broker.name}, which {how}, is copied")
        if how != "is stopped":
            self._world.after(self._rng.uniform(20, 700), self._stop, broker)
        else:
            self._start_later(broker, self._rng.uniform(20, 300))

    def _stop(self, broker: SimBroker) -> None:
        if not self._is_over and broker.is_running:
            _end_process(broker, self._rng)
            self._start_later(broker, self._rng.uniform(20, 300))

    def _start_later(self, broker: SimBroker, delay_ms: float) -> None:
        self._cluster.injector.later(broker, delay_ms)

    # ---- their use

    def _strike(self) -> None:
        """One of the copies is used, and others may be gone for a while."""
        if self._is_over:
            return
        usable = [each for each in self._cluster.brokers if self._usable(each)]
        if not usable:
            self._world.after(_LOOK_AGAIN_MS, self._strike)
            return
        rng = self._rng
        broker = rng.choice(usable)
        act = self._run_beside if rng.random() < 0.3 else self._put_back
        self._world.after(rng.uniform(0, 300), act, broker)
        if rng.random() < 0.6:
            for other in self._cluster.brokers:
                if other is not broker:
                    self._world.after(rng.uniform(0, 300), self._stop_for_a_while, other)
        if rng.random() < 0.6:
            self._world.after(rng.uniform(0, 600), self._restart_controllers)

    def _stop_for_a_while(self, broker: SimBroker) -> None:
        if not self._is_over and broker.is_running:
            _end_process(broker, self._rng)
            self._start_later(broker, self._rng.uniform(300, 2500))

    def _restart_controllers(self) -> None:
        """All at once: what they heard of brokers is gone."""
        if self._is_over:
            return
        self._world.note("all controllers are started again")
        for each in self._cluster.controllers:
            if each.is_up:
                each.kill()
                self._cluster.injector.later(each, self._rng.uniform(1, 300))

    def _usable(self, broker: SimBroker) -> list[Directory]:
        """Which copies of the broker's directory somebody is promised to be told from it."""
        cluster, broker_id = self._cluster, self._cluster.id_of(broker)
        group = cluster.truth.group
        if group is None or broker_id is None or not cluster.truth.counts_lives:
            return []
        own = [each for each in self._copies[broker] if each.disk is broker.disk and each.broker_id == broker_id]
        if broker_id in group.sync_state_set:
            counted = group.lives.get(broker_id)
            return [each for each in own if counted is not None and counted not in each.lives]
        return own if cluster.may_be_replaced(broker) else []

    def _take(self, broker: SimBroker) -> Directory | None:
        if self._is_over or not (usable := self._usable(broker)):
            return None
        taken = self._rng.choice(usable)
        self._copies[broker].remove(taken)
        return taken

    def _put_back(self, broker: SimBroker) -> None:
        if self._has_second(broker) or (taken := self._take(broker)) is None:
            return
        self._exchange(broker, taken, "an older copy")
        self._count("put back")
        self._start_later(broker, self._rng.choice((1, self._rng.uniform(20, 800))))

    def _exchange(self, broker: SimBroker, taken: Directory, what: str) -> None:
        """Another directory takes the place of the broker's, which is put aside."""
        disk, broker_id = broker.disk, self._cluster.id_of(broker)
        if broker.is_running:
            _end_process(broker, self._rng)
        disk.no_more_faults()
        aside = Directory(disk, broker_id, dict(disk.files), set(disk._directories))
        self._put_aside(broker, aside)
        disk.files.clear()
        disk.files.update(taken.files)
        disk._directories |= taken.directories
        self._world.note(f"{what} of its directory takes the place of that of {broker.name}")

    def _put_aside(self, broker: SimBroker, directory: Directory) -> None:
        self._aside[broker].append(directory)
        self._cluster.put_aside.setdefault(broker, []).append(directory.files)

    def _count(self, what: str) -> None:
        self._cluster.history.count("older directory", what)
        self._cluster.coverage.fault(f"older directory {what}", self._world.now_ms)

    # ---- second processes

    def _run_beside(self, first: SimBroker) -> None:
        if self._made == _MOST_BESIDE or self._has_second(first) or (taken := self._take(first)) is None:
            return
        second = self._cluster.second_process(first, _FIRST_INDEX + self._made)
        self._made += 1
        second.wall_offset_ms = first.wall_offset_ms
        second.disk.files.update(taken.files)
        second.disk._directories |= taken.directories
        pair = first, second
        self._beside.append(pair)
        self._world.note(f"{second.name} runs on an older copy of the directory of {first.name}")
        self._count("beside")
        second.start()
        self._world.after(self._rng.uniform(500, 3500), self._remove, pair)

    def _has_second(self, broker: SimBroker) -> bool:
        return any(first is broker for first, _ in self._beside)

    def _remove(self, pair: tuple[SimBroker, SimBroker]) -> None:
        """The second process is gone for good. Where it became the member, the first one goes on with its directory."""
        if pair not in self._beside:
            return
        self._beside.remove(pair)
        first, second = pair
        second.is_retired = True
        if second.is_running:
            second.kill("ends for good")
        second.disk.kill()
        left = Directory(first.disk, self._cluster.id_of(first), dict(second.disk.files), set(second.disk._directories))
        if self._is_where_the_member_ran(first, left):
            self._exchange(first, left, f"what {second.name} leaves")
            self._count("taken over")
            self._start_later(first, self._rng.uniform(20, 800))
        else:
            self._put_aside(first, left)

    # ---- an operator

    def _see_to_it(self) -> None:
        """Where nobody leads, members of the set that run on other directories have those back that they had."""
        cluster, now_ms = self._cluster, self._world.now_ms
        if cluster.master() is not None:
            self._led_ms = now_ms
        elif now_ms - self._led_ms >= _HEADLESS_MS:
            self._led_ms = now_ms
            for broker in [cluster.ids[each] for each in cluster.members if each in cluster.ids]:
                self._bring_back(broker)
        self._world.after(_LOOK_MS, self._see_to_it)

    def _bring_back(self, broker: SimBroker) -> None:
        aside = [each for each in self._aside[broker] if self._is_where_the_member_ran(broker, each)]
        if aside:
            self._aside[broker].remove(aside[-1])
            self._exchange(broker, aside[-1], "what was put aside")
            self._count("back again")
            self._start_later(broker, 20)

    def _is_where_the_member_ran(self, broker: SimBroker, directory: Directory) -> bool:
        """Whether a directory has seen the life of the broker that is counted as the member, and the broker's own has not."""
        group, broker_id = self._cluster.truth.group, self._cluster.id_of(broker)
        counted = None if group is None or broker_id is None else group.lives.get(broker_id)
        is_its = directory.disk is broker.disk and directory.broker_id == broker_id
        return is_its and counted in directory.lives and counted not in lives_in(broker.disk.files)


def lives_in(files: dict[str, MemoryFile]) -> frozenset[int]:
    """Which lives of its broker a directory has seen."""
    file = files.get(LIVES_FILE)
    if file is None:
        return frozenset()
    text = unseal(file.seen.read(0, file.seen.size), " ", LIVES_FILE).text
    return frozenset(int(each) for each in text.split() if each.isdigit())


def _make_durable(files: dict[str, MemoryFile]) -> None:
    """As a copy is when it was made, and synced."""
    for file in files.values():
        file.platter = file.seen.copy()
        file.unsynced.clear()


def _end_process(broker: SimBroker, rng: Random) -> None:
    if rng.random() < 0.5:
        broker.kill()
    else:
        broker.crash()
