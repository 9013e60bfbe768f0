"""Makes a failing story shorter: leaves out faults and clients, one share after the other, as long as the same promise breaks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace

from tests.sim.cluster import SimCluster, Story
from tests.sim.light import LightStory
from tests.sim.world import Violation

_CLIENTS = ("p0", "p1", "g0", "g1", "popper", "ordered", "leaser", "transactor", "delayer", "backer", "owner", "admin")
_DETAIL = re.compile(r"[0-9]+|b'[^']*'|b\"[^\"]*\"")


def shrink(story: Story, violation: str, progress: Callable[[str], None] = lambda _: None) -> Story:
    """The shortest story found. It breaks the promise that `violation` names, though perhaps in another place."""
    promise = _promise(violation)

    def still_fails(candidate: Story) -> bool:
        try:
            SimCluster(candidate).run()
        except Violation as error:
            return _promise(str(error)) == promise
        return False

    everything = len(SimCluster(story).injector.plan)
    kept = [index for index in range(everything) if index not in story.without_faults]
    share = max(1, len(kept) // 2)
    while kept:
        for start in range(0, len(kept), share):
            remaining = kept[:start] + kept[start + share :]
            candidate = replace(story, without_faults=frozenset(range(everything)) - set(remaining))
            if still_fails(candidate):
                story, kept = candidate, remaining
                progress(f"{len(kept)} of {everything} faults are enough")
                break
        else:
            if share == 1:
                break
            share //= 2
    for name in sorted(SimCluster(story).ingredients):
        candidate = replace(story, ingredients=SimCluster(story).ingredients - {name})
        if still_fails(candidate):
            story = candidate
            progress(f"it fails without {name} too")
    for client in _CLIENTS:
        candidate = replace(story, without_clients=story.without_clients | {client})
        if still_fails(candidate):
            story = candidate
            progress(f"it fails without {client} too")
    return story


def shrink_light(seed: int, violation: str) -> frozenset[int]:
    """The events of a light story that it fails without, as many as were found."""
    promise = _promise(violation)

    def still_fails(without: frozenset[int]) -> bool:
        try:
            LightStory(seed, without=without).run()
        except Violation as error:
            return _promise(str(error)) == promise
        return False

    story = LightStory(seed)
    with contextlib.suppress(Violation):
        story.run()
    everything = frozenset(range(1, story.events + 1))
    kept = sorted(everything)
    share = max(1, len(kept) // 2)
    while kept:
        for start in range(0, len(kept), share):
            remaining = kept[:start] + kept[start + share :]
            if still_fails(everything - frozenset(remaining)):
                kept = remaining
                break
        else:
            if share == 1:
                break
            share //= 2
    return everything - frozenset(kept)


def _promise(violation: str) -> str:
    """The sentence without its numbers and messages."""
    return _DETAIL.sub("#", violation)
