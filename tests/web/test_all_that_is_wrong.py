"""A refusal over REST names all that is wrong with the input at once: its shape, and the rules that the rest of it breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.web.fakes import FakeCluster, RecordingQueue
from webapp.accounts.permissions import Actor
from webapp.audit.models import AuditEntry
from webapp.errors import Problem
from webapp.operations.models import Operation
from webapp.operations.registry import KINDS

LONG = "settlements-of-the-second-warehouse-in-the-north-by-day-and-currency_" + "x" * 60


@pytest.mark.parametrize(
    ("address", "body", "wrong"),
    [
        ("topics", {"name": LONG, "queues": "many", "perm": 7}, {"name", "queues", "perm"}),
        ("topics", {"queues": 0, "type": "LITE"}, {"name", "queues", "type"}),
        (
            "consumer-groups",
            {"name": LONG, "fifo": "perhaps", "retry_max_times": -1},
            {"name", "fifo", "retry_max_times"},
        ),
        ("topics/orders/messages", {"tag": "a|b", "properties": "none", "keys": "x" * 1001}, {"body", "tag", "keys"}),
        ("elections", {"broker_id": "two", "group": LONG, "cluster": ""}, {"broker_id", "group", "cluster"}),
        ("report-schedules", {"report": "throughput", "cron": "soon", "enabled": 7}, {"name", "cron", "enabled"}),
    ],
)
def test_what_is_wrong_in_shape_and_by_rule_is_said_at_once(
    operator: Client, address: str, body: dict[str, Any], wrong: set[str]
) -> None:
    response = operator.post(f"/api/v1/{address}", body, content_type="application/json")
    assert response.status_code == 400
    assert wrong <= response.json()["errors"].keys()
    assert not RecordingQueue.sent
    assert not FakeCluster.sent
    assert not Operation.objects.exists()


def test_a_change_names_all_that_is_wrong_too(operator: Client) -> None:
    response = operator.patch(
        "/api/v1/topics/orders", {"queues": 4000, "perm": "all", "type": "NONE"}, content_type="application/json"
    )
    assert response.json()["errors"].keys() == {"queues", "perm", "type"}


def test_a_field_of_a_wrong_shape_is_named_once(operator: Client) -> None:
    response = operator.post("/api/v1/topics", {"name": ["a"]}, content_type="application/json")
    assert response.json()["errors"] == {"name": ["Not a valid string."]}


def test_what_is_no_object_is_refused_as_such(operator: Client) -> None:
    response = operator.post("/api/v1/topics", ["name"], content_type="application/json")
    assert response.status_code == 400


def test_who_may_not_ask_hears_that_and_not_the_rules(viewer: Client) -> None:
    response = viewer.post("/api/v1/topics", {"queues": "many"}, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (403, "permission-denied")
    assert AuditEntry.objects.get().outcome == "refused"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_change_judges_what_says_nothing(kind: str, actor: Callable[[str], Actor]) -> None:
    with pytest.raises(Problem):
        KINDS[kind].validate(actor("admin"), {})
