"""Some stories of disks that rot, for every run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.rotting import RotStory

_STORIES = 60


def test_what_rots_is_never_served_and_is_whole_in_the_end() -> None:
    did: Counter[str] = Counter()
    rotten: Counter[str] = Counter()
    repaired = 0
    for seed in range(_STORIES):
        story = RotStory(seed)
        story.run()
        did += story.did
        rotten += story.rotten
        repaired += sum(copy.repaired for copy in story.copies)
    for event in ("put", "copy", "sync", "dispatch", "scrub", "rot", "read", "start", "elect", "crash", "kill"):
        assert did[event] >= _STORIES // 6, did
    for kind in ("commitlog", "consumequeue", "checkpoint", "index.checkpoint"):
        assert rotten[kind] >= 5, rotten
    assert repaired >= _STORIES // 2


@pytest.mark.parametrize("seed", [70017, 70053])
def test_what_once_broke_holds(seed: int) -> None:
    """70017: a queue's only unit rotted, and its check was gone with the power: a start took it for what a crash had left.
    70053: the story itself kept an epoch without bytes, where a replica drops it."""
    RotStory(seed).run()


def test_a_seed_tells_the_same_story_again() -> None:
    stories = [RotStory(5), RotStory(5)]
    for story in stories:
        story.run()
    assert stories[0].trace == stories[1].trace
    assert stories[0].world.fingerprint == stories[1].world.fingerprint
