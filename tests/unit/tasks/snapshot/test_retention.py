"""What brokers tell of files that topics want kept: of each replica, of a topic, and in the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from remoting.facts.broker_state import RetentionState
from remoting.facts.snapshot import ClusterSnapshot
from remoting.facts.words import Health
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import NOW_MS, look, state, topic

HOUR_MS = 3_600_000
KEEPING = RetentionState(reserved_ms=72 * HOUR_MS, kept_files=3, kept_bytes=3 << 30, kept_topic="orders")


def seen(told: RetentionState | None) -> ClusterSnapshot:
    orders = replace(topic("orders", 100), local_reserved_hours=240)
    states = {1: state(1, "master", topics=(orders,)), 2: state(2, retention=told), 3: state(3)}
    return build(look(states=states), Memory())[0]


def test_files_that_stay_are_told_and_no_reason() -> None:
    snapshot = seen(KEEPING)
    assert snapshot.verdict.status is Health.HEALTHY
    (group,) = snapshot.groups
    assert [each.retention for each in group.replicas] == [None, KEEPING, None]
    assert [each.id for each in group.keeping] == [2]
    assert seen(RetentionState(reserved_ms=HOUR_MS)).groups[0].keeping == ()
    assert snapshot.topics[0].local_reserved_hours == 240


def test_files_that_went_although_topics_wanted_them_are_a_reason_for_an_hour() -> None:
    def told(ago_ms: int) -> RetentionState:
        return replace(KEEPING, overruled_files=4, overruled_topic="orders", overruled_ms=NOW_MS - ago_ms)

    (reason,) = seen(told(0)).verdict.reasons
    assert (reason.code, reason.severity) == ("retention-overruled", "warning")
    assert reason.text == (
        "broker-a: the disk of replica 2 is too full for what topics want: it removed files with messages that they want kept, "
        "the last one at 14:13:20 UTC, which orders wanted. Add room, or have topics want less."
    )
    assert not seen(told(HOUR_MS)).verdict.reasons


@pytest.mark.parametrize("name", ["kept_files", "overruled_files"])
def test_a_replica_of_which_either_is_told_is_among_those_that_are_shown(name: str) -> None:
    told = replace(RetentionState(reserved_ms=HOUR_MS), **{name: 1})
    assert len(seen(told).groups[0].keeping) == 1
