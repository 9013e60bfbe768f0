"""The journal of placements in slices: what changes between two of them is where it would be if they were one."""

from __future__ import annotations

import random

import pytest

from brokerd.journal.journal import JournalSettings
from brokerd.placement.service import PLACEMENTS_TOPIC, PlacementService
from brokerd.placement.table import TopicState
from remoting.facts.placements import PlacementFact, PlacementNews, ShareFact, TopicPlacement
from tests.support.memory_log import MemoryRecordLog
from tests.support.turns import Turns

A, B = ShareFact("a" * 40, 8), ShareFact("b" * 40, 8)
OWN = A.broker_name
TOPICS = [f"topic-{number:03}" for number in range(120)]


class Story:
    """One broker that leads, follows and leads again; the controllers' state is made up here."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = MemoryRecordLog()
        self.turns = Turns()
        self.version = 0
        self.facts: dict[str, TopicPlacement] = {}
        self.service = self.read()
        self.service.catch_up()
        self.service.lead()

    def read(self, log: MemoryRecordLog | None = None) -> PlacementService:
        settings = JournalSettings(150, 0, 8192, 0)
        turns = self.turns if log is None else Turns()
        service = PlacementService(log or self.log, OWN, lambda _: {0: self.version}, turns, settings)
        service.rebuild()
        return service

    def change(self) -> None:
        """Something else is agreed on about a topic, and this broker hears of it."""
        rng, topic = self.rng, self.rng.choice(TOPICS)
        present = self.facts.get(topic)
        self.version += 1
        names: tuple[str, ...] | None = None
        if present is None or present.proposed is None:
            active = present.active if present is not None else None
            shares = rng.choice([(A,), (A, B), (B,)])
            fact = TopicPlacement(topic, self.version, active, PlacementFact(self.version, shares), (OWN,))
            self.facts[topic] = fact
        elif rng.random() < 0.8:
            self.facts[topic] = TopicPlacement(topic, self.version, present.proposed)
        else:
            del self.facts[topic]
            names = tuple(self.facts)
        told = (self.facts[topic],) if topic in self.facts else ()
        self.service.take(PlacementNews(self.version, self.version, told, is_placing=True, names=names), lambda: None)

    def go_on(self) -> None:
        """Some turns, in which things change."""
        for _ in range(self.rng.randrange(12)):
            self.turns.call_soon(self.change)
            self.turns.call_soon(self.turns.call_soon, self.change)
        self.turns.run()

    def what(self, service: PlacementService) -> tuple[dict[str, TopicState], dict[str, TopicState], bool, object]:
        handovers = {topic: service.handovers.of(topic) for topic in TOPICS}
        return service.table.topics, dict(service.changes), service.table.is_placing, handovers

    def snapshots(self) -> list[bytes]:
        return [body for body in self.log.bodies(PLACEMENTS_TOPIC, 0) if b'"parts":' in body]

    def check(self) -> None:
        proposed = {topic for topic, each in self.service.table.topics.items() if each.proposed is not None}
        assert self.service.changes.keys() == proposed
        assert self.what(self.read(self.log)) == self.what(self.service)


@pytest.mark.parametrize("seed", range(2))
def test_a_table_that_changes_between_slices_is_read_as_it_is(seed: int) -> None:
    story = Story(seed)
    for _ in range(50):
        if story.rng.random() < 0.3:
            story.service.rolled()
        story.go_on()
        if story.rng.random() < 0.2:
            story.service.step_down()
            story.service.rebuild()
            if story.rng.random() < 0.5:
                story.turns.run()
                story.check()
            if story.rng.random() < 0.5:
                end = story.rng.choice([0, *story.log.positions][-20:])
                story.log.cut(end)
                story.service.truncated(end)
            story.service.catch_up()
            story.service.lead()
            story.go_on()
        if story.rng.random() < 0.3:
            story.check()
    story.check()
    slices = [body for body in story.snapshots() if b'"back":' in body]
    assert len(slices) > 20, "a snapshot is more than one slice"


def test_a_freeze_keeps_what_was_there() -> None:
    story = Story(9)
    for _ in range(100):
        story.change()
    before = list(story.service.table.snapshot_rows())
    frozen = story.service.table.freeze()
    rows = frozen.rows()
    first = next(rows)
    for _ in range(100):
        story.change()
    assert [first, *rows] == before
    assert list(story.service.table.snapshot_rows()) != before
