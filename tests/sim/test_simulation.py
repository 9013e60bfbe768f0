"""A short, seeded part of the simulation for every run, and the proof that it can fail.

`python -m tests.sim --minutes M` is the long form. A seed that ever failed is kept in `REGRESSIONS`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from brokerd.replication.settings import ReplicationSettings
from tests.sim.cluster import SimCluster, Violation

SEEDS = range(8)
REGRESSIONS: tuple[int, ...] = ()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The daemons of the simulation would log their many deaths."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.parametrize("seed", [*SEEDS, *REGRESSIONS])
def test_every_promise_is_kept_under_faults(seed: int) -> None:
    cluster = SimCluster(seed)
    cluster.run()
    assert cluster.faults.total() >= 5
    assert sum(len(client.outcomes.acknowledged) for client in cluster.clients) >= 20
    assert cluster.reads > 20
    assert cluster.network.delivered > 500


def test_a_seed_tells_the_same_story_again() -> None:
    stories = []
    for _ in range(2):
        cluster = SimCluster(3)
        cluster.run()
        stories.append((cluster.world.trace, cluster.world.steps, [c.outcomes.acknowledged for c in cluster.clients]))
    assert stories[0] == stories[1]


def test_acknowledging_before_the_disk_has_it_is_found_out() -> None:
    """The weak mode loses messages when power fails; a harness that does not see that would prove nothing."""
    weak = ReplicationSettings(ack_after="append")
    found = next((violation for seed in range(60) if (violation := _violation(seed, weak))), None)
    assert found is not None, "no schedule lost anything although messages were acknowledged before they were durable"


def _violation(seed: int, settings: ReplicationSettings) -> str | None:
    try:
        SimCluster(seed, settings=settings).run()
    except Violation as violation:
        return str(violation)
    return None
