"""What brokers tell of damage to their files: on the page of the cluster, and in its verdict."""

from __future__ import annotations

from typing import Any

import pytest

from remoting.facts.broker_state import DamageState, ScrubState
from remoting.facts.snapshot import DamagedPart, Scrub
from remoting.facts.words import Health
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import look, state


def scrub_of(**told: Any) -> Scrub | None:
    states = {1: state(1, "master", min_offset=100, scrub=ScrubState(**told)), 2: state(2), 3: state(3)}
    snapshot, _ = build(look(states=states), Memory())
    return snapshot.groups[0].replicas[0].scrub


@pytest.mark.parametrize(
    ("told", "percent"),
    [
        ({}, None),
        ({"round_began_ms": 5, "checked_offset": 100, "limit_offset": 300}, 0),
        ({"round_began_ms": 5, "checked_offset": 150, "limit_offset": 300}, 25),
        ({"round_began_ms": 5, "checked_offset": 300, "limit_offset": 300}, 99),
        ({"round_began_ms": 5, "checked_offset": 100, "limit_offset": 100}, 100),
        ({"round_began_ms": 5, "round_ended_ms": 9, "checked_offset": 200, "limit_offset": 300}, 100),
    ],
)
def test_the_progress_of_a_round(told: dict[str, int], percent: int | None) -> None:
    scrub = scrub_of(**told)
    assert scrub is not None
    assert scrub.percent == percent
    assert not scrub.has_found


def test_brokers_of_other_versions_tell_nothing() -> None:
    snapshot, _ = build(look(states={1: state(1, "master"), 2: state(2), 3: state(3)}), Memory())
    assert snapshot.groups[0].scrubbed == ()


def test_damage_that_was_repaired_is_no_reason_and_what_was_not_is_one() -> None:
    parts = tuple(
        DamageState(start_offset=n, end_offset=n + 9, since_ms=7, reason="peer: it is away") for n in (40, 90)
    )
    states = {
        1: state(
            1, "master", scrub=ScrubState(found=3, repaired=3, last_damage="the log from 1 to 9", last_damage_ms=4)
        ),
        2: state(2, scrub=ScrubState(found=3, repaired=1, unrepaired=parts)),
        3: state(3),
    }
    snapshot, _ = build(look(states=states), Memory())
    (reason,) = snapshot.verdict.reasons
    assert snapshot.verdict.status is Health.DEGRADED
    assert reason.text == (
        "broker-a: the log of replica 2 is damaged from offset 40 to 49 and 1 other parts; no other replica could give what "
        "belongs there: peer: it is away"
    )
    told = snapshot.groups[0].replicas[1].scrub
    assert told is not None
    assert told.unrepaired[0] == DamagedPart(start_offset=40, end_offset=49, since_ms=7, reason="peer: it is away")
