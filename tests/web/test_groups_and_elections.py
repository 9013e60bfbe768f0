"""Consumer groups and elections: rules, eligibility, the dialog."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.web.fakes import MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.operations.models import Operation

ELECTION = {"cluster": "DefaultCluster", "group": "broker-a", "broker_id": 2}


@pytest.mark.parametrize(
    ("body", "field", "rule"),
    [
        ({"name": "x" * 121}, "name", "1 to 120 characters"),
        ({"name": "a/b"}, "name", "letters, digits"),
        ({"name": "TOOLS_CONSUMER"}, "name", "reserved"),
        ({"name": "ok", "retry_max_times": -1}, "retry_max_times", "from 0 to 1000"),
    ],
)
def test_bad_groups_are_refused_with_the_rule(operator: Client, body: dict[str, Any], field: str, rule: str) -> None:
    response = operator.post("/api/v1/consumer-groups", body, content_type="application/json")
    assert response.status_code == 400
    assert rule in " ".join(response.json()["errors"][field])


def test_a_group_is_created_by_form_and_by_rest(operator: Client) -> None:
    operator.post("/groups/new", {"name": "mail", "fifo": "on", "retry_max_times": "3"})
    assert Operation.objects.get().parameters == {
        **{"name": "mail", "fifo": True, "retry_max_times": 3},
        "order_scope": "MESSAGE_GROUP",
    }
    operator.post("/groups/new", {"name": "sms", "retry_max_times": "3"})
    assert Operation.objects.get(target="sms").parameters["fifo"] is False
    response = operator.post("/api/v1/consumer-groups", {"name": "billing"}, content_type="application/json")
    assert response.json()["code"] == "group-exists"


def test_a_group_with_members_is_not_deleted(operator: Client) -> None:
    response = operator.delete("/api/v1/consumer-groups/billing")
    assert (response.status_code, response.json()["code"]) == (409, "group-has-members")
    assert operator.delete("/api/v1/consumer-groups/audit_log").status_code == 202
    assert operator.delete("/api/v1/consumer-groups/nobody").status_code == 404


def test_unknown_lag_is_a_dash_never_zero(viewer: Client) -> None:
    text = viewer.get("/groups/audit_log/").content.decode()
    assert 'class="unknown"' in text


def test_a_broker_stands_in_one_row_under_all_of_its_names(viewer: Client) -> None:
    """Whoever wants to kill the master must not have to guess which process it is."""
    page = viewer.get("/").content.decode()
    (row,) = re.findall(r'<tr data-key="replica-broker-a-2".*?</tr>', page, re.DOTALL)
    cells = [re.sub(r"<.*?>|\s+", " ", cell).split() for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)]
    assert cells[:5] == [["2"], ["replica"], ["broker-a-1"], ["4002"], ["127.0.0.1:10921"]]
    items = viewer.get("/api/v1/groups/DefaultCluster/broker-a/replicas").json()["items"]
    shown = [(each["id"], each["role"], each["process"], each["pid"], each["address"]) for each in items[:2]]
    assert shown == [
        (1, "master", "broker-a-2", 4003, "127.0.0.1:10911"),
        (2, "replica", "broker-a-1", 4002, "127.0.0.1:10921"),
    ]


def test_eligibility_is_listed_with_reasons(viewer: Client) -> None:
    items = viewer.get("/api/v1/elections?group=broker-a").json()["items"]
    assert [(each["broker_id"], each["eligible"]) for each in items[0]["candidates"]] == [
        (1, False),
        (2, True),
        (3, False),
    ]
    assert items[0]["candidates"][2]["reason"] == "not in the sync-state set"
    assert viewer.get("/api/v1/elections?group=other").json()["items"] == []


def test_an_election_is_an_operation(operator: Client) -> None:
    response = operator.post("/api/v1/elections", ELECTION, content_type="application/json")
    assert response.status_code == 202
    document = response.json()
    assert document["target"] == "DefaultCluster/broker-a/2"
    assert document["plan"][0] == {"node": "replica 2", "change": "becomes master with epoch 4"}
    assert RecordingQueue.sent == [("tasks.operations.run", (document["id"],))]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({**ELECTION, "broker_id": 1}, 409, "already-master"),
        ({**ELECTION, "broker_id": 3}, 409, "not-eligible"),
        ({**ELECTION, "broker_id": 9}, 404, "replica-not-found"),
        ({**ELECTION, "group": "broker-z"}, 404, "group-not-found"),
    ],
)
def test_elections_that_cannot_be_are_refused_with_the_reason(
    operator: Client, body: dict[str, Any], status: int, code: str
) -> None:
    response = operator.post("/api/v1/elections", body, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert not RecordingQueue.sent


def test_without_a_snapshot_nobody_is_elected(operator: Client) -> None:
    MemorySnapshots.put(None)
    snapshot.current(fresh=True)
    assert operator.post("/api/v1/elections", ELECTION, content_type="application/json").status_code == 503


def test_the_dialog_shows_who_is_eligible_and_why(operator: Client) -> None:
    response = operator.get("/elections/new", ELECTION, headers={"HX-Request": "true"})
    text = response.content.decode()
    assert "<dialog" in text
    assert "<html" not in text
    assert "No acknowledged message is lost" in text
    assert "not in the sync-state set" in text
    assert "disabled>" not in text
    other = operator.get("/elections/new", {**ELECTION, "broker_id": 3}).content.decode()
    assert "is not eligible: not in the sync-state set" in other
    assert "disabled>" in other


def test_the_dialog_goes_on_to_the_operation(operator: Client) -> None:
    response = operator.post("/elections/new", ELECTION, headers={"HX-Request": "true"})
    operation = Operation.objects.get()
    assert f'data-operation-socket="{operation.pk}"' in response.content.decode()


def test_a_refusal_stays_in_the_dialog(operator: Client) -> None:
    MemorySnapshots.put(snapshot_document())
    page = operator.post("/elections/new", {**ELECTION, "broker_id": 3}, headers={"HX-Request": "true"})
    assert page.status_code == 200
    assert b"is not eligible" in page.content
    assert operator.post("/elections/new", {**ELECTION, "broker_id": 3}).status_code == 409


@pytest.fixture
def dead(console: None) -> None:
    """Replica 2 was killed; what the controllers said of it a moment ago is still there."""
    document = snapshot_document()
    document["groups"][0]["replicas"][1] |= {"alive": False, "role": "unreachable"}
    MemorySnapshots.put(document)
    snapshot.current(fresh=True)


def test_only_who_can_be_elected_is_offered(operator: Client) -> None:
    text = operator.get("/").content.decode()
    assert [number for number in (1, 2, 3) if f"broker_id={number}" in text] == [2]
    assert 'title="not in the sync-state set">not eligible' in text


@pytest.mark.usefixtures("dead")
def test_a_dead_replica_is_not_offered_and_is_refused_with_the_reason(operator: Client) -> None:
    assert "broker_id=" not in operator.get("/").content.decode()
    response = operator.post("/api/v1/elections", ELECTION, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (409, "not-eligible")
    assert response.json()["detail"].startswith("Replica 2 (broker-a-1) is not eligible: it is not alive")
    text = operator.get("/elections/new", ELECTION).content.decode()
    assert "is not eligible: it is not alive" in text
    assert "No acknowledged message is lost" not in text
    assert "disabled>" in text
    assert operator.post("/elections/new", ELECTION).status_code == 409
    assert not RecordingQueue.sent


@pytest.mark.usefixtures("dead")
def test_rest_lists_a_dead_replica_as_not_eligible(viewer: Client) -> None:
    candidates = viewer.get("/api/v1/elections").json()["items"][0]["candidates"]
    assert (candidates[1]["eligible"], candidates[1]["reason"][:15]) == (False, "it is not alive")


def test_the_form_of_a_group_keeps_its_ticks(operator: Client) -> None:
    text = operator.post("/groups/new", {"name": "a b", "fifo": "on", "retry_max_times": "3"}).content.decode()
    assert 'name="fifo" checked' in text
