"""The group of controllers in the console: who may change it, what is refused at once, dialogs, and the command line."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from remoting.errors import ConnectionLost
from tests.web.fakes import FakeCluster, RecordingQueue
from webapp.api import client
from webapp.audit.models import AuditEntry
from webapp.operations.models import Operation

MEMBERS = "/api/v1/controllers/members"
NEW = {"id": "n4", "address": "127.0.0.1:9880"}


def test_members_are_listed_as_the_leader_sees_them(viewer: Client) -> None:
    document = viewer.get(MEMBERS).json()
    assert [(each["id"], each["role"], each["behind"]) for each in document["items"]][2:] == [
        ("n2", "voter", "0"),
        ("n3", "learner", "7"),
    ]
    assert (document["leader_id"], document["retired"]) == ("n0", ["n9"])
    FakeCluster.error = ConnectionLost("nobody answers")
    assert viewer.get(MEMBERS).status_code == 503


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        ("post", MEMBERS, NEW, "controller.add"),
        ("post", f"{MEMBERS}/n3/promote", None, "controller.promote"),
        ("delete", f"{MEMBERS}/n2", None, "controller.remove"),
        ("put", "/api/v1/controllers/leader", {"id": "n1"}, "controller.transfer"),
    ],
)
def test_changes_are_operations_of_administrators(
    admin: Client, operator: Client, method: str, path: str, body: dict[str, Any] | None, kind: str
) -> None:
    assert getattr(operator, method)(path, body, content_type="application/json").status_code == 403
    assert not RecordingQueue.sent
    response = getattr(admin, method)(path, body, content_type="application/json")
    assert response.status_code == 202, response.json()
    document = response.json()
    assert document["kind"] == kind
    assert document["plan"][0]["node"] == document["target"]
    assert RecordingQueue.sent == [("tasks.operations.run", (document["id"],))]
    assert [entry.action for entry in AuditEntry.objects.order_by("pk")][-2:] == [kind, kind]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("post", MEMBERS, {**NEW, "id": "n1"}, 409, "controller-exists"),
        ("post", MEMBERS, {**NEW, "id": "n9"}, 409, "controller-retired"),
        ("post", MEMBERS, {**NEW, "id": "n 4"}, 400, "invalid-input"),
        ("post", MEMBERS, {**NEW, "address": "nowhere"}, 400, "invalid-input"),
        ("post", MEMBERS, {**NEW, "address": "host:99999"}, 400, "invalid-input"),
        ("post", f"{MEMBERS}/n1/promote", None, 409, "not-a-learner"),
        ("post", f"{MEMBERS}/n7/promote", None, 404, "controller-not-found"),
        ("delete", f"{MEMBERS}/n7", None, 404, "controller-not-found"),
        ("put", "/api/v1/controllers/leader", {"id": "n0"}, 409, "already-leader"),
        ("put", "/api/v1/controllers/leader", {"id": "n3"}, 409, "not-a-voter"),
    ],
)
def test_mistakes_are_refused_before_anything_is_queued(
    admin: Client, method: str, path: str, body: dict[str, Any] | None, status: int, code: str
) -> None:
    response = getattr(admin, method)(path, body, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert not RecordingQueue.sent


def test_buttons_and_dialogs_are_for_those_who_may(admin: Client, viewer: Client) -> None:
    assert b"/controllers/remove" not in viewer.get("/").content
    page = admin.get("/").content.decode()
    assert 'href="/controllers/add"' in page
    assert 'href="/controllers/transfer?id=n1"' in page
    assert 'href="/controllers/transfer?id=n0"' not in page, "it leads already"
    assert viewer.get("/controllers/remove?id=n1").status_code == 403
    dialog = admin.get("/controllers/remove?id=n1", headers={"HX-Request": "true"}).content.decode()
    assert "<dialog" in dialog
    assert "never used again" in dialog
    assert admin.get("/controllers/explode").status_code == 404


def test_a_dialog_goes_on_to_the_operation_or_says_why_not(admin: Client) -> None:
    answer = admin.post("/controllers/add", {**NEW, "address": "nowhere"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert "write host:port" in answer.content.decode()
    assert admin.post("/controllers/promote", {"id": "n1"}).status_code == 409
    answer = admin.post("/controllers/add", NEW, headers={"HX-Request": "true"})
    assert f'data-operation-socket="{Operation.objects.get().pk}"' in answer.content.decode()


class _Console:
    """The REST API as the commands see it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        monkeypatch.setattr(client, "call", self.call)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.append((method, path, body))
        if method == "GET":
            items = [
                {"id": "n0", "role": "voter", "leader": True, "address": "h:1", "alive": True, "behind": "0"},
                {"id": "n1", "role": "voter", "leader": False, "address": "h:2", "alive": False, "behind": "9"},
                {"id": "n3", "role": "learner", "leader": False, "address": "h:3", "alive": True, "behind": "7"},
            ]
            return {"items": items}
        return {"id": "1", "state": "succeeded", "nodes": [], "error": None}


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command("controller", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    console = _Console(monkeypatch)
    assert run("list").splitlines() == [
        "n0\tleader\th:1",
        "n1\tvoter\th:2\tnot heard",
        "n3\tlearner\th:3\t7 entries behind",
    ]
    assert "added n4" in run("add", "n4", "127.0.0.1:9880")
    assert "promoted n3" in run("promote", "n3")
    assert "n1 leads" in run("transfer", "n1")
    assert "removed n2" in run("remove", "n2")
    assert console.asked[1:] == [
        ("POST", "controllers/members", NEW),
        ("POST", "controllers/members/n3/promote", None),
        ("PUT", "controllers/leader", {"id": "n1"}),
        ("DELETE", "controllers/members/n2", None),
    ]
    with pytest.raises(CommandError):
        run("add", "n4")
