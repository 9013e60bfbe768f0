"""Whatever happens in whatever order, each message that was sent is read where it was, from the files or from the tier."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from brokerd.tiers import commits, manifests, removal, table, upkeep
from brokerd.tiers.index.searching import Search
from brokerd.tiers.index.writing import IndexWriter
from brokerd.tiers.removal import Removal
from remoting.errors import LogboomError
from remoting.tier.index import IndexObject
from remoting.tier.segments import QueueSegments
from tests.unit.brokerd.tiers.world import SETTINGS, World, Wrong

GROWING = replace(SETTINGS, segment_bytes=1 << 20)
SEEDS = 40
ROWS = 3
STEPS = 60
MANY_SEEDS = 150


@pytest.fixture(autouse=True)
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of the manifest have several pieces, and records several changes."""
    monkeypatch.setattr(commits, "PIECE_ROWS", ROWS)
    monkeypatch.setattr(table, "MOST_CHANGES", ROWS)
    monkeypatch.setattr(manifests, "PARTS_BEFORE_CHECKPOINT", 8)


@pytest.mark.parametrize("appends", [False, True], ids=["puts", "appends"])
def test_no_story_loses_a_message(appends: bool) -> None:
    worlds = [World(seed, GROWING if appends else SETTINGS, appends=appends) for seed in range(SEEDS)]
    for world in worlds:
        world.run(STEPS)
    assert all((world.stored.appends > 0) == appends for world in worlds)
    assert (sum(world.stored.appends > 10 for world in worlds) > SEEDS * 9 // 10) == appends
    assert (sum(world.left_behind for world in worlds) > 10) == appends
    assert sum(world.cold_reads for world in worlds) > 30
    assert sum(world.misses for world in worlds) > 50
    assert sum(world.viewed for world in worlds) > 10
    assert sum(world.queried for world in worlds) > 500
    assert sum(world.faults for world in worlds) > 50
    assert sum(world.zombies for world in worlds) > 5
    assert sum(world.removed_files for world in worlds) > 30
    assert sum(world.switched for world in worlds) > 10
    assert sum(world.losses for world in worlds) > 3
    assert sum(world.merges for world in worlds) > 20
    assert sum(world.archived for world in worlds) > 20
    assert sum(world.swept for world in worlds) > 100
    assert sum(world.indexes_that_expire for world in worlds) > 5


def never(*_args: object) -> bool:
    return False


def nothing(*_args: object) -> None:
    return None


async def without_a_look(self: Removal, names: Sequence[str]) -> bool:
    await self._objects.remove(names)
    return True


def that_began_in_it(self: Search, entry: IndexObject) -> bool:
    return self.question.begin_ms <= entry.begin_ms <= self.question.end_ms


def some_lost() -> Any:
    whole, numbers = IndexWriter.put, itertools.count(1)

    async def put(self: IndexWriter, items: Any) -> Any:
        found = await whole(self, items)
        return [] if next(numbers) % 7 == 0 else found

    return put


def one_segment_too_far(segments: QueueSegments, before_ms: int) -> int | None:
    old = upkeep.settled(segments, before_ms)
    beyond = segments.at(old[-1].end) if old else None
    return beyond.end if beyond is not None else None


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "swept without a look at the age": (removal, "YOUNG_MS", -(10**12)),
    "removed without a look at who is the master": (Removal, "_remove", without_a_look),
    "expired one segment too far": (upkeep, "expired_to", one_segment_too_far),
    "never swept": (removal, "DELAY_MS", 10**15),
    "an object of the index is passed over": (Search, "may_hold", that_began_in_it),
    "an object of the index is lost": (IndexWriter, "put", some_lost()),
    "objects of the index are not swept": (removal, "parse_index_name", nothing),
    "what is on its way is swept": (upkeep.Commits, "is_on_its_way", never),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(MANY_SEEDS):
        try:
            World(seed).run(STEPS)
        except (Wrong, LogboomError, AssertionError):
            return
    pytest.fail(f"nobody noticed: {name}")
