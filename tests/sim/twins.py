"""A data directory is copied in the middle of a story, and a second process runs on the copy for a while.

The copy is of any broker at any moment: of its files as a process reads them, or the image of a machine that lost its power. The
second process has an address of its own, clients find it, and faults hit it as they hit the others. Verdict:

- one process of the two has the id: they never both lead one epoch, and never both acknowledge in one (see `Promises.answered`);
- while the first one is there all the time, the other has no role, and says that two processes have the identity;
- nothing is lost, and when the second one is gone for good the first one has its role again.

That the first one may be gone, or heard by nobody, while the second one lives is no part of this: that a copy is older than what
was acknowledged is known by what controllers heard of the first one alone (W27). So the second one loses its power then.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from brokerd.replication.roles.effects import Role
from tests.sim.broker import SimBroker

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_FIRST_INDEX = 10  # of the names and hosts of second processes
_MOST = 2
_HEARD_MS = 1500  # so long a second process lives, and nothing goes wrong, before it must know that it is one


class Twins:
    """The copies of one story."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._rng = cluster.world.random("twins")
        self._pairs: list[tuple[SimBroker, SimBroker]] = []  # (the first process, the second one), which both live
        self._is_over = False

    def begin(self) -> None:
        for _ in range(self._rng.randint(1, _MOST)):
            self._world.after(self._rng.uniform(100, 0.6 * self._cluster.story.fault_ms), self._copy)

    def end(self) -> None:
        """The second processes are gone for good."""
        for pair in list(self._pairs):
            self._remove(pair)
        self._is_over = True

    def is_settled(self) -> bool:
        return True

    def check(self) -> None:
        """All of it was looked at when it happened, and by the checks of the group."""

    # ---- inside

    def _copy(self) -> None:
        cluster = self._cluster
        copied = {first for first, _ in self._pairs}
        brokers = [each for each in cluster.brokers if each not in copied and self._is_heard(each)]
        brokers = [each for each in brokers if each.driver.machine.broker_id is not None]
        if not brokers or self._is_over:
            return
        first = self._rng.choice(brokers)
        second = self._make(first)
        self._pairs.append((first, second))
        self._world.note(f"the directory of {first.name} is copied, and {second.name} runs on the copy")
        cluster.history.count("copied directory", "ok")
        cluster.coverage.fault("copied directory", self._world.now_ms)
        pair = first, second
        second.start()
        self._watch(pair, first.life, second.life, self._world.now_ms)
        self._world.after(self._rng.uniform(500, 3500), lambda: self._remove(pair))

    def _make(self, first: SimBroker) -> SimBroker:
        second = self._cluster.second_process(first, _FIRST_INDEX + len(self._cluster.offered))
        second.wall_offset_ms = first.wall_offset_ms
        disk = second.disk
        disk.files.update(copy.deepcopy(first.disk.files))
        disk._directories |= first.disk._directories
        if self._rng.random() < 0.5:
            disk.crash()  # the image of a machine that was running
        else:
            for file in disk.files.values():
                file.platter = file.seen.copy()
                file.unsynced.clear()
        return second

    def _watch(self, pair: tuple[SimBroker, SimBroker], first_life: int, second_life: int, began_ms: float) -> None:
        """Every now and then while both live their present lives, and when one does not."""
        first, second = pair
        if pair not in self._pairs:
            return
        if first.life != first_life or not self._is_heard(first):
            self._remove(pair)
            return
        both = [each for each in pair if each.is_up and each.driver.machine.role is Role.MASTER]
        epochs = [each.driver.machine.master_epoch for each in both]
        self._world.require(
            len(set(epochs)) == len(epochs), f"{first.name} and {second.name} both lead epoch {epochs[:1]}"
        )
        self._world.after(10, lambda: self._watch(pair, first_life, second_life, began_ms))

    def _is_heard(self, first: SimBroker) -> bool:
        """Whether controllers hear the first process as they should."""
        network, controllers = self._cluster.network, self._cluster.controllers
        return (
            first.is_up and not first.is_paused and all(network.is_well(first.name, each.name) for each in controllers)
        )

    def _remove(self, pair: tuple[SimBroker, SimBroker]) -> None:
        if pair not in self._pairs:
            return
        self._pairs.remove(pair)
        _, second = pair
        second.is_retired = True
        self._world.note(f"{second.name}, which runs on a copy, is gone for good")
        if second.is_up:
            self._judge(second)
            second.kill("ends for good")

    def _judge(self, second: SimBroker) -> None:
        """It had no role, and says why, if nothing else went wrong."""
        session = second.session
        is_told = "two processes have the identity" in session.last_error
        role = second.driver.machine.role
        self._cluster.history.count("second process", "refused" if is_told else f"{role.name.lower()}, not told")
        if self._cluster.injector.mood == "calm" and self._world.now_ms - second.began_ms >= _HEARD_MS:
            self._world.require(
                role is Role.FENCED and is_told,
                f"{second.name} is {role.value} with an id that another process has, and says {session.last_error!r}",
            )
