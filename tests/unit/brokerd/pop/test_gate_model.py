"""Changes of placement under random interleavings: no ordered group is given a message before the earlier ones of its message
group are finished, wherever they lie, and nothing is lost.

Brokers are real ones over logs in memory; the placements and their two steps are a model here. Each mutant is a gate that is
wrong in one way, and has to be found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from brokerd.metadata.configs import ORDER_SCOPE, ORDER_SCOPES
from brokerd.metadata.start_offsets import InitMode
from brokerd.placement.handovers import Handover, Handovers
from brokerd.placement.placement import Placement, Share, owner_of
from brokerd.pop.order.answers import Answer, Answers
from brokerd.pop.order.gate import Gate, Question
from brokerd.pop.order.passed import Passed
from brokerd.pop.requests import AckStatus, PopStatus
from tests.support.pop_broker import PopBroker, Receive
from tests.support.turns import Turns

NAMES = ("a", "b", "c")
CUSTOMERS = tuple(f"customer {number}" for number in range(5))
QUEUES = 2


class OutOfOrder(AssertionError):
    """A consumer saw a message too early."""


@dataclass
class Node:
    """A broker group: its master, which placement it goes by, and to which it has prepared."""

    broker: PopBroker
    handovers: Handovers
    active: Placement
    prepared: Placement | None = None
    ends: Mapping[int, int] = field(default_factory=dict)
    is_down: bool = False


class World:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.turns = Turns()
        self.nodes: dict[str, Node] = {}
        first = self.placement(1)
        attributes = {ORDER_SCOPE: rng.choice(ORDER_SCOPES)}
        for name in NAMES:
            handovers = Handovers()
            broker = PopBroker(turns=self.turns, name=name, handovers=handovers).become_master()
            broker.topic("t", QUEUES)
            broker.group("g", fifo=True, attributes=attributes)
            self.nodes[name] = Node(broker, handovers, first)
        self.proposed: Placement | None = None
        self.decided: list[Placement] = [first]
        self.version = 1
        self.sent: dict[str, int] = dict.fromkeys(CUSTOMERS, 0)
        self.finished: dict[str, set[int]] = {customer: set() for customer in CUSTOMERS}
        self.held: list[tuple[str, str, int, str]] = []  # node, customer, number, handle

    def placement(self, version: int) -> Placement:
        names = self.rng.sample(NAMES, self.rng.randint(1, len(NAMES)))
        return Placement(version, tuple(Share(name, self.rng.randint(1, QUEUES)) for name in sorted(names)))

    # ---- steps

    def send(self) -> None:
        customer = self.rng.choice(CUSTOMERS)
        takers = [(name, queue) for name, node in self.nodes.items() for queue in self.takes(name, node, customer)]
        assert len(takers) <= 1, "two owners"
        for name, queue in takers:
            if not self.nodes[name].is_down:
                self.sent[customer] += 1
                body = f"{customer}/{self.sent[customer]}"
                self.nodes[name].broker.send(body, queue_id=queue, __SHARDINGKEY=customer)

    def takes(self, name: str, node: Node, customer: str) -> list[int]:
        owner = owner_of(node.active, customer)
        if owner[0] != name or (node.prepared is not None and owner_of(node.prepared, customer) != owner):
            return []
        return [owner[1]]

    def propose(self) -> None:
        if self.proposed is None and all(node.active == self.decided[-1] for node in self.nodes.values()):
            self.version += 1
            self.proposed = self.placement(self.version)

    def prepare(self) -> None:
        node = self.anybody()
        if self.proposed is not None and not node.is_down and node.prepared is None:
            node.prepared = self.proposed
            node.ends = self.extents(node)
        if self.proposed is not None and all(node.prepared is not None for node in self.nodes.values()):
            self.decided.append(self.proposed)
            self.proposed = None

    def abort(self) -> None:
        if self.proposed is not None and self.rng.random() < 0.2:
            self.proposed = None
            for node in self.nodes.values():
                node.prepared = None

    def activate(self) -> None:
        name = self.rng.choice(NAMES)
        node, placement = self.nodes[name], self.decided[-1]
        if node.is_down or node.active == placement or node.prepared != placement:
            return
        before, now = ({share.broker_name: share.queues for share in each.shares} for each in (node.active, placement))
        ends = {queue: end for queue, end in node.ends.items() if name in before}
        starts = {queue: self.extents(node)[queue] for queue in range(now.get(name, 0))}
        node.handovers.add(Handover("t", placement.version, ends, starts, tuple(before)))
        node.active, node.prepared = placement, None
        node.broker.versions["t"] = placement.version

    def extents(self, node: Node) -> Mapping[int, int]:
        return {queue: node.broker.log.max_offset("t", queue) for queue in range(QUEUES)}

    def pop(self) -> None:
        name = self.rng.choice(NAMES)
        node = self.nodes[name]
        if node.is_down:
            return
        receive = node.broker.receive(self.rng.choice((1, 2, 8)), invisible_time_ms=self.rng.choice((500, 5000)))
        self.take(name, receive)

    def take(self, name: str, receive: Receive) -> None:
        if receive.outcome.status != PopStatus.FOUND:
            return
        together: dict[str, set[int]] = {customer: set() for customer in CUSTOMERS}
        for message, body in zip(receive.messages, receive.bodies, strict=True):
            customer, _, text = body.partition("/")
            number = int(text)
            before = set(range(1, number)) - self.finished[customer] - together[customer]
            if before:
                raise OutOfOrder(f"{body} from {name}, and {sorted(before)} are not finished")
            together[customer].add(number)
            self.held.append((name, customer, number, message.receipt_handle))

    def finish(self) -> None:
        if self.held:
            name, customer, number, handle = self.held.pop(self.rng.randrange(len(self.held)))
            broker = self.nodes[name].broker
            if self.nodes[name].is_down:
                return
            way = self.rng.random()
            if way < 0.1:
                broker.change(handle, 1000)
                return
            status = broker.forward(handle) if way < 0.2 else broker.ack(handle)[0]
            if status == AckStatus.OK:
                self.finished[customer].add(number)

    def ask(self) -> None:
        node = self.anybody()
        if node.is_down:
            return
        gate = node.broker.pop_service.gate
        for question in gate.questions(self.turns.wall_ms()):
            source = self.nodes[question.source]
            if source.is_down or self.rng.random() < 0.1:
                gate.unanswered(question, self.turns.wall_ms())
                continue
            answers: list[Answer] = []
            source.broker.pop_service.answers.answer(question, answers.append)
            self.turns.run()
            (answer,) = answers
            gate.answered(question, self.turns.wall_ms(), has_passed=answer.has_passed)

    def restart(self) -> None:
        name = self.rng.choice(NAMES)
        node = self.nodes[name]
        versions = node.broker.versions
        node.broker = PopBroker(node.broker.log.copy(), self.turns, name, node.handovers).become_master()
        node.broker.versions = versions

    def stop_or_start(self) -> None:
        node = self.anybody()
        node.is_down = not node.is_down and self.rng.random() < 0.5

    def pass_time(self) -> None:
        self.turns.run(self.rng.choice((10, 400, 1500)))

    def anybody(self) -> Node:
        return self.nodes[self.rng.choice(NAMES)]

    # ---- a run

    def run(self, steps: int) -> None:
        weights: dict[Callable[[], None], int] = {
            self.send: 30,
            self.pop: 25,
            self.finish: 25,
            self.prepare: 10,
            self.activate: 10,
            self.ask: 8,
            self.pass_time: 6,
            self.propose: 4,
            self.restart: 1,
            self.stop_or_start: 2,
            self.abort: 1,
        }
        if self.rng.random() < 0.5:  # changes follow one another before consumers are through
            weights |= {
                self.send: 8,
                self.finish: 4,
                self.ask: 30,
                self.propose: 30,
                self.prepare: 60,
                self.activate: 60,
            }
        for step in self.rng.choices(list(weights), list(weights.values()), k=steps):
            step()
        self.drain()

    def drain(self) -> None:
        """All are there again, and consumers finish what they get."""
        for node in self.nodes.values():
            node.is_down = False
        for _ in range(400):
            self.prepare()
            self.activate()
            self.pop()
            while self.held:
                self.finish()
            self.ask()
            self.turns.run(300)
            if all(self.finished[customer] == set(range(1, self.sent[customer] + 1)) for customer in CUSTOMERS):
                return
        raise AssertionError(f"sent {self.sent}, finished {self.finished}")


SEEDS = 40
STEPS = 400


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_change_of_placement_breaks_order(seed: int) -> None:
    World(seed).run(STEPS)


def _ignored(_self: Gate, _topic: str, _group: str, _mode: InitMode) -> Mapping[int, int]:
    return {}


def _taken_is_enough(self: Passed, group: str, topic: str, queue_id: int, mode: InitMode) -> int:
    queue = self._ledger.queue(group, topic, queue_id)
    return queue.next_offset if queue is not None else self._starts.first_offset(topic, queue_id, mode)


def _newest_alone(self: Gate, topic: str, group: str, mode: InitMode) -> Mapping[int, int]:
    *_, newest = self._handovers.of(topic) or (None,)
    return newest.starts if newest is not None and self._missing(newest, group, mode) else {}


def _own_queues_alone(self: Gate, handover: Handover, group: str, mode: InitMode) -> list[str]:
    own = self._broker_name
    is_missing = own in handover.sources and not self._has_passed(handover.topic, handover.ends, group, mode)
    return [own] if is_missing else []


def _others_alone(self: Gate, handover: Handover, group: str, _mode: InitMode) -> list[str]:
    passed = self._passed.get((handover.topic, group), {}).get(handover.version, set())
    return [each for each in handover.sources if each not in passed and each != self._broker_name]


def _unheard_of_is_passed(self: Answers, question: Question) -> Answer:
    handover = next((each for each in self._handovers.of("t") if each.version == question.version), None)
    return Answer(handover is None or self._has_passed(question, handover), is_nothing_left=False)


def _forgets_what_came_to_it(self: Answers, question: Question, handover: Handover) -> bool:
    return self._passed.has_passed(question.topic, handover.ends, question.group, question.init_mode)


MUTANTS = {
    "a source forgets what came to it from elsewhere": (Answers, "_has_passed", _forgets_what_came_to_it),
    "the gate is ignored": (Gate, "limits", _ignored),
    "passed when taken, not finished": (Passed, "_position", _taken_is_enough),
    "only the newest handover counts": (Gate, "limits", _newest_alone),
    "only the own queues count": (Gate, "_missing", _own_queues_alone),
    "only other sources count": (Gate, "_missing", _others_alone),
    "a change that a source has not heard of counts as passed": (Answers, "_answer", _unheard_of_is_passed),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_gate_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(10 * SEEDS):
        try:
            World(seed).run(STEPS)
        except OutOfOrder:
            return
    pytest.fail(f"{name}: not found")
