"""Client users and permissions: pages, REST, who may, what is audited, and what the permissions decide."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from remoting.errors import ConnectionLost
from tests.web.fakes import FakeAccess, RecordingQueue
from webapp.audit.models import AuditEntry
from webapp.operations.models import Operation

SECRET = "a long secret key"
ALICE = {"name": "alice", "password": SECRET}
USERS = "/api/v1/client-users"


def post(client: Client, address: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = client.post(address, body, content_type="application/json")
    assert response.status_code == status, response.content
    document: dict[str, Any] = response.json()
    return document


def allow(client: Client, resource: str, *actions: str, decision: str = "Allow", status: int = 200) -> dict[str, Any]:
    body = {"resource": resource, "actions": list(actions), "decision": decision}
    response = client.put(f"{USERS}/alice/permissions", body, content_type="application/json")
    assert response.status_code == status, response.content
    document: dict[str, Any] = response.json()
    return document


def decided(client: Client, **question: str) -> dict[str, Any]:
    document: dict[str, Any] = client.get("/api/v1/access/explain", {"user": "alice", **question}).json()
    return document


def test_a_user_comes_changes_and_goes_by_rest(admin: Client) -> None:
    operation = post(admin, USERS, ALICE)
    assert (operation["state"], operation["result"]) == ("succeeded", {"outcome": "CONFIRMED"})
    assert FakeAccess.passwords == {"alice": SECRET}
    assert admin.get(USERS).json()["items"] == [
        {"name": "alice", "type": "Normal", "status": "enable", "permissions": []}
    ]
    assert post(admin, USERS, ALICE, 409)["code"] == "client-user-exists"
    response = admin.patch(f"{USERS}/alice", {"status": "disable"}, content_type="application/json")
    assert response.status_code == 200
    assert admin.get(f"{USERS}/alice").json()["status"] == "disable"
    assert FakeAccess.passwords == {"alice": SECRET}
    assert admin.delete(f"{USERS}/alice").status_code == 200
    assert admin.get(f"{USERS}/alice").status_code == 404
    assert admin.delete(f"{USERS}/alice").status_code == 404


def test_the_secret_is_nowhere_but_with_the_cluster(admin: Client) -> None:
    post(admin, USERS, ALICE)
    admin.post("/clients/alice/", {"password": "another long secret"})
    operations = Operation.objects.order_by("created_at")
    assert [each.parameters["password_set"] for each in operations] == [True, True]
    kept = str(list(operations.values())) + str(list(AuditEntry.objects.values()))
    assert SECRET not in kept
    assert "another long secret" not in kept
    assert SECRET not in admin.get("/clients/alice/").content.decode()
    assert RecordingQueue.sent == []
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {"client-user.create", "client-user.update"}


@pytest.mark.parametrize(
    ("body", "field", "rule"),
    [
        ({"name": "a b", "password": SECRET}, "name", "1 to 64 letters"),
        ({"name": "alice", "password": "short"}, "password", "8 to 256 bytes"),
        ({"name": "alice", "password": "x" * 257}, "password", "8 to 256 bytes"),
    ],
)
def test_bad_users_are_refused_with_the_rule(admin: Client, body: dict[str, Any], field: str, rule: str) -> None:
    assert rule in " ".join(post(admin, USERS, body, 400)["errors"][field])
    assert FakeAccess.passwords == {}


def test_permissions_are_set_replaced_and_removed(admin: Client) -> None:
    post(admin, USERS, ALICE)
    allow(admin, "Topic:orders", "Pub", "Sub")
    allow(admin, "Topic:orders", "Pub")
    allow(admin, "*", "All", decision="Deny")
    assert [
        (each["resource"], each["actions"], each["decision"])
        for each in admin.get(f"{USERS}/alice").json()["permissions"]
    ] == [("*", ["All"], "Deny"), ("Topic:orders", ["Pub"], "Allow")]
    post(admin, f"{USERS}/alice/permissions/remove", {"resource": "*"})
    assert [each["resource"] for each in admin.get(f"{USERS}/alice").json()["permissions"]] == ["Topic:orders"]
    assert "resource is" in " ".join(allow(admin, "Disk:a", "Pub", status=400)["errors"]["resource"])
    assert "actions" in allow(admin, "Topic:a", status=400)["errors"]
    body = {"resource": "*", "actions": ["Pub"], "sources": ["nowhere"]}
    response = admin.put(f"{USERS}/alice/permissions", body, content_type="application/json")
    assert "IP address" in " ".join(response.json()["errors"]["sources"])


def test_decisions_are_explained(operator: Client, admin: Client) -> None:
    post(admin, USERS, ALICE)
    allow(admin, "Topic:order*", "Pub")
    allow(admin, "Topic:orders-old", "Pub", decision="Deny")
    allowed = decided(operator, resource="orders", action="Pub")
    assert allowed["allowed"]
    assert allowed["entry"]["resource"] == "Topic:order*"
    refused = decided(operator, resource="orders-old", action="Pub")
    assert not refused["allowed"]
    assert refused["entry"]["decision"] == "Deny"
    nothing = decided(operator, resource="orders", action="Sub", source="10.0.0.1")
    assert (nothing["allowed"], nothing["entry"]) == (False, None)
    assert "10.0.0.1" in nothing["reason"]
    assert "errors" in decided(operator, resource="", action="Pub")
    assert "action" in decided(operator, resource="orders", action="Any")["errors"]
    page = operator.get("/clients/alice/", {"type": "Topic", "resource": "orders-old", "action": "Pub", "source": ""})
    assert "Refused" in page.content.decode()


def test_forms(admin: Client) -> None:
    response = admin.post("/clients/", {"name": "alice", "type": "Normal", "password": SECRET})
    assert (response.status_code, response["Location"]) == (302, "/clients/alice/")
    admin.post(
        "/clients/alice/permissions", {"resource": "Topic:orders", "actions": ["Pub"], "sources": "10.0.0.0/8, ::1"}
    )
    text = admin.get("/clients/alice/").content.decode()
    assert "Topic:orders" in text
    assert "10.0.0.0/8, ::1" in text
    admin.post("/clients/alice/permissions/remove", {"resource": "Topic:orders", "policy": "Custom"})
    assert "nothing is allowed" in admin.get("/clients/alice/").content.decode()
    broken = admin.post("/clients/alice/permissions", {"resource": "nonsense", "actions": ["Pub"]})
    assert broken.status_code == 400
    assert "a resource is" in broken.content.decode()
    assert admin.get("/clients/nobody/").status_code == 404
    unsure = admin.post("/clients/alice/delete", {"confirmation": "bob"})
    assert unsure.status_code == 400
    assert "must be the name, alice" in unsure.content.decode()
    assert admin.post("/clients/alice/delete", {"confirmation": "alice"}).status_code == 302
    assert "No client users yet" in admin.get("/clients/").content.decode()


def test_who_may(viewer: Client, operator: Client, admin: Client, anonymous: Client) -> None:
    post(admin, USERS, ALICE)
    assert viewer.get(USERS).status_code == viewer.get("/clients/").status_code == 403
    assert viewer.get("/api/v1/access/explain", {"user": "alice", "resource": "a"}).status_code == 403
    assert anonymous.get(USERS).status_code == 401
    assert operator.get(USERS).status_code == operator.get("/clients/").status_code == 200
    post(operator, USERS, {"name": "eve", "password": SECRET}, 403)
    assert operator.post("/clients/alice/delete").status_code == 403
    assert operator.delete(f"{USERS}/alice").status_code == 403
    assert "New client user" not in operator.get("/clients/").content.decode()
    assert [each["name"] for each in admin.get(USERS).json()["items"]] == ["alice"]


def test_a_silent_cluster_is_said_so(admin: Client, operator: Client) -> None:
    FakeAccess.error = ConnectionLost("no controller answers")
    response = operator.get(USERS)
    assert (response.status_code, response.json()["code"]) == (503, "cluster-unavailable")
    assert operator.get("/clients/").status_code == 503
    post(admin, USERS, ALICE, 503)


def test_a_dry_run_plans_and_changes_nothing(admin: Client) -> None:
    document = post(admin, f"{USERS}?dry_run=true", ALICE)
    assert document["state"] == "planned"
    assert document["plan"] == [{"node": "controllers", "change": "create alice"}]
    assert FakeAccess.passwords == {}
    assert SECRET not in str(document)


def test_a_refused_form_keeps_what_was_ticked_and_chosen(admin: Client) -> None:
    admin.post("/clients/", {"name": "alice", "type": "Normal", "password": "secret-key-1"})
    given = {"resource": "nonsense", "actions": ["Pub", "Get"], "decision": "Deny", "policy": "Default"}
    text = admin.post("/clients/alice/permissions", given).content.decode()
    ticked = re.findall(r'name="actions" value="(\w+)" checked', text)
    assert ticked == ["Pub", "Get"]
    assert "<option selected>Deny</option>" in text
    assert "<option selected>Default</option>" in text
    text = admin.post("/clients/alice/", {"type": "Super", "status": "disable", "password": "short"}).content.decode()
    assert "<option selected>Super</option>" in text
    assert "<option selected>disable</option>" in text
