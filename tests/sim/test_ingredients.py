"""What only some stories have: each ingredient in a short story of its own, which keeps its promises and was put to the test."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.cluster import SimCluster, Story
from tests.sim.ingredients import INGREDIENTS

_SEEDS = 80
# What its clients, or its copies, must have done in a story.
_DONE = {
    "copied directories": ("second process", "refused"),
    "fixed roles": ("send to either group", "broker-f"),
    "gRPC through replicas": ("gRPC send through a replica", "ok"),
    "lease holders that die": ("lease holder", "dies"),
    "message groups": ("pop in groups", "ok"),
    "older directories": ("older directory", "put back"),
    "offset resets": ("reset-pulls", "looked at"),
    "replica of the original": ("copy of the original", "bytes"),
    "sends beside the loop": ("dense send", "ok"),
    "second group": ("send to either group", "broker-b"),
    "timers in the tier": ("tier", "timers returned"),
    "tiers": ("tier", "cold messages read"),
    "timers": ("recall", "ok"),
}


@pytest.mark.parametrize("name", INGREDIENTS)
def test_a_story_with_it_keeps_every_promise(name: str) -> None:
    cluster = SimCluster(Story(3, "calm", fault_ms=2500, ingredients=frozenset({name})))
    cluster.run()
    assert cluster.history.operations[_DONE[name]] >= 1, cluster.history.operations


def test_each_is_in_some_of_the_stories_and_most_stories_have_few() -> None:
    drawn: Counter[str] = Counter()
    most = 0
    for seed in range(_SEEDS):
        ingredients = SimCluster(seed).ingredients
        drawn.update(ingredients)
        most = max(most, len(ingredients))
    assert all(drawn[name] >= 2 for name in INGREDIENTS), drawn
    assert drawn.total() < 1.2 * _SEEDS
    assert most <= 5
