"""The four properties of Raft, and that the group recovers, over random faults and changes. A failing seed replays exactly."""

from __future__ import annotations

import pytest

from tests.unit.controllerd.raft.chaos import Chaos, Counts


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_safe_under_faults(seed: int, size: int) -> None:
    Chaos(seed, size).run(steps=2500)


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_safe_while_the_membership_changes(seed: int, size: int) -> None:
    Chaos(seed, size).run_changing(rounds=150)


def test_the_changes_do_happen() -> None:
    total = Counts()
    for seed in range(300, 312):
        chaos = Chaos(seed, 3)
        chaos.run_changing(rounds=150)
        for name in Counts.__slots__:
            setattr(total, name, getattr(total, name) + getattr(chaos.counts, name))
    assert total.changes > 30
    assert total.joint > 15
    assert total.removed_leaders > 1
    assert total.transfers > 3
    assert total.won_transfers > 0
    assert total.forgotten > 5
    assert total.crashes > 30
    assert total.snapshots > 8


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
