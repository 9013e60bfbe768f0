"""Half messages that were given up: the page, the dialog, REST, and who may end one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import Client
from django.utils.html import escape

from remoting.errors import ConnectionLost
from tests.web import fakes
from tests.web.fakes import FakeCluster, RecordingQueue
from webapp.audit.models import AuditEntry

LIST = "/api/v1/transactions/given-up"
DECISION = {"group": "broker-a", "offset": 7, "decision": "commit"}


def test_they_are_listed_with_their_age_why_and_who_decided(viewer: Client) -> None:
    document = viewer.get(f"{LIST}?group=broker-a&count=2").json()
    assert [(each["offset"], each["decision"], each["checks"]) for each in document["items"]] == [
        ("7", None, "15"),
        ("4", "commit", "15"),
    ]
    rest = viewer.get(f"{LIST}?group=broker-a&before={document['before']}").json()
    assert [each["offset"] for each in rest["items"]] == ["0"]
    assert rest["before"] is None
    page = viewer.get("/transactions/").content.decode()
    assert "15 checks in vain" in page
    assert "ORDER-7" in page
    assert "by ann" in page


@pytest.mark.parametrize("query", ["", "?group=broker-a&before=x", "?group=broker-a&count=101"])
def test_what_is_asked_for_wrongly_is_refused(viewer: Client, query: str) -> None:
    assert viewer.get(LIST + query).status_code == 400


def test_a_cluster_that_does_not_answer_is_told(viewer: Client) -> None:
    FakeCluster.error = ConnectionLost("nobody answers")
    assert viewer.get(f"{LIST}?group=broker-a").status_code == 503
    assert viewer.get("/transactions/").status_code == 503


def test_ending_one_is_an_audited_operation_of_operators(operator: Client, viewer: Client) -> None:
    assert viewer.post(LIST, DECISION, content_type="application/json").status_code == 403
    assert not RecordingQueue.sent
    response = operator.post(LIST, DECISION, content_type="application/json")
    assert response.status_code == 202, response.json()
    document = response.json()
    assert (document["kind"], document["target"]) == ("transaction.decide", "broker-a/7/commit")
    assert document["parameters"]["decided_by"] == "operator"
    assert RecordingQueue.sent == [("tasks.operations.run", (document["id"],))]
    assert [entry.action for entry in AuditEntry.objects.order_by("pk")] == ["transaction.decide"] * 2


@pytest.mark.parametrize(
    ("change", "status"),
    [({"decision": "resumed"}, 400), ({"offset": -1}, 400), ({"group": "nobody"}, 404), ({"group": ""}, 400)],
)
def test_mistakes_are_refused_before_anything_is_queued(
    operator: Client, change: dict[str, object], status: int
) -> None:
    response = operator.post(LIST, {**DECISION, **change}, content_type="application/json")
    assert response.status_code == status, response.json()
    assert not RecordingQueue.sent


def test_the_dialog_says_what_it_means_and_is_for_those_who_may(operator: Client, viewer: Client) -> None:
    address = "/transactions/decide?group=broker-a&offset=7&decision=rollback"
    assert viewer.get(address).status_code == 403
    assert b"/transactions/decide" not in viewer.get("/transactions/").content
    assert b"/transactions/decide" in operator.get("/transactions/").content
    dialog = operator.get(address, headers={"HX-Request": "true"}).content.decode()
    assert "It is never delivered" in dialog
    assert 'value="rollback"' in dialog
    done = operator.get("/transactions/decide?group=broker-a&offset=4&decision=rollback").content.decode()
    assert "ann decided commit about it already" in done
    assert operator.get("/transactions/decide?group=broker-a&offset=5&decision=rollback").status_code == 404
    assert operator.get("/transactions/decide?group=broker-a&offset=x&decision=rollback").status_code == 400
    sent = operator.post("/transactions/decide", {"group": "broker-a", "offset": "7", "decision": "rollback"})
    assert sent.status_code == 302
    assert len(RecordingQueue.sent) == 1


HOSTILE = [
    '"><script>alert(1)</script>',
    "' onmouseover='alert(1)",
    "\u202egnitirw morf tfel",
    "\U0001f9e8" * 90,
    "x" * 90,
    "{{ 7 }}{% now %}",
    "a\tb\r\nSet-Cookie: c=d",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_clients_have_chosen_are_shown_as_text(
    operator: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Keys, groups and topics of a half message are its producer's words, whoever that is."""
    hostile = replace(fakes.GIVEN_UP[0], key=name, producer_group=name, topic=name)
    monkeypatch.setattr(fakes, "GIVEN_UP", (hostile,))
    dialog = "/transactions/decide?group=broker-a&offset=7&decision=commit"
    for address in ("/transactions/", dialog):
        text = operator.get(address).content.decode()
        assert escape(name)[:40] in text
        assert "<script>alert" not in text
        assert "onmouseover='" not in text
        assert "{{ 7 }}" not in name or "{{ 7 }}" in text, "it is no template"
    assert operator.get(f"{LIST}?group=broker-a").json()["items"][0]["key"] == name


def test_nobody_ends_one_without_the_right_or_in_the_name_of_another(
    client: Client, viewer: Client, operator: Client
) -> None:
    for sender, status in ((client, 401), (viewer, 403)):
        assert sender.post(LIST, DECISION, content_type="application/json").status_code == status
    assert client.get(f"{LIST}?group=broker-a").status_code == 401
    assert client.post("/transactions/decide", {**DECISION}).status_code in (302, 401)
    assert viewer.post("/transactions/decide", {**DECISION}).status_code == 403
    forged = operator.post(LIST, {**DECISION, "decided_by": "ann"}, content_type="application/json")
    assert forged.json()["parameters"]["decided_by"] == "operator"
    RecordingQueue.sent.clear()
    raw = {"kind": "transaction.decide", "parameters": DECISION}
    for address in ("/api/v1/operations", "/api/v1/operations/"):
        assert viewer.post(address, raw, content_type="application/json").status_code in (403, 404, 405)
    assert not RecordingQueue.sent
