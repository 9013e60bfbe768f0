"""A start does not wait for a tier, and for everything else it does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from remoting.facts.broker_state import BrokerState, MissingState, QuorumState
from remoting.facts.tier_state import TierState
from remoting.facts.words import BrokerRole, Health, TierCondition
from webapp.appliance import healthy
from webapp.appliance.healthy import lacking_tiers, wait_healthy

GROUPS = {"broker-a": 2, "broker-b": 1}


def broker(group: str, number: int, role: BrokerRole, **more: Any) -> BrokerState:
    return BrokerState(cluster_name="c", broker_name=group, broker_id=number, role=role, **more)


def tier(trouble: str | None) -> TierState:
    return TierState(url="s3://bucket", condition=TierCondition.OPENING, trouble=trouble)


def master(group: str, *replicas: int, trouble: str | None = None) -> BrokerState:
    quorum = QuorumState(kind="controllers")
    return broker(
        group, 1, BrokerRole.MASTER, sync_state_set=(1, *replicas), quorum=quorum, tier=tier(trouble), master_epoch=1
    )


A = master("broker-a", 2, trouble="there is no such bucket")
REPLICA = broker("broker-a", 2, BrokerRole.REPLICA)
B = master("broker-b")


def test_what_the_tiers_lack_is_told_when_nothing_else_lacks() -> None:
    assert lacking_tiers([A, REPLICA, B], GROUPS) == ["broker-a: there is no such bucket"]
    assert lacking_tiers([replace(A, tier=tier(None)), REPLICA, B], GROUPS) == []
    assert lacking_tiers([replace(A, tier=None), REPLICA, B], GROUPS) == []


@pytest.mark.parametrize(
    "states",
    [
        [A, None, B],
        [A, REPLICA],
        [A, replace(REPLICA, last_error="the disk fails"), B],
        [A, replace(REPLICA, controllers_error="they do not answer"), B],
        [replace(A, sync_state_set=(1,)), REPLICA, B],
        [replace(A, quorum=None), REPLICA, B],
        [replace(A, quorum=QuorumState(kind="all", refused=True)), REPLICA, B],
        [replace(A, quorum=QuorumState(kind="all", missing=(MissingState(broker_id=2, reason="away"),))), REPLICA, B],
        [replace(A, role=BrokerRole.REPLICA), REPLICA, B],
    ],
)
def test_while_anything_else_lacks_the_start_goes_on_to_wait(states: list[BrokerState | None]) -> None:
    assert lacking_tiers(states, GROUPS) == ()


async def test_it_waits_until_all_is_well_or_a_tier_alone_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([OSError(), {"status": Health.DOWN}, {"status": Health.DEGRADED}, {"status": Health.DEGRADED}])
    states = iter([[None, REPLICA, B], [A, REPLICA, B]])
    now: list[BrokerState | None] = []

    async def get(_address: str, _path: str) -> Any:
        answer = next(said)
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def told(_address: str) -> BrokerState | None:
        if not now:
            now.extend(next(states))
        return now.pop(0)

    monkeypatch.setattr(healthy.probes, "http_get_json", get)
    monkeypatch.setattr(healthy.probes, "told_state", told)
    monkeypatch.setattr(healthy, "_EVERY_S", 0)
    brokers = {name: [SimpleNamespace(address=f"{name}:{n}") for n in range(count)] for name, count in GROUPS.items()}
    plan: Any = SimpleNamespace(http="127.0.0.1:1", broker_groups=brokers)
    assert await wait_healthy(plan) == ["broker-a: there is no such bucket"]
    said = iter([{"status": Health.HEALTHY}])
    assert await wait_healthy(plan) == ()
