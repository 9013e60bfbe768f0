"""A model of placements: real masters' journals and the controllers' real decisions, interleaved by chance.

Producers send the messages of a message group one after the other, each to any broker group, which passes it on as it knows;
calls between groups, news of the controllers and acknowledgements come late or not at all, masters are killed between any two
steps.
What is checked at the end is what an ordered consumer needs: an acknowledged message lies before every later one of its message
group, in the same queue or by handovers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from brokerd.placement.rules import Waiting
from brokerd.placement.service import PlacementService
from controllerd.placements import decide as decisions
from controllerd.placements.compare import Told
from controllerd.placements.news import Changes, news_of
from controllerd.placements.records import apply
from controllerd.placements.requests import Abort, Prepare, Request
from controllerd.placements.state import PlacementsState
from remoting.facts.placements import PlacementNews
from remoting.message_groups import queue_of_group
from remoting.record.codec import decode_record
from tests.support.memory_log import MemoryRecordLog, draft
from tests.support.placement_differences import differences
from tests.support.turns import Turns

TOPIC = "Orders"
NAMES = ("a", "b", "c")
MOST_QUEUES = 5
Place = tuple[str, int, int]  # broker name, queue, offset


class Broken(AssertionError):
    """The order of a message group is lost."""


class Group:
    """A broker group: the log that its present master has, up to where it is acknowledged, and the topic."""

    def __init__(self, name: str, queues: int) -> None:
        self.name = name
        self.queues = queues  # of the topic; 0 = it does not take the topic's messages
        self.log = MemoryRecordLog()
        self.log.acknowledges = False
        self.acknowledged = 0
        self.service = self._lead()

    def _lead(self) -> PlacementService:
        service = PlacementService(self.log, self.name, lambda _topic: self.ends(), Turns())
        service.rebuild()
        service.catch_up()
        service.lead()
        return service

    def ends(self) -> dict[int, int]:
        return {queue: self.log.max_offset(TOPIC, queue) for queue in range(MOST_QUEUES)}

    def store(self, queue: int, body: bytes) -> int:
        place = self.log.append_placed([draft(TOPIC, body, queue)])[0]
        return place.queue_offset

    def acknowledge(self) -> None:
        self.acknowledged = self.log.end_offset
        self.log.acknowledge()

    def kill(self, rng: random.Random) -> None:
        """Another master leads, with a log that has at least what is acknowledged."""
        ends = [end for end in self.log.positions if end > self.acknowledged]
        self.log = self.log.copy(rng.choice([self.acknowledged, *ends]))
        self.log.acknowledges = False
        self.service = self._lead()


@dataclass
class Send:
    """What a producer has under way: its number, and where it was stored, if it was."""

    number: int = 0
    target: str = ""  # the group that it is on its way to
    place: Place | None = None


@dataclass
class World:
    rng: random.Random
    groups: dict[str, Group]
    state: PlacementsState = field(default_factory=PlacementsState)
    sends: dict[str, Send] = field(default_factory=dict)
    acknowledged: dict[str, dict[int, Place]] = field(default_factory=dict)
    news: list[tuple[str, PlacementService, PlacementNews]] = field(default_factory=list)
    reports: list[Prepare] = field(default_factory=list)
    activations: int = 0

    def step(self) -> None:
        rng, group = self.rng, self.rng.choice(list(self.groups.values()))
        match rng.choices(
            ("send", "arrive", "acknowledge", "ask", "hear", "report", "propose", "abort", "change", "kill"),
            (30, 30, 8, 12, 14, 14, 4, 0.4, 0.4, 2.5),
        )[0]:
            case "send":
                self._send(rng.choice(list(self.sends)), group)
            case "arrive":
                self._arrive(rng.choice(list(self.sends)))
            case "acknowledge":
                self._acknowledge(group)
            case "ask":
                self.news.append((group.name, group.service, self._news(group.service)))
            case "hear" if self.news:
                name, service, news = self.news.pop(rng.randrange(len(self.news)))
                if self.groups[name].service is service:
                    service.take(news, lambda: None)
            case "report":
                prepared = group.service.prepared()
                self.reports += [Prepare(topic, version, group.name) for topic, version in prepared.items()]
                if self.reports:
                    self._decide(self.reports.pop(rng.randrange(len(self.reports))))
            case "propose":
                topics = {each.name: {TOPIC: each.queues} if each.queues else {} for each in self.groups.values()}
                for request in differences(self.state, Told(topics, topics.keys(), are_all_there=True)):
                    self._decide(request)
            case "abort":
                self._decide(Abort(TOPIC, self.state.last_version))
            case "change":
                others = [each for each in self.groups.values() if each is not group and each.queues]
                group.queues = rng.randint(0 if others else 1, MOST_QUEUES)
            case "kill":
                self._kill(group)

    # ---- the controllers

    def _decide(self, request: Request) -> None:
        before = self.state.topics.get(TOPIC)
        for record in decisions.decide(self.state, request).records:
            self.state = apply(self.state, record)
        after = self.state.topics.get(TOPIC)
        self.activations += after is not None and (before is None or before.active != after.active)

    def _news(self, service: PlacementService | None = None) -> PlacementNews:
        revision, complete = (service.revision, service.complete) if service is not None else (0, 0)
        return news_of(self.state, Changes(), revision, complete, 1 + self.rng.randrange(3), is_placing=True)

    # ---- producers

    def _send(self, message_group: str, group: Group) -> None:
        send = self.sends[message_group]
        if send.target or send.place is not None or not group.queues:
            return
        owner = group.service.owner(TOPIC, message_group)
        if isinstance(owner, Waiting):
            return
        if owner is None:
            self._store(message_group, group, queue_of_group(message_group, group.queues))
        elif owner[0] == group.name:
            self._store(message_group, group, owner[1])
        else:
            send.target = owner[0]

    def _arrive(self, message_group: str) -> None:
        send = self.sends[message_group]
        target, send.target = send.target, ""
        if target and self.rng.random() < 0.95:
            owner = self.groups[target].service.owner(TOPIC, message_group)
            if not isinstance(owner, Waiting) and owner is not None and owner[0] == target:
                self._store(message_group, self.groups[target], owner[1])

    def _store(self, message_group: str, group: Group, queue: int) -> None:
        send = self.sends[message_group]
        offset = group.store(queue, f"{message_group} {send.number}".encode())
        send.place = group.name, queue, offset

    def _acknowledge(self, group: Group) -> None:
        group.acknowledge()
        for message_group, send in self.sends.items():
            if send.place is not None and send.place[0] == group.name:
                self.acknowledged.setdefault(message_group, {})[send.number] = send.place
                self.sends[message_group] = Send(send.number + 1)

    def _kill(self, group: Group) -> None:
        group.kill(self.rng)
        for send in self.sends.values():
            if send.place is not None and send.place[0] == group.name:
                send.place = None  # the outcome is unknown, so it is sent again

    # ---- what holds

    def check(self) -> None:
        """To be asked at the end: who has not heard of a change yet keeps others waiting, and has no handover to look at."""
        for group in self.groups.values():
            group.service.take(self._news(group.service), lambda: None)
        for group in self.groups.values():
            for queue in range(MOST_QUEUES):
                for offset, record in enumerate(group.log.bodies(TOPIC, queue)):
                    message_group, number = decode_record(record).body.decode().rsplit(" ", 1)
                    self._check(message_group, int(number), (group.name, queue, offset))

    def _check(self, message_group: str, number: int, place: Place) -> None:
        """All that was acknowledged before this one of its message group comes before it."""
        before = dict(self._before(place))
        for earlier, (name, queue, offset) in self.acknowledged.get(message_group, {}).items():
            if earlier < number and before.get((name, queue), 0) <= offset:
                raise Broken(f"{number} of {message_group} at {place}, {earlier} at {(name, queue, offset)}")

    def _before(self, place: Place) -> Iterator[tuple[tuple[str, int], int]]:
        """Up to where queues have to be finished before a consumer gets what is at the place; later ones replace earlier."""
        name, queue, offset = place
        found: dict[tuple[str, int], int] = {(name, queue): offset}
        waiting = [
            (source, each.version)
            for each in self.groups[name].service.handovers.of(TOPIC)
            if each.starts.get(queue, 0) <= offset
            for source in each.sources
        ]
        while waiting:
            source, version = waiting.pop()
            for each in self.groups[source].service.handovers.of(TOPIC):
                if each.version == version:
                    for number, end in each.ends.items():
                        found[source, number] = max(end, found.get((source, number), 0))
                if each.version < version:  # what the source itself waits for
                    waiting += [(earlier, each.version) for earlier in each.sources]
        yield from found.items()


def run(seed: int, steps: int = 1200) -> World:
    """One story. Raises Broken."""
    rng = random.Random(seed)
    groups = {name: Group(name, rng.randint(0, MOST_QUEUES)) for name in rng.sample(NAMES, rng.randint(2, 3))}
    next(iter(groups.values())).queues = 2
    world = World(rng, groups, sends={f"customer {n}": Send() for n in range(6)})
    # the topic is new: nothing is taken before the masters know that it will be placed
    for group in groups.values():
        group.service.take(world._news(), lambda: None)
        group.acknowledge()
    for _ in range(steps):
        world.step()
    world.check()
    return world
