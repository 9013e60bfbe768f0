"""What goes wrong in a story: drawn beforehand from the seed, each fault with choices of its own.

A story has a mood, which says how likely each fault is. Some faults are aimed: they wait for the next election, roll, checkpoint
or join, and come a moment later, to the node that it happened to if they can. Leaving a fault out changes no other one's choices,
so a failing story can be told again with fewer of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tests.sim.broker import SimBroker
from tests.sim.controller import SimController
from tests.sim.standing import stand
from tests.sim.world import Node

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

_HOUR_MS = 3_600_000
_SYNC_MS = (0.2, 3.0)

PROCESSES = {"kill": 3, "crash": 3, "power at a sync": 2, "freeze": 3, "all controllers": 1, "master and leader": 1.5}
NETWORK = {"split": 2, "one way": 2, "loss": 1, "heal": 3, "reset": 2, "slow link": 1, "doubling": 1, "lost replies": 2}
DISK = {"sync error": 1.5, "write error": 1.5, "full disk": 2, "full at a roll": 1, "slow disk": 1.5}
RARE = {
    "blackout": 0.7,
    "clock jump": 1,
    "clock at a start": 0.7,
    "live settings": 0.7,
    "replacement": 0.7,
    "queues removed": 0.7,
}

TIER_MOOD = "tier"
MOODS: dict[str, dict[str, float]] = {
    "mixed": {**PROCESSES, **NETWORK, **DISK, **RARE},
    "processes": {**PROCESSES, **RARE, "heal": 1, "lost replies": 2, "split": 1},
    "network": {**NETWORK, "freeze": 2, "kill": 2, "clock jump": 1},
    "disk": {**DISK, "crash": 3, "kill": 2, "power at a sync": 3, "blackout": 1},
    "power": {"crash": 4, "blackout": 5, "power at a sync": 2, "master and leader": 2, "slow disk": 6},
    "machines": {"replacement": 4, "queues removed": 3, "kill": 2, "crash": 2, "heal": 1, "split": 1},
    "rot": {"rot": 5, "kill": 2, "crash": 1, "all controllers": 1, "doubling": 1},
    # Any bit of any file, on one broker and one controller: see `decay`.
    "decay": {
        "decay": 9,
        "kill": 3,
        "crash": 2,
        "replacement": 3,
        "power at a sync": 1,
        "all controllers": 1,
        "master and leader": 1,
        "freeze": 1,
    },
    "memory": {"power of one": 9, "freeze": 1, "all controllers": 1, "lost replies": 1, "reset": 1},
    "clocks": {"clock at a start": 4, "clock jump": 2, "kill": 2, "crash": 1, "split": 1, "heal": 1},
    # The object store has faults of its own: see `tiered`.
    TIER_MOOD: {
        **PROCESSES,
        "split": 2,
        "one way": 1,
        "heal": 3,
        "full disk": 1,
        "replacement": 2,
        "queues removed": 1,
    },
    "calm": {},
}
MOOD_SHARES = {
    "mixed": 10,
    "processes": 5,
    "network": 4,
    "disk": 4,
    "power": 2,
    "machines": 2,
    "rot": 1.5,
    "decay": 1.5,
}


# What faults are aimed at, and how many of them, beside those that are aimed at nothing.
_AIMS = {"master": 2, "leader": 1, "join": 1, "leave": 1, "roll": 1, "checkpoint": 1}
_UNAIMED = 9
_SOON_MS = 30


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; the rest of its choices come from a generator of its own."""

    index: int
    at_ms: float
    kind: str
    aim: str = ""  # the change that it waits for, from its time on; "" = it waits for nothing


def choose_mood(rng: Random) -> str:
    """The mood of a story."""
    return rng.choices(list(MOOD_SHARES), list(MOOD_SHARES.values()))[0]


