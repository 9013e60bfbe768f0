"""The four properties of Raft, and that the group recovers, over random faults. A failing seed replays exactly."""

from __future__ import annotations

import pytest

from tests.unit.controllerd.raft.chaos import Chaos


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_safe_under_faults(seed: int, size: int) -> None:
    Chaos(seed, size).run(steps=2500)


def test_the_faults_do_happen() -> None:
    chaos = Chaos(1234, 3)
    chaos.run(steps=40000)
    counts = chaos.counts
    assert counts.elections > 20
    assert counts.decided > 100
    assert counts.crashes > 20
    assert counts.lost > 100
    assert counts.repeated > 50
    assert counts.snapshots > 4
    assert counts.compactions > 20
    assert counts.reads > 10
    assert counts.torn > 0


def test_same_seed_same_story() -> None:
    one, other = Chaos(7, 3), Chaos(7, 3)
    one.run(steps=1500)
    other.run(steps=1500)
    assert one.decided == other.decided
    assert one.counts == other.counts
