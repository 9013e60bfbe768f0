from __future__ import annotations

from dataclasses import replace

import pytest

from remoting.facts.broker_state import Totals
from remoting.facts.loop import LoopState
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Look, Memory
from tasks.snapshot.pace import LIVELY_EVERY_S, LIVELY_FOR_S, QUIET_EVERY_S, Pace, log_ends, moves
from tests.unit.tasks.snapshot.cluster import replica, state, topic, view


def test_looks_are_far_apart_until_something_moves_and_some_time_after_it_did() -> None:
    pace = Pace()
    assert pace.every_s(0.0) == QUIET_EVERY_S
    pace.moved(5.0)
    assert pace.every_s(5.0 + LIVELY_FOR_S - 0.1) == LIVELY_EVERY_S
    assert pace.every_s(5.0 + LIVELY_FOR_S) == QUIET_EVERY_S


def test_a_log_that_grew_in_a_view_is_a_movement() -> None:
    before = view(replicas=(replica(1, "master", max_offset=10, confirm_offset=10),))
    after = view(replicas=(replica(1, "master", max_offset=11, confirm_offset=10),))
    assert log_ends({"n0": before}) == log_ends({"n0": replace(before, as_of_ms=7)})
    assert log_ends({"n0": before}) != log_ends({"n0": after})


HEALTHY = state(1, "master", topics=(topic("Orders"),))


def looked(memory: Memory) -> Memory:
    return build(Look(1, ("127.0.0.1:9876",), {"127.0.0.1:9876": view()}, {"127.0.0.1:10911": HEALTHY}), memory)[1]


@pytest.mark.parametrize(
    ("changed", "moved"),
    [
        (HEALTHY, False),
        (replace(HEALTHY, loop=LoopState(delay_ms=3)), False),
        (replace(HEALTHY, connections=HEALTHY.connections + 1), True),
        (replace(HEALTHY, counters=Totals(out_messages=1)), True),
        (replace(HEALTHY, last_error="the disk is full"), True),
    ],
)
def test_what_counts_as_a_movement_of_a_broker(changed: object, moved: bool) -> None:
    first = looked(Memory())
    memory = looked(first)
    assert memory.snapshot is not None
    assert memory.snapshot.verdict.status == "healthy", memory.snapshot.verdict
    assert moves(memory, first, {"a": changed}, {"a": HEALTHY}) is moved  # type: ignore[dict-item]


def test_topics_are_made_anew_only_when_they_would_be_others() -> None:
    first = looked(Memory())
    second = looked(first)
    third = looked(second)
    assert third.made_topics is second.made_topics
    assert third.snapshot is not None
    assert [each.name for each in third.snapshot.topics] == ["Orders"]
