"""A Raft group under random loss, reordering, duplication, partitions and crashes at every step of a write, from one seed; if
wished, also under changes of its membership and leadership transfers all the time.

Checked after each step: election safety, log matching, leader completeness, state machine safety, and that a confirmed read sees
everything that was decided before it was asked. The log files are real, on disks that lose what was not synced.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from controllerd.raft import proposals
from controllerd.raft.codec import decode_configuration, decode_message, encode_message
from controllerd.raft.core import RaftCore
from controllerd.raft.leading import CoreSettings
from controllerd.raft.log import RaftLog
from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange, Transition
from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, Ready, Role
from controllerd.raft.proposals import ProposalRefused, TransferRefused
from controllerd.raft.quorum import Configuration
from remoting.errors import NotLeader
from tests.support.disks import FaultyDisk, PowerLost

SETTINGS = CoreSettings(election_ticks=5, max_inflight_messages=4, max_append_bytes=200, max_apply_bytes=300)


@dataclass(slots=True)
class Counts:
    """What happened, so that a test can say it was not about nothing."""

    elections: int = 0
    decided: int = 0
    crashes: int = 0
    lost: int = 0
    repeated: int = 0
    snapshots: int = 0
    compactions: int = 0
    reads: int = 0
    torn: int = 0
    changes: int = 0
    joint: int = 0
    removed_leaders: int = 0
    transfers: int = 0
    won_transfers: int = 0
    forgotten: int = 0


@dataclass(slots=True)
class ChaosNode:
    """One node; `outstanding` is a Ready whose write is under way."""

    name: str
    core: RaftCore
    file: RaftLogFile
    disk: FaultyDisk
    applied: list[Entry] = field(default_factory=list)
    outstanding: Ready | None = None
    reads: dict[int, int] = field(default_factory=dict)
    was_leader_in: int = 0


class Chaos:
    """The group, the network between its nodes, and everything that was ever decided."""

    def __init__(self, seed: int, size: int) -> None:
        self.rng = random.Random(seed)
        self.counts = Counts()
        self.founders = tuple(f"n{number}" for number in range(size))
        self.network: list[Message] = []
        self.cut: set[str] = set()
        self.cut_soon: set[str] = set()
        self.frozen = ""
        self.decided: list[Entry] = []
        self.decided_in_term: list[int] = []
        self.leaders: dict[int, str] = {}
        self.proposed = 0
        self.healthy = False
        self.nodes: dict[str, ChaosNode] = {}
        for name in self.founders:
            self._add_node(name)

    def run_changing(self, rounds: int) -> None:
        """Rounds in which every leader there is changes the membership, between parts of the group that are cut off from one
        another again and again: members must not decide by what they remember of it. Then health as above."""
        for _ in range(rounds):
            self._round()
            self._check()
        self.heal()

    def _round(self) -> None:
        names = [node.name for node in self._members()]
        chance = self.rng.random()
        if chance < 0.06:
            self.cut = set(self.rng.sample(names, self.rng.randrange(len(names))))
        elif chance < 0.1:
            self.cut = set()
        elif chance < 0.12:
            self._crash(self.nodes[self.rng.choice(names)])
        elif chance < 0.14:
            self._compact(self.nodes[self.rng.choice(names)])
        elif chance < 0.16:
            self._transfer()
        elif chance < 0.18:
            self._forget()
        for leader in [node for node in self.nodes.values() if node.core.is_serving]:
            if self.rng.random() < 0.15:
                self._change(leader)
        if self.rng.random() < 0.3:
            self._propose()
        if self.cut_soon and self.rng.random() < 0.5:
            self.cut, self.cut_soon = self.cut_soon, set()
        for node in list(self.nodes.values()):
            for _ in range(self.rng.choice((0, 1, 1, 2))):
                node.core.tick()
        for _ in range(self.rng.randrange(1, 5)):
            for node in list(self.nodes.values()):
                if self.rng.random() < 0.8:
                    self._work(node)
            for _ in range(len(self.network)):
                self._deliver()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.nodes)

    def _add_node(self, name: str) -> None:
        self.nodes[name] = self._boot(name, FaultyDisk(random.Random(self.rng.random())))

    def run(self, steps: int) -> None:
        """Faults for a number of steps, then health until all nodes agree."""
        for _ in range(steps):
            self._step()
            self._check()
        self.heal()

    def heal(self) -> None:
        """Without faults the group must elect a leader, decide something new, and agree on everything."""
        self.healthy = True
        for node in self.nodes.values():
            node.disk.lose_power_at(1 << 60)
        self.cut = set()
        self.frozen = ""
        self.network = []
        goal: int | None = None
        for tick in range(400):
            for node in self.nodes.values():
                node.core.tick()
                while node.outstanding is not None or node.core.has_ready():
                    self._finish(node) if node.outstanding is not None else self._take(node)
            batch, self.network = self.network, []
            for message in batch:
                self.nodes[message.to].core.step(message)
            self._check()
            # Asked again now and then: a leader may refuse while it hands over, and its last entries may be lost with it.
            if any(node.core.is_serving for node in self.nodes.values()) and (goal is None or tick % 50 == 0):
                goal = goal or len(self.decided) + 1
                self._propose()
            if goal is not None and all(len(node.applied) >= goal for node in self._members()):
                return
        raise AssertionError(f"no agreement: {[len(node.applied) for node in self.nodes.values()]}, goal {goal}")

    def _members(self) -> list[ChaosNode]:
        """Who belongs to the group according to the node that has applied most."""
        newest = max(self.nodes.values(), key=lambda node: len(node.applied)).core.configuration
        return [self.nodes[name] for name in newest.members]

    # One step

    def _step(self) -> None:
        node = self.nodes[self.rng.choice(self.names)]
        action = self.rng.random()
        if node.name == self.frozen:
            if action < 0.006:  # it thaws, and is asked something before it hears anything
                self.frozen = ""
                self._read(node)
                self._work(node)
        elif action < 0.45:
            self._deliver()
        elif action < 0.52:
            node.core.tick()
        elif action < 0.55:
            self._propose()
        elif action < 0.57:
            self._read(node)
        elif action < 0.97:
            self._work(node)
        elif action < 0.98:
            self._compact(node)
        elif action < 0.985:
            self._crash(node)
        elif action < 0.988:
            leading = [other.name for other in self.nodes.values() if other.core.role is Role.LEADER]
            self.frozen = self.rng.choice(leading or self.names)
        elif action < 0.992:
            self.cut = set(self.rng.sample(self.names, self.rng.randrange(len(self.names))))
        else:
            self.cut = set()

    def _deliver(self) -> None:
        if not self.network:
            return
        message = self.network.pop(self.rng.randrange(min(len(self.network), 12)))
        if message.to == self.frozen:
            self.network.append(message)
            return
        if self.rng.random() < 0.05 or (message.sender in self.cut) != (message.to in self.cut):
            self.counts.lost += 1
            return
        if self.rng.random() < 0.05:
            self.counts.repeated += 1
            self.network.append(message)
        was_leading = {node.name for node in self.nodes.values() if node.core.role is Role.LEADER}
        self.nodes[message.to].core.step(decode_message(encode_message(message)))
        if message.kind is MessageKind.VOTE and message.forced and was_leading & {message.to}:
            self.counts.won_transfers += self.nodes[message.to].core.vote == message.sender

    def _propose(self) -> None:
        for node in self.nodes.values():
            if node.name == self.frozen:
                continue
            try:
                proposals.propose(node.core.serving(), f"p{self.proposed}".encode())
            except (NotLeader, ProposalRefused):
                continue
            self.proposed += 1

    def _read(self, node: ChaosNode) -> None:
        try:
            node.reads[node.core.read_index()] = len(self.decided)
        except NotLeader:
            return

    def _forget(self) -> None:
        node = self.nodes[self.rng.choice(self.names)]
        self.counts.forgotten += node.core.leader is not None
        node.core.forget_leader()

    def _change(self, leader: ChaosNode) -> None:
        configuration = leader.core.configuration
        changes = self._random_changes(leader.name, configuration)
        if len(configuration.members) + len(changes) > 9:
            return
        try:
            if configuration.is_joint and not configuration.auto_leave:
                proposals.propose_leave_joint(leader.core.serving())
            else:
                proposals.propose_change(leader.core.serving(), changes, self.rng.choice(list(Transition)))
        except (ChangeRefused, ProposalRefused):
            return
        self.counts.changes += 1
        for change in changes:
            if change.node not in self.nodes:
                self._add_node(change.node)
        if self.rng.random() < 0.3:
            # The worst that can happen to a change: the leader and whom it adds on one side, the others on the other.
            self.cut_soon = {leader.name, *(change.node for change in changes)} - set(configuration.voters) | {
                leader.name
            }

    def _random_changes(self, leader: str, configuration: Configuration) -> list[MemberChange]:
        new = [f"n{len(self.nodes) + place}" for place in range(3)]
        others = [node for node in configuration.voters if node != leader]
        if self.rng.random() < 0.5 and others:
            # Several for as many others.
            count = self.rng.randrange(1, min(3, len(others)) + 1)
            leaving = self.rng.sample(others, self.rng.randrange(count + 1))
            return [MemberChange(ChangeKind.ADD_VOTER, node) for node in new[:count]] + [
                MemberChange(ChangeKind.REMOVE, node) for node in leaving
            ]
        kind = self.rng.choice(list(ChangeKind))
        adds = kind in (ChangeKind.ADD_LEARNER, ChangeKind.ADD_VOTER)
        return [MemberChange(kind, new[0] if adds else self.rng.choice(configuration.members))]

    def _transfer(self) -> None:
        leader = self._serving()
        if leader is not None:
            try:
                proposals.transfer(leader.core.serving(), self.rng.choice(leader.core.configuration.voters))
            except TransferRefused:
                return
            self.counts.transfers += 1

    def _serving(self) -> ChaosNode | None:
        leading = [each for each in self.nodes.values() if each.core.is_serving and each.name != self.frozen]
        return self.rng.choice(leading) if leading else None

    def _work(self, node: ChaosNode) -> None:
        if node.outstanding is None:
            if node.core.has_ready():
                self._take(node)
        else:
            self._finish(node)

    def _take(self, node: ChaosNode) -> None:
        node.outstanding = node.core.ready()
        self.network += node.outstanding.send_now
        node.was_leader_in = max(node.was_leader_in, self._note_leader(node))

    def _finish(self, node: ChaosNode) -> None:
        ready = node.outstanding
        assert ready is not None
        if ready.persist is not None:
            try:
                self._risk_power(node)
                node.file.persist(ready.persist)
            except PowerLost:
                self._crash(node)
                return
        self.network += ready.send_after_persist
        if ready.restore is not None:
            self.counts.snapshots += 1
            node.applied = list(self.decided[: ready.restore.index])
            assert ready.restore.data.decode() == str(ready.restore.index)
        for entry in ready.committed:
            self._apply(node, entry)
        was_leading = node.core.role is Role.LEADER
        node.core.advance()
        node.outstanding = None
        if was_leading and node.core.role is not Role.LEADER and node.name not in node.core.configuration.all_voters:
            self.counts.removed_leaders += 1
        for read in ready.reads:
            self.counts.reads += 1
            assert read.index >= node.reads.pop(read.context), "a confirmed read misses what was decided before it"

    def _apply(self, node: ChaosNode, entry: Entry) -> None:
        assert entry.index == len(node.applied) + 1
        node.applied.append(entry)
        if entry.index <= len(self.decided):
            assert self.decided[entry.index - 1] == entry, f"two nodes applied different entries at {entry.index}"
        else:
            self.decided.append(entry)
            self.decided_in_term.append(node.core.term)
            self.counts.decided += 1
            self.counts.joint += entry.kind is EntryKind.MEMBERSHIP and decode_configuration(entry.data).is_joint

    def _compact(self, node: ChaosNode) -> None:
        if node.outstanding is None and node.core.can_compact and node.core.log.applied > 0:
            self.counts.compactions += 1
            data = str(node.core.log.applied).encode()
            try:
                self._risk_power(node)
                node.file.compact(node.core.compact(data, self.rng.randrange(4)))
            except PowerLost:
                self._crash(node)

    def _risk_power(self, node: ChaosNode) -> None:
        if not self.healthy and self.rng.random() < 0.02:
            node.disk.lose_power_at(self.rng.choice((1, 1, 2, 3)))

    def _crash(self, node: ChaosNode) -> None:
        self.counts.crashes += 1
        self.network = [message for message in self.network if message.sender != node.name or self.rng.random() < 0.5]
        torn = node.disk.counters.torn
        node.disk.crash()
        self.counts.torn += node.disk.counters.torn - torn
        self.nodes[node.name] = self._boot(node.name, node.disk)

    def _boot(self, name: str, disk: FaultyDisk) -> ChaosNode:
        file = RaftLogFile(disk, "chaos", name, self.founders if name in self.founders else ())
        recovered = file.open()
        snapshot = recovered.log.snapshot
        core = RaftCore(
            name,
            recovered.founders,
            recovered.log,
            recovered.hard_state,
            SETTINGS,
            random.Random(self.rng.random()),
        )
        return ChaosNode(name, core, file, disk, list(self.decided[: snapshot.index]) if snapshot else [])

    # Checks

    def _note_leader(self, node: ChaosNode) -> int:
        core = node.core
        if core.role is not Role.LEADER or core.term == node.was_leader_in:
            return 0
        self.counts.elections += 1
        assert self.leaders.setdefault(core.term, node.name) == node.name, f"two leaders in term {core.term}"
        for entry in self.decided[core.log.compacted_index :]:
            if self.decided_in_term[entry.index - 1] < core.term:
                assert core.log.term(entry.index) == entry.term, f"the leader of {core.term} misses entry {entry.index}"
        return core.term

    def _check(self) -> None:
        logs = [node.core.log for node in self.nodes.values()]
        for log in logs:
            assert log.pending_snapshot is not None or log.compacted_index <= log.applied
            assert log.applied <= log.committed <= log.last_index
            assert log.stable_index <= log.last_index
        if self.rng.random() < 0.02:
            for one in logs:
                for other in logs:
                    self._check_matching(one, other)

    def _check_matching(self, one: RaftLog, other: RaftLog) -> None:
        start = max(one.first_index, other.first_index)
        end = min(one.last_index, other.last_index)
        agreed = [index for index in range(start, end + 1) if one.term(index) == other.term(index)]
        if agreed:
            last = agreed[-1] + 1
            assert one.slice(start, last, 1 << 30) == other.slice(start, last, 1 << 30), (
                "logs with a common entry differ"
            )
