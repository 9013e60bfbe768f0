"""The one way to change anything: permission, rules, audit row, operation row, queue; repeats, dry runs, waiting, cancelling."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from tests.web.fakes import RecordingQueue
from webapp.accounts.permissions import Actor
from webapp.audit.models import AuditEntry
from webapp.errors import Conflict, InvalidInput, PermissionRefused, Unavailable
from webapp.lifecycle import State
from webapp.operations import progress, services
from webapp.operations.models import Operation
from webapp.operations.registry import KINDS

NEW = {"name": "payments", "type": "NORMAL", "queues": 4}


def test_a_change_leaves_an_audit_row_an_operation_and_a_task(operator: Client) -> None:
    response = operator.post("/api/v1/topics", NEW, content_type="application/json")
    assert response.status_code == 202
    document = response.json()
    operation = Operation.objects.get()
    assert response["Location"] == f"/api/v1/operations/{operation.pk}"
    assert (document["state"], document["kind"], document["target"]) == ("queued", "topic.create", "payments")
    assert operation.parameters == {"name": "payments", "type": "NORMAL", "queues": 4, "perm": 6, "group": None}
    assert RecordingQueue.sent == [("tasks.operations.run", (str(operation.pk),))]
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, entry.action, entry.target, entry.outcome) == (
        "operator",
        "topic.create",
        "payments",
        "accepted",
    )
    assert entry.operation_id == str(operation.pk)


def test_a_refused_change_is_audited_and_does_nothing(viewer: Client) -> None:
    response = viewer.post("/api/v1/topics", NEW, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (403, "permission-denied")
    assert "operator" in response.json()["detail"]
    assert not Operation.objects.exists()
    assert not RecordingQueue.sent
    entry = AuditEntry.objects.get()
    assert (entry.actor_name, entry.target, entry.outcome) == ("viewer", "payments", "refused")


def test_a_dry_run_plans_and_leaves_no_trace(operator: Client) -> None:
    response = operator.post("/api/v1/topics?dry_run=true", NEW, content_type="application/json")
    document = response.json()
    assert (response.status_code, document["state"], document["id"]) == (200, "planned", None)
    assert document["plan"] == [{"node": "broker-a", "change": "create payments: 4 queues, NORMAL, read and write"}]
    assert not Operation.objects.exists()
    assert not AuditEntry.objects.exists()


def test_a_dry_run_refuses_what_the_change_would(operator: Client, viewer: Client) -> None:
    body = {**NEW, "queues": 0}
    assert operator.post("/api/v1/topics?dry_run=true", body, content_type="application/json").status_code == 400
    assert viewer.post("/api/v1/topics?dry_run=true", NEW, content_type="application/json").status_code == 403


def test_the_same_idempotency_key_finds_the_first(operator: Client) -> None:
    first = operator.post(
        "/api/v1/topics", NEW, content_type="application/json", headers={"Idempotency-Key": "k"}
    ).json()
    again = operator.post(
        "/api/v1/topics", NEW, content_type="application/json", headers={"Idempotency-Key": "k"}
    ).json()
    assert again["id"] == first["id"]
    assert len(RecordingQueue.sent) == 1
    assert AuditEntry.objects.count() == 1


def test_an_idempotency_key_is_for_one_request(operator: Client) -> None:
    operator.post("/api/v1/topics", NEW, content_type="application/json", headers={"Idempotency-Key": "k"})
    other = {**NEW, "name": "refunds"}
    response = operator.post("/api/v1/topics", other, content_type="application/json", headers={"Idempotency-Key": "k"})
    assert (response.status_code, response.json()["code"]) == (409, "idempotency-key-reused")


def test_idempotency_keys_of_two_people_are_apart(operator: Client, admin: Client) -> None:
    for client in (operator, admin):
        response = client.post("/api/v1/topics", NEW, content_type="application/json", headers={"Idempotency-Key": "k"})
        assert response.status_code == 202
    assert Operation.objects.count() == 2


@pytest.mark.parametrize("key", ["", "x" * 121])
def test_an_idempotency_key_has_bounds(operator: Client, key: str) -> None:
    response = operator.post("/api/v1/topics", NEW, content_type="application/json", headers={"Idempotency-Key": key})
    assert (response.status_code, response.json()["code"]) == (400, "invalid-idempotency-key")


def test_a_queue_that_does_not_answer_is_said_and_kept(operator: Client) -> None:
    RecordingQueue.broken = True
    response = operator.post("/api/v1/topics", NEW, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (503, "queue-unavailable")
    operation = Operation.objects.get()
    assert (operation.state, operation.error_code) == (State.FAILED, "queue-unavailable")


def test_a_client_may_wait_for_the_end(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def finish(self: RecordingQueue, name: str, operation_id: str) -> None:
        progress.start(operation_id)
        progress.node(operation_id, "broker-a", "CONFIRMED")
        progress.succeed(operation_id, {"queues": 4})

    monkeypatch.setattr(RecordingQueue, "send", finish)
    response = operator.post("/api/v1/topics", NEW, content_type="application/json", headers={"Prefer": "wait=5"})
    document = response.json()
    assert (response.status_code, document["state"]) == (200, "succeeded")
    assert document["nodes"] == [{"node": "broker-a", "outcome": "CONFIRMED", "detail": ""}]


def test_cancelling_what_nobody_has_taken_ends_it(operator: Client) -> None:
    identifier = operator.post("/api/v1/topics", NEW, content_type="application/json").json()["id"]
    assert operator.post(f"/api/v1/operations/{identifier}/cancel").json()["state"] == "cancelled"
    again = operator.post(f"/api/v1/operations/{identifier}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "operation-finished")


def test_cancelling_needs_the_permission_of_the_change(operator: Client, viewer: Client) -> None:
    identifier = operator.post("/api/v1/topics", NEW, content_type="application/json").json()["id"]
    assert viewer.post(f"/api/v1/operations/{identifier}/cancel").status_code == 403
    assert Operation.objects.get().state == State.QUEUED


def test_the_list_names_changes_as_people_do(operator: Client) -> None:
    operator.post("/api/v1/topics", NEW, content_type="application/json")
    Operation.objects.create(kind="of.another.version", target="x", requested_by_name="somebody")
    page = operator.get("/operations/").content.decode().partition("<tbody>")[2]
    assert ">Create topic</a>" in page
    assert ">of.another.version</a>" in page


def test_the_receipt_shows_each_node(operator: Client) -> None:
    response = operator.post("/topics/new", {**NEW, "perm": 6})
    operation = Operation.objects.get()
    assert response["Location"] == f"/operations/{operation.pk}/"
    progress.start(operation.pk)
    progress.node(operation.pk, "broker-a", "UNKNOWN", "no answer within 3 s")
    progress.fail(operation.pk, "unknown-outcome", "broker-a did not answer; look at the topic before trying again")
    text = operator.get(response["Location"]).content.decode()
    assert "no answer within 3 s" in text
    assert "look at the topic before trying again" in text


def test_a_later_word_about_a_node_replaces_the_earlier(db: None) -> None:
    operation = Operation.objects.create(kind="topic.create", requested_by_name="x", state=State.RUNNING)
    progress.node(operation.pk, "broker-a", "UNKNOWN", "lost")
    progress.node(operation.pk, "broker-b", "CONFIRMED")
    progress.node(operation.pk, "broker-a", "CONFIRMED")
    operation.refresh_from_db()
    assert {node["node"]: node["outcome"] for node in operation.nodes} == {
        "broker-a": "CONFIRMED",
        "broker-b": "CONFIRMED",
    }


@pytest.mark.django_db(transaction=True)
def test_two_requests_with_one_key_at_the_same_moment_make_one_operation(actor: Callable[[str], Actor]) -> None:
    who = actor("operator")
    barrier, found, errors = threading.Barrier(2), [], []

    def ask() -> None:
        try:
            barrier.wait(60)
            found.append(services.submit(who, "topic.create", NEW, idempotency_key="k").operation.pk)
        except Conflict as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(found)) == 1
    assert len(RecordingQueue.sent) == 1
    assert Operation.objects.count() == AuditEntry.objects.count() == 1


def test_every_kind_names_a_known_permission_and_refuses_nobody_else(actor: Callable[[str], Actor]) -> None:
    for kind in KINDS.values():
        with pytest.raises(PermissionRefused):
            services.submit(actor(""), kind.name, {})


@given(
    st.dictionaries(st.text(max_size=10), st.none() | st.booleans() | st.integers() | st.text(max_size=20), max_size=6)
)
def test_no_rule_breaks_on_strange_values(parameters: dict[str, object]) -> None:
    from webapp.rules import Rules

    rules = Rules(parameters)
    for name in [*parameters, "missing"]:
        rules.text(name, most=10)
        rules.name(name, most=10, what="thing")
        rules.integer(name, least=0, most=10)
        rules.choice(name, (1, 2))
        rules.flag(name)
        rules.time_zone(name)
    with pytest.raises(InvalidInput) as error:
        rules.finish()
    assert all(error.value.fields.values())


def test_an_unreachable_queue_of_a_page_is_a_page(operator: Client) -> None:
    RecordingQueue.broken = True
    response = operator.post("/topics/new", {**NEW, "perm": 6})
    assert response.status_code == Unavailable.status
    assert b"task queue" in response.content
    assert b'value="payments"' in response.content, "what was typed is still there"
