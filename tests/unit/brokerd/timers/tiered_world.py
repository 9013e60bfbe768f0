"""The world of timers with an object store that fails in all ways, in which those wait that are due long after their files go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from brokerd.tiers.stowage import Stowage
from remoting.tier.names import parse_stowed_name
from tests.support.memory_log import MemoryRecordLog
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.unit.brokerd.timers.world import Node, World, Wrong


class Owner:
    """A master whose tier is open. What it has no need of goes at once."""

    def __init__(self, epoch: int, stored: Stored) -> None:
        self.epoch = epoch
        self._stored = stored
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def retired(self, names: Sequence[str]) -> None:
        self._stored.remove(names)


class TieredWorld(World):
    def __init__(self, seed: int) -> None:
        self.stored = Stored()
        self.epoch = self.swept = self.faults = self.stowed = self.returned = 0
        self.lives: list[FaultyObjects] = []
        self.stowage: Stowage | None = None
        super().__init__(seed)

    def make_node(self, log: MemoryRecordLog) -> Node:
        self.settings = replace(self.settings, tier_ahead_s=self.rng.choice((2, 10, 40)), tier_back_s=1)
        steps = Steps(self.turns)
        objects = FaultyObjects(self.stored, steps, self.turns, self.rng)
        self.lives.append(objects)
        if self.stowage is not None:
            self.stowage.close()
        stowage = self.stowage = Stowage(objects, steps.loop(), lambda: node.service.table.named_objects)
        node = Node(log, self.turns, self.rng, self.settings, self.others_ms, tier=stowage)
        return node

    def lead(self) -> None:
        self.note()
        self.is_confirmed = False
        super().lead()
        self.epoch += 1
        if self.rng.random() < 0.8:
            self.open()

    def note(self) -> None:
        """Counters are of one life."""
        if hasattr(self, "node"):
            counters = self.node.service.counters
            self.stowed, self.returned = self.stowed + counters.stowed, self.returned + counters.returned

    # ---- steps

    def more_steps(self) -> dict[Callable[[], None], int]:
        return {self.trouble: 4, self.heal: 3, self.open: 2, self.close: 1, self.sweep: 2, self.fill_up: 8}

    def acknowledge(self) -> None:
        """Only what all have that may become the master."""
        self.node.log.dispatch()
        self.is_confirmed = True
        super().acknowledge()

    def open(self) -> None:
        assert self.stowage is not None
        if not self.stowage.is_open:
            self.epoch += 1
            self.stowage.open(Owner(self.epoch, self.stored))

    def close(self) -> None:
        assert self.stowage is not None
        self.stowage.close()

    def trouble(self) -> None:
        objects = self.lives[-1]
        objects.fails_before, objects.fails_after = self.rng.choice((0, 0.3)), self.rng.choice((0, 0.5))
        objects.is_down, objects.is_refusing = self.rng.random() < 0.1, self.rng.random() < 0.1
        objects.slow_s = self.rng.choice((0.001, 0.1, 2.0))

    def heal(self) -> None:
        for objects in self.lives:
            objects.fails_before = objects.fails_after = 0.0
            objects.is_down = objects.is_refusing = False
            objects.slow_s = 0.001

    def fill_up(self) -> None:
        """And time passes, so that some of it may be stowed, and come back."""
        super().fill_up()
        for _ in range(self.rng.choice((1, 4))):
            self.acknowledge()
            self.turns.run(self.rng.choice((500, 2100)))
        if self.rng.random() < 0.6:
            table, end = self.node.service.table, self.node.log.end_offset
            self.heal()
            for _ in range(self.rng.choice((10, 100))):  # until something of the tier was appended
                self.turns.run(100)
                if table.last is not None and table.last.stowed is not None and table.last_end > end:
                    break
            if self.rng.random() < 0.5:
                self.sweep()
            self.switch()

    def choose_cut(self, ends: list[int]) -> int:
        """Often in what was appended last for the tier."""
        last, end = self.node.service.table.last, self.node.service.table.last_end
        torn = [each for each in ends if last is not None and last.stowed is not None and end <= each]
        return self.rng.choice(torn[: len(last.offsets)] or ends) if last is not None else self.rng.choice(ends)

    def sweep(self) -> None:
        """All objects are old, and those go that nobody names, by what a master knows whose log has been acknowledged once."""
        if not self.is_confirmed:
            return
        assert self.stowage is not None
        keys = {name: parse_stowed_name(name) for name in self.stored.objects}
        old = [name for name, key in keys.items() if key is None or not self.stowage.is_named(key)]
        self.swept += len(old)
        self.stored.remove(old)

    # ---- in the end

    def drain(self) -> None:
        self.heal()
        self.open()
        self.go_on(7, 500)  # until failures are forgotten
        self.acknowledge()
        super().drain()
        self.note()
        self.faults = sum(objects.faults for objects in self.lives)
        table = self.node.service.table
        if table.objects or table.days:
            raise Wrong(f"nothing is in the tier, but {table.objects}, {table.days}")
        self.sweep()
        if len(self.stored.objects) > 1:  # the last one may be announced, as far as anybody knows
            raise Wrong(f"nobody needs {sorted(self.stored.objects)}")
