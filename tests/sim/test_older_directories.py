"""Older copies take the place of brokers' directories: see `older_directories` and `light_directories`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from tests.sim.cluster import SimCluster, Story
from tests.sim.light import OLD, LightStory
from tests.sim.light_directories import Directories, Directory
from tests.sim.older_directories import NAME
from tests.sim.world import Violation
from tests.unit.brokerd.replication.group import Node


@pytest.mark.parametrize(("seed", "mood"), [(114, "calm"), (249, "power")])
def test_whoever_else_cannot_tell_what_it_lost_waits_for_the_directory_that_was_put_aside(seed: int, mood: str) -> None:
    """Nobody leads with an older copy where another member may lack what that one's directory had; an operator brings it back."""
    cluster = SimCluster(Story(seed, mood, ingredients=frozenset({NAME})))
    cluster.run()
    assert cluster.history.operations["older directory", "back again"] == 1


def test_groups_heal_whatever_directory_their_brokers_ran_on() -> None:
    did: Counter[str] = Counter()
    for seed in range(60):
        story = LightStory(seed, weights=OLD, heals=True)
        story.run()
        did += story.did
    assert did["put_back"] >= 60


def test_light_stories_find_who_leads_without_what_it_had_as_a_member(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = Directories._exchange

    def tell_nobody(self: Directories, node: Node, taken: Directory) -> None:
        exchange(self, node, taken)
        self._group.controller.suspects.clear()
        self._group.controller.elsewhere.clear()

    monkeypatch.setattr(Directories, "_exchange", tell_nobody)
    with pytest.raises(Violation, match="is electable and lacks"):
        _tell(range(60))


def _tell(seeds: Iterable[int]) -> None:
    for seed in seeds:
        LightStory(seed, weights=OLD).run()
