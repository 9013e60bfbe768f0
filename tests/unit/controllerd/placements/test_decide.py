"""Placements as the controllers decide on them: two steps, in which no proposal comes into force before all have prepared."""

from __future__ import annotations

import random

import pytest

from controllerd.placements.decide import decide
from controllerd.placements.records import LEVEL, PlacementActivated, apply
from controllerd.placements.requests import Abort, Drop, Prepare, Propose, Request
from controllerd.placements.state import PlacementsState
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from remoting.errors import RequestError
from remoting.facts.codec import encode
from remoting.facts.placements import ShareFact

A, B, C = ShareFact("a", 8), ShareFact("b", 8), ShareFact("c", 4)


def after(*requests: Request, state: PlacementsState | None = None) -> PlacementsState:
    state = state or PlacementsState()
    for request in requests:
        for record in decide(state, request).records:
            state = apply(state, record)
    return state


FIRST = (Propose("orders", 0, (A, B), ("a", "b")), Prepare("orders", 1, "a"), Prepare("orders", 1, "b"))


def test_it_is_in_force_when_all_have_prepared() -> None:
    state = after(*FIRST[:2])
    assert state.topics["orders"].active is None
    assert state.topics["orders"].waits_for == ("b",)
    orders = after(*FIRST).topics["orders"]
    assert orders.active is not None
    assert (orders.active.version, orders.active.shares, orders.proposed) == (1, (A, B), None)


def test_there_is_one_proposal_at_a_time_and_it_replaces_what_it_was_made_for() -> None:
    state = after(FIRST[0])
    assert after(Propose("orders", 0, (A, C), ("a", "c")), state=state) is state
    state = after(*FIRST)
    for basis in (0, 2):
        assert after(Propose("orders", basis, (A, C), ("a", "c")), state=state) is state
    assert after(Propose("orders", 1, (A, B), ("a", "b")), state=state) is state
    state = after(Propose("orders", 1, (A, B, C), ("a", "b", "c")), state=state)
    proposed = state.topics["orders"].proposed
    assert proposed is not None
    assert proposed.version == 2


def test_what_was_aborted_never_comes_into_force() -> None:
    state = after(*FIRST[:2], Abort("orders", 1), FIRST[2])
    assert "orders" not in state.topics
    state = after(FIRST[0], Prepare("orders", 1, "a"), FIRST[2], state=state)
    orders = state.topics["orders"]
    assert (orders.active, orders.prepared) == (None, ()), "the next attempt is version 2"
    assert state.last_version == 2


def test_versions_grow_over_all_topics_and_over_their_deletion() -> None:
    state = after(*FIRST, Drop("orders"), Propose("orders", 0, (A,), ("a",)), Propose("bills", 0, (A,), ("a",)))
    assert [each.proposed.version for each in state.topics.values() if each.proposed] == [2, 3]
    assert state.forgotten < state.revision


def test_the_revision_says_what_changed_last() -> None:
    state = after(*FIRST, Propose("bills", 0, (A,), ("a",)))
    assert state.topics["bills"].revision == state.revision == 5
    assert state.topics["orders"].revision == 4


def test_nothing_is_written_before_all_controllers_know_of_it() -> None:
    machine = ControllerMachine()
    with pytest.raises(RequestError, match="feature level 2"):
        machine.decide(FIRST[0])
    machine.apply(machine.decide(RaiseLevel((LEVEL, LEVEL))))
    for request in FIRST:
        machine.apply(machine.decide(request))
    copy = ControllerMachine()
    copy.restore(machine.snapshot())
    assert copy.placements == machine.placements
    assert copy.placements.topics["orders"].active is not None


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_asked_in_whatever_order_all_prepared_before_it_came_into_force(seed: int) -> None:
    rng = random.Random(seed)
    state = PlacementsState()
    prepared: dict[int, set[str]] = {}
    ended: set[int] = set()
    for _ in range(300):
        present = state.topics.get("orders")
        version = rng.randint(max(0, state.last_version - 2), state.last_version + 1)
        request: Request = rng.choice(
            [
                Propose("orders", rng.choice([0, version]), tuple(rng.sample((A, B, C), 2)), ("a", "b", "c")),
                Prepare("orders", version, rng.choice("abcd")),
                Prepare("orders", state.last_version, rng.choice("abc")),
                Abort("orders", version) if rng.random() < 0.2 else Prepare("orders", version, "a"),
                Drop("orders") if rng.random() < 0.05 else Prepare("orders", version, "b"),
            ]
        )
        for record in decide(state, request).records:
            if isinstance(request, Prepare):
                prepared.setdefault(request.version, set()).add(request.broker_name)
            if isinstance(record, PlacementActivated):
                assert present is not None
                assert present.proposed is not None
                assert prepared[present.proposed.version] == {"a", "b", "c"}
                assert present.proposed.version not in ended
            before, state = state, apply(state, record)
            assert state.last_version >= before.last_version
        if present is not None and present.proposed is not None:
            now = state.topics.get("orders")
            if now is None or now.proposed != present.proposed:
                ended.add(present.proposed.version)


def test_the_snapshot_is_as_documented() -> None:
    assert encode(after(*FIRST[:2])) == (
        b'{"topics":{"orders":{"topic":"orders","revision":2,"active":null,"proposed":{"version":1,"shares":'
        b'[{"broker_name":"a","queues":8},{"broker_name":"b","queues":8}]},"voters":["a","b"],"prepared":["a"]}},'
        b'"revision":2,"last_version":1,"forgotten":0}'
    )
