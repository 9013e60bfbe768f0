"""Whatever happens in whatever order, each message that was sent is read where it was, from the files or from the tier."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.tiers.commits import Commits
from brokerd.tiers.index.searching import _Search
from remoting.tier.index import Posting
from tests.unit.brokerd.tiers.world import World, Wrong

SEEDS = 12
STEPS = 60


def test_no_story_loses_a_message() -> None:
    worlds = [World(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert sum(world.cold_reads for world in worlds) > 30
    assert sum(world.misses for world in worlds) > 50
    assert sum(world.viewed for world in worlds) > 10
    assert sum(world.queried for world in worlds) > 500
    assert sum(world.faults for world in worlds) > 50
    assert sum(world.zombies for world in worlds) > 5
    assert sum(world.removed_files for world in worlds) > 30


def test_the_model_finds_an_index_object_that_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because it began before the time that is asked for."""
    monkeypatch.setattr(
        _Search, "may_hold", lambda self, entry: self.question.begin_ms <= entry.begin_ms <= self.question.end_ms
    )
    with pytest.raises(Wrong, match="Question"):
        _run_some()


def test_the_model_finds_a_lost_index_object(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, numbers = Commits._indexed, itertools.count(1)

    async def sometimes(self: Commits, postings: Sequence[Posting]) -> Any:
        found = await whole(self, postings)
        return ([], []) if next(numbers) % 7 == 0 else found

    monkeypatch.setattr(Commits, "_indexed", sometimes)
    with pytest.raises(Wrong, match="Question"):
        _run_some()


def _run_some() -> None:
    for seed in range(4):
        World(seed).run(STEPS)
