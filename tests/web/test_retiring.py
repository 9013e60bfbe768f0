"""Retiring a broker group in the console: what would be done is shown first, and who may not, or cannot, is told why."""

from __future__ import annotations

import pytest
from django.test import Client

from remoting.facts.broker_state import BrokerState, TimerState, TopicState
from remoting.facts.tier_state import TierState
from remoting.facts.words import BrokerRole, TierCondition
from webapp.operations.models import Operation

_ADDRESS = "/broker-groups/retire?cluster=DefaultCluster&group=broker-a"
_TIER = TierState(url="memory:///", condition=TierCondition.OPEN, waiting_messages=30)


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> list[BrokerState | None]:
    """What the group's master tells, once it is put in here."""
    told: list[BrokerState | None] = []
    monkeypatch.setattr("webapp.gateway.master_state", lambda name: told[-1])
    return told


def _state(tier: TierState | None) -> BrokerState:
    return BrokerState(
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        broker_id=1,
        role=BrokerRole.MASTER,
        master_epoch=3,
        topics=(TopicState(name="orders", perm=6),),
        timers=TimerState(waiting=3),
        tier=tier,
    )


def test_what_would_be_done_is_shown_and_done_when_it_is_confirmed(
    admin: Client, master: list[BrokerState | None]
) -> None:
    master.append(_state(_TIER))
    page = admin.get(_ADDRESS).content.decode()
    for step in ("makes 1 topic read-only", "messages: 3 waiting for a time", "messages: 30 not uploaded"):
        assert step in page
    assert '<button class="button danger">' in page
    assert not Operation.objects.exists(), "asking changes nothing"
    answer = admin.post("/broker-groups/retire", {"cluster": "DefaultCluster", "group": "broker-a"})
    operation = Operation.objects.get()
    assert (answer.status_code, operation.kind) == (302, "broker-group.retire")
    assert str(operation.pk) in answer["Location"]


@pytest.mark.parametrize(
    ("state", "sentence"),
    [(None, "broker-a has no master now"), (_state(None), "broker-a has no tier")],
    ids=["no master", "no tier"],
)
def test_a_group_that_cannot_be_retired_says_why(
    admin: Client, master: list[BrokerState | None], state: BrokerState | None, sentence: str
) -> None:
    master.append(state)
    page = admin.get(_ADDRESS).content.decode()
    assert sentence in page
    assert '<button class="button danger">' not in page
    refused = admin.post("/broker-groups/retire", {"cluster": "DefaultCluster", "group": "broker-a"})
    assert sentence in refused.content.decode()
    assert not Operation.objects.exists()


def test_who_may_only_look_may_not(client: Client, viewer: Client, master: list[BrokerState | None]) -> None:
    master.append(_state(_TIER))
    assert viewer.get(_ADDRESS).status_code == 403
    assert viewer.post("/broker-groups/retire", {"cluster": "DefaultCluster", "group": "broker-a"}).status_code == 403
    assert client.get(_ADDRESS).status_code == 302, "to the log-in"