def plan_faults(rng: Random, mood: str, most: int, until_ms: float) -> list[Fault]:
    """The faults of a story, in the order of their time."""
    weights = MOODS[mood]
    if not weights:
        return []
    count = rng.randint(max(1, most // 2), most)
    times = sorted(rng.uniform(50, until_ms) for _ in range(count))
    kinds = rng.choices(list(weights), list(weights.values()), k=count)
    aims = rng.choices(("", *_AIMS), (_UNAIMED, *_AIMS.values()), k=count)
    return [Fault(index, *drawn) for index, drawn in enumerate(zip(times, kinds, aims, strict=True))]


class Injector:
    """Carries faults out, and has what they broke come back."""

    def __init__(self, cluster: SimCluster, mood: str, most_faults: int, until_ms: float) -> None:
        self.counters: Counter[str] = Counter()
        self.plan = plan_faults(cluster.world.random("faults"), mood, most_faults, until_ms)
        self.mood = mood
        self._cluster = cluster
        self._world = cluster.world
        self._network = cluster.network
        self._is_healed = False
        self._clock_errors_ms: dict[SimBroker | SimController, int] = {}  # by which clocks jumped
        self._aimed: list[Fault] = []  # that wait for what they are aimed at
        self._target: SimBroker | SimController | None = None  # of the aimed fault that is being carried out
        self._kinds: dict[str, Callable[[Random], str | None]] = {
            "kill": self._kill,
            "crash": self._crash,
            "power at a sync": self._power,
            "freeze": self._freeze,
            "all controllers": self._all_controllers,
            "master and leader": self._master_and_leader,
            "blackout": self._blackout,
            "split": self._split,
            "one way": self._one_way,
            "loss": self._loss,
            "heal": self._heal_network,
            "reset": self._reset,
            "slow link": self._slow_link,
            "doubling": self._doubling,
            "lost replies": self._lost_replies,
            "sync error": self._sync_error,
            "write error": self._write_error,
            "full disk": self._full_disk,
            "full at a roll": self._full_at_a_roll,
            "slow disk": self._slow_disk,
            "clock jump": self._clock_jump,
            "clock at a start": self._clock_at_a_start,
            "live settings": self._live_settings,
            "replacement": self._replacement,
            "queues removed": self._queues_removed,
            "rot": self._rot,
            "power of one": self._power_of_one,
            "decay": self._decay,
        }

    def start(self, leave_out: frozenset[int]) -> None:
        """Let the plan come true from now on, without the faults of these numbers."""
        if self.mood == "memory":
            self._cluster.victim.sync_ms = (300, 1500)  # so that a loss of power takes something
        for fault in self.plan:
            if fault.index not in leave_out:
                self._world.after(fault.at_ms, lambda fault=fault: self._begin(fault))

    def happened(self, change: str, node: SimBroker | SimController | None) -> None:
        """Something changed at a node; faults that were aimed at that come a moment later."""
        for fault in [fault for fault in self._aimed if fault.aim == change]:
            self._aimed.remove(fault)
            soon_ms = self._world.random(f"moment of fault {fault.index}").uniform(0, _SOON_MS)
            self._world.after(soon_ms, lambda fault=fault: self._inject(fault, node))

    @property
    def clocks_were_set(self) -> bool:
        """Whether anybody did something to the clock of a machine."""
        return bool(self.counters["clock jump"] or self.counters["clock at a start"])

    def set_clocks_right(self) -> None:
        """Clocks that jumped show the time again."""
        for node, by_ms in self._clock_errors_ms.items():
            node.wall_offset_ms -= by_ms
        self._clock_errors_ms.clear()

    def heal(self) -> None:
        """No fault comes any more, and everything that was broken works again."""
        self._is_healed = True
        self._aimed.clear()
        self._world.note("everything is healed")
        self._network.heal()
        for node in self._cluster.nodes:
            node.sync_ms = _SYNC_MS
            node.disk.no_more_faults()
            node.disk.capacity_bytes = 1 << 40
            if isinstance(node, SimBroker):
                node.disk.go_on()
                node.reconfigure(node.first_settings)
            if node.is_running and node.is_paused:
                node.resume()
        self._cluster.restart_all()

    def later(self, node: SimBroker | SimController, delay_ms: float) -> None:
        """Somebody starts the node again."""
        self._world.after(delay_ms, lambda: self._cluster.restart(node))

    # ---- carrying out; each says what it did, or None when it could not

    def _begin(self, fault: Fault) -> None:
        if fault.aim:
            self._aimed.append(fault)
        else:
            self._inject(fault, None)

    def _inject(self, fault: Fault, target: SimBroker | SimController | None) -> None:
        if self._is_healed:
            return
        rng = self._world.random(f"fault {fault.index}")
        self._target = target
        did = self._kinds[fault.kind](rng)
        if did is not None:
            self.counters[fault.kind] += 1
            self._cluster.coverage.fault(fault.kind, self._world.now_ms)
            self._world.note(f"fault {fault.index}: {fault.kind} {did}")

    def _node(self, rng: Random) -> SimBroker | SimController | None:
        """Whom it hits: who it was aimed at, or the master and the leader more often than others; None when that one is down
        already."""
        cluster = self._cluster
        if self._target is not None and self.mood != "rot":
            return self._target if self._target.is_running else None
        if self.mood == "rot":
            # A damaged replica may go; a damaged master whose set is itself alone could not be replaced by anybody.
            node: SimBroker | SimController | None = None if cluster.victim is cluster.master() else cluster.victim
        else:
            choice = rng.random()
            node = (
                cluster.master() if choice < 0.35 else cluster.leader() if choice < 0.5 else rng.choice(cluster.nodes)
            )
        return node if node is not None and node.is_running else None

    def _kill(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        node.kill()
        self.later(node, rng.choice((1, rng.uniform(20, 1500))))
        return node.name

    def _crash(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        node.crash()
        self.later(node, rng.uniform(20, 1500))
        return node.name

    def _power_of_one(self, rng: Random) -> str | None:
        """The same broker loses power again and again, each time when the others have all that it has; often it comes back to
        find the others frozen. (They do not die: who acknowledges from memory cannot tell its own death from a loss of power.)"""
        node = self._cluster.victim
        if not node.is_up or not self._cluster.all_in_set():
            return None
        node.crash()
        self.later(node, rng.uniform(20, 200))
        if rng.random() < 0.7:
            self._freeze_others(node, rng.uniform(1000, 3000))
        return node.name

    def _freeze_others(self, node: SimBroker, length_ms: float) -> None:
        for other in self._cluster.brokers:
            if other is not node and other.is_up and not other.is_paused and not self._is_healed:
                other.pause()
                self._resume_after(other, length_ms)

    def _power(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        node.disk.lose_power_at(rng.randrange(1, 8))
        return node.name

    def _freeze(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None or node.is_paused:
            return None
        node.pause()
        length_ms = rng.choice((rng.uniform(50, 600), rng.uniform(600, 3000)))
        self._resume_after(node, length_ms)
        return f"{node.name} for {length_ms:.0f} ms"

    def _resume_after(self, node: Node, length_ms: float) -> None:
        life = node.life
        self._world.after(length_ms, lambda: self._resume(node, life))

    def _resume(self, node: Node, life: int) -> None:
        if node.is_running and node.is_paused and node.life == life:
            self._world.note(f"{node.name} goes on")
            node.resume()

    def _all_controllers(self, rng: Random) -> str:
        for each in self._cluster.controllers:
            if each.is_up:
                each.kill()
                self.later(each, rng.uniform(20, 1500))
        return ""

    def _master_and_leader(self, rng: Random) -> str | None:
        nodes = [node for node in (self._cluster.master(), self._cluster.leader()) if node is not None]
        for node in nodes:
            if rng.random() < 0.5:
                node.kill()
            else:
                node.crash()
            self.later(node, rng.choice((rng.uniform(1, 50), rng.uniform(20, 1500))))
        return " ".join(node.name for node in nodes) or None

    def _blackout(self, rng: Random) -> str:
        for node in self._cluster.nodes:
            if node.is_running:
                node.crash()
            self.later(node, rng.uniform(20, 800))
        return ""

    def _split(self, rng: Random) -> str:
        nodes: list[Node] = [*self._cluster.nodes, *self._cluster.clients]
        if self._cluster.tiered is not None:
            nodes.append(self._cluster.tiered.node)
        side = {node.name for node in nodes if rng.random() < 0.5}
        for a in nodes:
            for b in nodes:
                if (a.name in side) != (b.name in side):
                    self._network.cut(a.name, b.name)
        return " ".join(sorted(side)) + " | the others"

    def _pair(self, rng: Random) -> tuple[Node, Node]:
        a, b = rng.sample(self._cluster.nodes, 2)
        return a, b

    def _one_way(self, rng: Random) -> str:
        a, b = self._pair(rng)
        self._network.cut(a.name, b.name)
        return f"{a.name} to {b.name}"

    def _loss(self, rng: Random) -> str:
        self._network.loss = rng.choice((0.05, 0.3, 0.8))
        return f"{self._network.loss}"

    def _heal_network(self, rng: Random) -> str:
        self._network.heal()
        return ""

    def _reset(self, rng: Random) -> str | None:
        brokers = [each for each in self._cluster.brokers if each.is_up]
        if len(brokers) < 2:
            return None
        a, b = rng.sample(brokers, 2)
        return f"{a.name} {b.name}" if a.reset_links(b) + b.reset_links(a) else None

    def _slow_link(self, rng: Random) -> str:
        a, b = self._pair(rng)
        delay_ms = rng.uniform(50, 1000)
        self._network.slow(a.name, b.name, delay_ms)
        return f"{a.name} to {b.name} by {delay_ms:.0f} ms"

    def _doubling(self, rng: Random) -> str:
        self._network.doubling = 0.3
        return ""

    def _lost_replies(self, rng: Random) -> str:
        self._network.reply_loss = rng.choice((0.2, 0.5, 1.0))
        self._world.after(rng.uniform(50, 800), self._replies_again)
        return f"{self._network.reply_loss}"

    def _replies_again(self) -> None:
        self._network.reply_loss = 0.0

    def _sync_error(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        node.disk.fail_sync_at(rng.randrange(1, 6))
        return node.name

    def _write_error(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        node.disk.fail_write_at(rng.randrange(1, 12))
        return node.name

    def _full_disk(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        self._fill(node, rng.choice((0, rng.randrange(3000))), rng)
        return node.name

    def _full_at_a_roll(self, rng: Random) -> str | None:
        """There is room for the present file of the log, and about none for the next one."""
        nodes = [node for node in self._cluster.brokers if node.is_up]
        if not nodes:
            return None
        node = rng.choice(nodes)
        left = node.core.store.commitlog.segment_remaining()
        self._fill(node, max(0, left + rng.randrange(-300, 600)), rng)
        return f"{node.name}, {left} bytes before the end of its file"

    def _fill(self, node: SimBroker | SimController, room_bytes: int, rng: Random) -> None:
        """The disk takes so much more, until somebody makes room."""
        disk = node.disk
        disk.capacity_bytes = disk.used_bytes + room_bytes

        def room() -> None:
            disk.capacity_bytes = 1 << 40
            self._world.note(f"{node.name} has room on its disk again")

        self._world.after(rng.uniform(50, 1500), room)

    def _slow_disk(self, rng: Random) -> str | None:
        node = self._node(rng)
        if node is None:
            return None
        most_ms = rng.choice((100, 1500, 0))
        if not most_ms and isinstance(node, SimBroker):
            length_ms = rng.uniform(500, 5000)
            stand(node, length_ms)
            return f"{node.name} stands still for {length_ms:.0f} ms"
        node.sync_ms = (20, most_ms or 1500)
        self._world.after(rng.uniform(200, 2500), lambda: setattr(node, "sync_ms", _SYNC_MS))
        return f"{node.name} up to {node.sync_ms[1]} ms"

    def _clock_jump(self, rng: Random) -> str | None:
        node = rng.choice(self._cluster.nodes)
        by_ms = rng.choice((-_HOUR_MS, _HOUR_MS))
        node.wall_offset_ms += by_ms
        self._clock_errors_ms[node] = self._clock_errors_ms.get(node, 0) + by_ms
        return f"{node.name} by {by_ms // _HOUR_MS} h"

    def _clock_at_a_start(self, rng: Random) -> str | None:
        """A machine starts with a clock that is days off; a while later it is set right."""
        node = rng.choice(self._cluster.brokers)
        by_ms = rng.choice((-1, 1)) * rng.randint(1, 10) * 24 * _HOUR_MS
        if node.is_running:
            node.crash()
        node.wall_offset_ms += by_ms
        self.later(node, rng.uniform(20, 300))

        def set_right() -> None:
            node.wall_offset_ms -= by_ms
            self._world.note(f"the clock of {node.name} is set right")

        self._world.after(rng.uniform(300, 1500), set_right)
        return f"{node.name} by {by_ms // (24 * _HOUR_MS)} days"

    def _live_settings(self, rng: Random) -> str | None:
        """An administrator changes what may be changed while brokers run, on all of them at once; when all is healed, he takes it
        back."""
        least, timeout_ms, patience_ms = rng.choice((1, 2)), rng.choice((300, 3000)), rng.choice((500, 3000))
        for node in self._cluster.brokers:
            node.reconfigure(
                replace(
                    node.settings,
                    min_in_sync_replicas=least,
                    ack_timeout_ms=timeout_ms,
                    not_caught_up_ms=patience_ms,
                    election_priority=rng.randrange(3),
                )
            )
        return f"at least {least} copies, {timeout_ms} ms for an acknowledgement, {patience_ms} ms to catch up"

    def _replacement(self, rng: Random) -> str | None:
        broker = rng.choice(self._cluster.brokers)
        if not self._cluster.may_be_replaced(broker) or not self._cluster.decay.may_lose(broker):
            return None
        if broker.is_running:
            broker.crash()
        self._cluster.replace(broker)
        self.later(broker, rng.uniform(50, 800))
        return broker.name

    def _queues_removed(self, rng: Random) -> str | None:
        broker = rng.choice(self._cluster.brokers)
        if broker.is_running:
            broker.kill()
            self.later(broker, rng.uniform(20, 800))
        broker.lose_queues()
        return broker.name

    def _decay(self, rng: Random) -> str | None:
        """Often what was written last, with a loss of power behind it, and the others are away when the damaged one is back."""
        cluster, node = self._cluster, self._cluster.victim
        if rng.random() > 0.35 or not node.is_up or not cluster.all_in_set():
            return cluster.decay.strike(rng)
        did = cluster.decay.strike_the_end(rng)
        if did is None:
            return None
        node.crash()
        self.later(node, rng.uniform(20, 100))
        for other in cluster.brokers:
            if other is not node and other.is_running:
                other.kill()
                self.later(other, rng.uniform(1000, 2000))
        return f"{did}, and the power is gone; the others are away for a while"

    def _rot(self, rng: Random) -> str | None:
        """A bit of what was durable long ago flips, on one broker only: the others must have everything."""
        broker = self._cluster.victim
        if not self._cluster.all_in_set():
            return None
        found = [
            (path, file.platter)
            for path, file in sorted(broker.disk.files.items())
            if path.startswith("commitlog/") and len(file.platter.held) > 8
        ]
        if not found:
            return None
        path, platter = rng.choice(found)
        position = rng.randrange(len(platter.held))
        if not platter.held[position]:
            return None  # the blank rest of a file: nobody would ever look at it
        broker.disk.flip_bit(path, position, rng.randrange(8))
        if broker not in self._cluster.rotten:
            self._cluster.rotten.append(broker)
        return f"{broker.name} {path} at {position}"
