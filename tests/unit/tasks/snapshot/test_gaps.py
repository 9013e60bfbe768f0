"""How far behind its master a replica is: only where one broker says both ends, for answers are of different moments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remoting.facts.broker_state import BrokerState
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import followed_by, look, replica, state, view


def test_a_gap_is_the_master_s_own_count_whatever_replicas_tell_at_other_moments() -> None:
    """Under load the answers of a look are a moment apart, which is megabytes: replica 2 answered before the master, 3 after."""
    master = state(1, "master", 5_000_000, channel=followed_by({2: 120, 3: 4096, -1: 7}))
    states = {1: master, 2: state(2, end_offset=1_000_000), 3: state(3, end_offset=9_000_000)}
    snapshot, _ = build(look(states=states), Memory())
    assert [each.gap_bytes for each in snapshot.groups[0].replicas] == [0, 120, 4096]


@pytest.mark.parametrize(
    "states",
    [
        {1: state(1, "master", 5000, channel=followed_by({2: None})), 2: state(2), 3: state(3, end_offset=4000)},
        {2: state(2, end_offset=5000), 3: state(3, end_offset=4000)},
        {1: state(1, "promoting", 5000, channel=followed_by({})), 2: state(2), 3: state(3)},
    ],
    ids=["not connected or not settled", "the master is silent", "it does not lead yet"],
)
def test_a_gap_that_the_master_does_not_count_is_unknown(states: dict[int, BrokerState]) -> None:
    snapshot, _ = build(look(states=states), Memory())
    assert [each.gap_bytes for each in snapshot.groups[0].replicas[1:]] == [None, None]


def test_a_replica_out_of_sync_is_named_with_its_gap() -> None:
    bent = view(
        sync_state_set=(
            1,
            2,
        ),
        replicas=(
            replica(1, "master"),
            replica(2),
            replica(3, in_sync=False),
        ),
    )
    master = state(1, "master", 5_000_000, channel=followed_by({2: 0, 3: 4_000_000}))
    states = {1: master, 2: state(2, end_offset=5_000_000), 3: state(3, end_offset=1_000_000)}
    snapshot, _ = build(look(view=bent, states=states), Memory())
    (reason,) = snapshot.verdict.reasons
    assert reason.text == "broker-a: replica 3 is not in the sync-state set; it lacks 3.8 MiB."
    snapshot, _ = build(look(view=bent, states=states | {1: replace(master, channel=followed_by({2: 0}))}), Memory())
    (reason,) = snapshot.verdict.reasons
    assert reason.text == "broker-a: replica 3 is not in the sync-state set.", "how much it lacks, nobody counted"
