"""Whatever happens in whatever order, message groups keep their order; and the model finds those who break the rules."""

from __future__ import annotations

import pytest

from brokerd.placement import service
from brokerd.placement.placement import owner_of
from brokerd.placement.rules import Owner
from brokerd.placement.table import TopicState
from controllerd.placements import decide as decisions
from controllerd.placements.decide import Decided
from controllerd.placements.records import GroupPrepared, PlacementActivated
from controllerd.placements.requests import Prepare
from controllerd.records.decision import Decision
from remoting.facts.placements import TopicPlacement
from tests.unit.brokerd.placement.model import Broken, run


def test_no_story_breaks_the_order_of_a_message_group() -> None:
    worlds = [run(seed) for seed in range(80)]
    assert sum(world.activations for world in worlds) > 80
    assert sum(len(each) for world in worlds for each in world.acknowledged.values()) > 2500
    places = [{place[:2] for place in numbers.values()} for world in worlds for numbers in world.acknowledged.values()]
    assert sum(len(each) > 1 for each in places) > 50, "message groups moved"


def activates_before_all_prepared(_present: TopicPlacement, request: Prepare) -> Decided:
    return Decision((GroupPrepared(request.topic, request.broker_name), PlacementActivated(request.topic)))


def takes_by_an_old_version(state: TopicState, message_group: str) -> Owner | None:
    return owner_of(state.active, message_group) if state.active is not None else None


def tells_of_what_can_be_lost(_self: service.PlacementService, _topic: str, _version: int) -> bool:
    return True


MUTANTS = {
    "activates before all have prepared": (decisions, "_prepare", activates_before_all_prepared),
    "takes by an old version": (service, "owner_now", takes_by_an_old_version),
    "tells of what can be lost": (service.PlacementService, "_is_durable", tells_of_what_can_be_lost),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(300):
        try:
            run(seed)
        except Broken:
            return
    pytest.fail(f"nobody noticed: {name}")
