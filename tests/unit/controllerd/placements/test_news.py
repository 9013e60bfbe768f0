"""Who asks for what changed, some topics at a time, knows in the end what one look at the whole state tells."""

from __future__ import annotations

import random

from controllerd.placements.news import Changes, news_of
from controllerd.placements.records import (
    GroupPrepared,
    PlacementAborted,
    PlacementActivated,
    PlacementDropped,
    PlacementProposed,
    Record,
    apply,
)
from controllerd.placements.state import PlacementsState
from remoting.facts.placements import ShareFact, TopicPlacement

A = ShareFact("a", 8)


def some_record(rng: random.Random, state: PlacementsState) -> Record:
    topic = f"t{rng.randrange(12)}"
    present = state.topics.get(topic)
    if present is None or (present.proposed is None and rng.random() < 0.6):
        return PlacementProposed(topic, state.last_version + 1, (A,), ("a",))
    if present.proposed is not None:
        return rng.choice([GroupPrepared(topic, "a"), PlacementActivated(topic), PlacementAborted(topic)])
    return PlacementDropped(topic)


class Reader:
    def __init__(self) -> None:
        self.topics: dict[str, TopicPlacement] = {}
        self.revision = self.complete = 0

    def ask(self, state: PlacementsState, changes: Changes, most: int) -> bool:
        """Whether there is more."""
        news = news_of(state, changes, self.revision, self.complete, most, is_placing=True)
        assert len(news.topics) <= most
        assert not news.whole
        assert [each.revision for each in news.topics] == sorted(each.revision for each in news.topics)
        self.topics |= {each.topic: each for each in news.topics}
        if news.names is not None:
            assert not news.more
            self.topics = {name: self.topics[name] for name in news.names}
        self.revision = news.revision
        if not news.more:
            self.complete = news.revision
        return news.more


def test_readers_that_ask_between_changes_know_all_in_the_end() -> None:
    rng = random.Random(11)
    state, changes = PlacementsState(), Changes()
    readers = [Reader() for _ in range(4)]
    told = 0
    for _ in range(3000):
        record = some_record(rng, state)
        state = apply(state, record)
        changes.changed(record.topic, state)
        if rng.random() < 0.01:
            changes = Changes()  # another controller leads
        while rng.random() < 0.4:
            told += rng.choice(readers).ask(state, changes, rng.randint(1, 5))
    for reader in [*readers, Reader()]:
        while reader.ask(state, changes, 2):
            told += 1
        assert reader.topics == dict(state.topics)
        assert reader.revision == reader.complete == state.revision
    assert told > 100


def test_changes_of_the_same_topics_over_and_over_are_not_kept() -> None:
    state, changes = PlacementsState(), Changes()
    for version in range(1, 1000):
        state = apply(state, PlacementProposed("t", version, (A,), ("a",)))
        changes.changed("t", state)
    assert len(changes._order) < 100
    assert changes.behind(state, 0, 5) == (state.topics["t"],)


def test_who_comes_from_other_controllers_is_told_all() -> None:
    state = apply(PlacementsState(), PlacementProposed("t", 1, (A,), ("a",)))
    state = apply(apply(state, PlacementProposed("u", 2, (A,), ("a",))), PlacementDropped("u"))
    news = news_of(state, Changes(), 99, 99, 5, is_placing=False)
    assert (news.revision, news.topics, news.names) == (3, (state.topics["t"],), ("t",))
