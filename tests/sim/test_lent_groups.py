"""Stories in which the end of a log is lent to the thread beside the loop: they keep their promises, and it was lent indeed."""

from __future__ import annotations

from collections import Counter

from tests.sim.cluster import SimCluster, Story
from tests.sim.lent_groups import BESIDE, LentGroup

_SEEDS = range(12)
_WITHOUT = frozenset({"ordered", "leaser", "transactor", "delayer", "backer", "owner", "popper"})
_LEAST = {
    "lent": 100,
    "frames": 150,
    "taken back": 100,
    "missed": 2,
    "went on in another file": 3,
    "killed while lent": 2,
    "killed with news": 1,
    "killed while answers wait": 1,
    "lost power while lent": 2,
    "lost power while answers wait": 1,
    "cut behind what was taken": 1,
    "answered behind a sync": 30,
    "answers came back": 5,
    "sockets were full": 1,
    "write failed": 1,
    "struck: full disk": 1,
    "struck: slow disk": 1,
}


def _story(seed: int) -> Story:
    return Story(seed, "mixed", 3000, frozenset({BESIDE}), without_clients=_WITHOUT)


def test_what_is_taken_beside_the_loop_keeps_every_promise() -> None:
    done: Counter[str] = Counter()
    modes: Counter[tuple[str, int]] = Counter()
    asked: Counter[str] = Counter()
    for seed in _SEEDS:
        cluster = SimCluster(_story(seed))
        cluster.run()
        done += cluster.coverage.beside
        (group,) = (each for each in cluster.additions if isinstance(each, LentGroup))
        modes[group.brokers[0].settings.ack_after, len(group.brokers)] += 1
        asked += Counter({kind: count for (kind, _), count in cluster.history.operations.items()})
    assert {what: done[what] for what in _LEAST if done[what] < _LEAST[what]} == {}, done
    assert len(modes) == 4, modes
    assert asked["asked how far"] >= 10
    assert asked["asked elsewhere"] >= 100


def test_a_seed_tells_the_same_story_of_it_again() -> None:
    told = []
    for _ in range(2):
        cluster = SimCluster(_story(2))
        cluster.run()
        told.append((cluster.world.trace, cluster.world.fingerprint, cluster.coverage.beside))
    assert told[0] == told[1]
    assert told[0][2]["frames"] > 20
