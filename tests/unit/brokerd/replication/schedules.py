"""Random stories of a broker group: one seed is one schedule of events, checked after each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from brokerd.replication.roles.followership import CopyStage
from brokerd.replication.settings import ReplicationSettings
from tests.support.disks import PowerLost
from tests.unit.brokerd.replication.group import Group, Node, pick
from tests.unit.brokerd.replication.invariants import check_acks_are_from_one_broker_per_epoch, check_safety

WEIGHTS = {
    "append": 14,
    "flush": 12,
    "deliver": 30,
    "deliver_part": 6,
    "dial": 8,
    "notice_close": 6,
    "cut": 1,
    "process": 10,
    "answer": 10,
    "lose_answer": 1.5,
    "abandon": 1.5,
    "tick": 10,
    "elect": 2,
    "lose_master": 0.3,
    "push": 6,
    "crash": 1.2,
    "arm": 1,
    "start": 4,
}


class Story:
    """One schedule."""

    def __init__(
        self,
        seed: int,
        *,
        size: int = 3,
        settings: ReplicationSettings | None = None,
        steps: int = 90,
        learners: frozenset[int] = frozenset(),
    ) -> None:
        self.rng = Random(seed)
        self.group = Group(size, settings or ReplicationSettings(), learners)
        self.steps = steps
        self.rotten: int | None = None  # whose log really lost something last
        self.did: Counter[str] = Counter()

    def run(self, weights: dict[str, float] | None = None, check: Callable[[Group], None] = check_safety) -> None:
        weights = {**WEIGHTS, **(weights or {})}
        names, shares = list(weights), list(weights.values())
        if self.rng.random() < 0.8:
            self.group.elect(pick(self.rng, self.group.controller.candidates()))
        for name in self.rng.choices(names, shares, k=self.steps):
            try:
                happened = getattr(self, name)()
            except PowerLost:
                happened = True
                self._lose_power()
            if happened:
                self.did[name] += 1
                check(self.group)

    def finish(self) -> None:
        """Faults stop: the group must heal, agree, and have everything that it promised."""
        group = self.group
        members = group.size - len(group.learners)
        for node in group.nodes.values():
            node.fuse.steps_left = 0
            if not node.alive:
                node.start()
        for round_number in range(60):
            for broker_id in sorted(group.controller.suspects):
                group.controller.judge(broker_id)
            candidates = group.controller.candidates()
            if candidates and (group.controller.master_id is None or round_number == 30):
                group.controller.elect(self.rng.choice(candidates))
            group.push_all()
            group.settle(4, tick_ms=250)
            if len(group.controller.members) == members and self._all_copy():
                break
        check_safety(group)
        check_acks_are_from_one_broker_per_epoch(group)
        assert len(group.controller.members) == members, "the group did not heal"
        master = group.nodes[group.controller.master_id]
        before = len(group.acknowledged)
        group.append(master)
        group.settle(3)
        assert len(group.acknowledged) == before + 1, "the healed group does not acknowledge"
        for node in group.nodes.values():
            assert node.log.data == master.log.data, f"b{node.broker_id} differs from b{master.broker_id}"
            assert not node.failures
        promised = [(acked.position, acked.payload) for acked in group.acknowledged]
        for position, payload in promised:
            assert master.log.content(position + 1, position + 1 + len(payload)) == payload
        assert group.waiting == 0
        records = master.log.records()
        assert len(set(records)) == len(records), "a message is in the log twice"

    def _all_copy(self) -> bool:
        """Whether every replica is being sent the log: who stays in the set at an election has yet to hear of the master."""
        roles = [node.machine for node in self.group.nodes.values() if not node.is_master]
        return all(each.followership is not None and each.followership.stage is CopyStage.TRANSFER for each in roles)

    # Events; each says whether it took place

    def append(self) -> bool:
        masters = [node for node in self.group.nodes.values() if node.is_master]
        if masters:
            self.group.append(pick(self.rng, masters))
        return bool(masters)

    def flush(self) -> bool:
        nodes = [node for node in self._alive() if node.log.flush_requested]
        if nodes:
            self.group.flush(pick(self.rng, nodes))
        return bool(nodes)

    def deliver(self, part: bool = False) -> bool:
        ways = []
        for wire in self.group.wires.values():
            if wire.to_master:
                ways.append((self.group.deliver_to_master, wire))
            if wire.to_replica:
                ways.append((self.group.deliver_to_replica, wire))
        if ways:
            deliver, wire = pick(self.rng, ways)
            deliver(wire, self.rng.randrange(1, 60) if part else None)
        return bool(ways)

    def deliver_part(self) -> bool:
        return self.deliver(part=True)

    def dial(self) -> bool:
        nodes = [node for node in self._alive() if node.dials]
        if nodes:
            self.group.dial(pick(self.rng, nodes))
        return bool(nodes)

    def notice_close(self) -> bool:
        wires = [wire for wire in self.group.wires.values() if not wire.open_at_master or not wire.open_at_replica]
        if wires:
            self.group.notice_close(pick(self.rng, wires))
        return bool(wires)

    def cut(self) -> bool:
        wires = list(self.group.wires.values())
        if wires:
            self.group.cut(pick(self.rng, wires))
        return bool(wires)

    def process(self) -> bool:
        if self.group.requests:
            self.group.process(pick(self.rng, self.group.requests))
            return True
        return False

    def answer(self) -> bool:
        if self.group.answers:
            self.group.deliver(pick(self.rng, self.group.answers))
            return True
        return False

    def lose_answer(self) -> bool:
        if self.group.answers:
            self.group.lose_answer(pick(self.rng, self.group.answers))
            return True
        return False

    def abandon(self) -> bool:
        requests = [request for request in self.group.requests if not request.abandoned]
        if requests:
            self.group.abandon(pick(self.rng, requests))
        return bool(requests)

    def tick(self) -> bool:
        self.group.tick(self.rng.choice((10, 50, 50, 120, 300, 700)))
        return True

    def elect(self) -> bool:
        candidates = self.group.controller.candidates()
        if candidates:
            self.group.controller.elect(pick(self.rng, candidates))
        return bool(candidates)

    def lose_master(self) -> bool:
        self.group.controller.lose_master()
        return True

    def push(self) -> bool:
        nodes = self._alive()
        if nodes:
            self.group.push(pick(self.rng, nodes))
        return bool(nodes)

    def crash(self) -> bool:
        nodes = self._alive()
        if nodes:
            node = pick(self.rng, nodes)
            kept = self.rng.randint(node.log.flushed_offset, node.log.end_offset)
            if not self.group.settings.ack_after_flush:
                kept = node.log.end_offset  # what acknowledges from memory promises nothing about power losses
            self.group.crash(node, kept)
        return bool(nodes)

    def rot(self) -> bool:
        """One node, which is not all of the set, loses power and a part of what it had on its disk; its start sees that."""
        controller = self.group.controller
        nodes = [node for node in self._alive() if controller.members != {node.broker_id}]
        if not nodes or (self.rotten is not None and self.rotten in controller.suspects):
            return False
        node = pick(self.rng, nodes)
        self.rotten = node.broker_id
        self._suspect(node)
        self.group.crash(node)
        node.log.rot(self.rng.randint(node.log.min_offset, node.log.end_offset))
        return True

    def suspect(self) -> bool:
        """A node loses power and nothing that was durable, but its start cannot tell."""
        nodes = self._alive()
        if nodes:
            node = pick(self.rng, nodes)
            self._suspect(node)
            self.group.crash(node)
        return bool(nodes)

    def _suspect(self, node: Node) -> None:
        if node.broker_id not in self.group.learners:
            self.group.controller.suspects.add(node.broker_id)

    def arm(self) -> bool:
        """Let a node lose power inside one of its next durable steps."""
        nodes = self._alive()
        if nodes:
            pick(self.rng, nodes).fuse.arm(self.rng.randrange(1, 4), self.rng.random() < 0.5)
        return bool(nodes)

    def _lose_power(self) -> None:
        for node in self.group.nodes.values():
            if node.alive and node.fuse.blown:
                self.did["power_lost"] += 1
                self.group.crash(node)

    def start(self) -> bool:
        nodes = [node for node in self.group.nodes.values() if not node.alive]
        if nodes:
            pick(self.rng, nodes).start()
        return bool(nodes)

    def _alive(self):
        return [node for node in self.group.nodes.values() if node.alive]
