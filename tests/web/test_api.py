"""What every endpoint of the REST API has in common: authentication, problem documents, paging, its OpenAPI document."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import URLPattern
from rest_framework.views import APIView

from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.accounts.models import User
from webapp.api.urls import urlpatterns
from webapp.operations.models import Operation

EXAMPLES = {
    "name": "orders",
    "cluster": "DefaultCluster",
    "group": "broker-a",
    "queue_id": "0",
    "offset": "0",
    "operation_id": "00000000-0000-0000-0000-000000000000",
    "run_id": "00000000-0000-0000-0000-000000000000",
    "schedule_id": "1",
    "token_id": "1",
    "user_id": "1",
    "right_id": "1",
}
OPEN = {"/api/v1/health"}


def endpoints() -> list[tuple[str, str]]:
    """(method, address) of every endpoint, with examples for its path parts."""
    found = []
    for pattern in urlpatterns:
        assert isinstance(pattern, URLPattern)
        route = str(pattern.pattern)
        if route.startswith("^"):
            route = "nowhere"
        address = "/api/v1/" + re.sub(r"<(?:\w+:)?(\w+)>", lambda match: EXAMPLES[match[1]], route)
        view: type[APIView] = pattern.callback.view_class
        found += [
            (method.upper(), address) for method in ("get", "post", "put", "patch", "delete") if hasattr(view, method)
        ]
    return found


@pytest.mark.parametrize(("method", "address"), [each for each in endpoints() if each[1] not in OPEN])
def test_refuses_anonymous_with_401_json(anonymous: Client, method: str, address: str) -> None:
    response = anonymous.generic(method, address, "{}", content_type="application/json")
    assert response.status_code == 401
    assert response["Content-Type"] == "application/problem+json"
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] == "not-authenticated"


@pytest.mark.parametrize(("method", "address"), [each for each in endpoints() if each[0] != "GET"])
def test_session_without_csrf_token_is_refused(users: dict[str, User], method: str, address: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(users["admin"])
    response = client.generic(method, address, "{}", content_type="application/json")
    assert response.status_code == 403
    assert "CSRF" in response.json()["detail"]


@pytest.mark.parametrize("zone", ["", "Asia/Tokyo"])
def test_times_are_utc_whatever_zone_the_person_at_the_browser_chose(users: dict[str, User], zone: str) -> None:
    """A session has its person's zone; a token has none, and both are asked for by the same scripts."""
    client = Client()
    client.force_login(users["operator"])
    User.objects.update(time_zone=zone)
    created = Operation.objects.create(kind="topic.create", target="orders", requested_by_name="operator").created_at
    (told,) = client.get("/api/v1/operations").json()["items"]
    assert datetime.fromisoformat(told["created_at"]) == created
    assert told["created_at"].endswith("Z")


@pytest.mark.parametrize(
    ("method", "address"), [each for each in endpoints() if each[0] == "GET" and each[1] not in OPEN]
)
def test_a_token_needs_the_scope_to_read(
    client: Client, bearer: Callable[..., dict[str, str]], method: str, address: str
) -> None:
    response = client.get(address, headers=bearer("admin", "elections.write"))
    if address.endswith("/users/me"):
        assert response.json() == {
            "username": "admin",
            "role": "admin",
            "permissions": ["elections.write"],
            "token": response.json()["token"],
        }
    elif address.endswith("nowhere"):
        assert response.status_code == 404
    else:
        assert response.status_code == 403
        assert response.json()["code"] == "scope-missing"


def test_health_says_one_word_to_anybody(anonymous: Client) -> None:
    assert anonymous.get("/api/v1/health").json() == {"status": "healthy"}
    MemorySnapshots.put(None)
    snapshot.current(fresh=True)
    assert anonymous.get("/api/v1/health").json() == {"status": "down"}
    MemorySnapshots.put(snapshot_document(as_of="2020-01-01T00:00:00.000Z"))
    snapshot.current(fresh=True)
    assert anonymous.get("/api/v1/health").json() == {"status": "degraded"}


def test_cluster_gives_64_bit_numbers_as_text_and_unknown_as_null(viewer: Client) -> None:
    document = viewer.get("/api/v1/cluster").json()
    assert document["freshness"] == "fresh"
    replica = document["groups"][0]["replicas"][0]
    assert replica["max_offset"] == "9007199254740993"
    assert document["controllers"][0]["term"] == "4"
    group = viewer.get("/api/v1/consumer-groups/audit_log").json()
    assert group["lag"] is None


def test_cluster_without_snapshot_is_an_answer_not_an_error(viewer: Client) -> None:
    MemorySnapshots.broken = "connection refused"
    snapshot.current(fresh=True)
    document = viewer.get("/api/v1/cluster").json()
    assert document["freshness"] == "unavailable"
    assert document["as_of"] is None
    assert document["verdict"]["reasons"][0]["code"] == "no-snapshot"


def test_while_redis_is_away_what_was_known_grows_old(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "KEPT_S", -1)
    snapshot.current()
    MemorySnapshots.broken = "Redis does not answer"
    monkeypatch.setattr(snapshot, "STALE_AFTER_MS", -1)
    document = viewer.get("/api/v1/cluster").json()
    assert (document["freshness"], document["verdict"]["status"]) == ("stale", "degraded")
    assert "Redis does not answer" in document["verdict"]["reasons"][0]["text"]
    assert document["groups"], "nobody says that there are none"
    assert b"No broker group yet" not in viewer.get("/").content
    assert b"No topics yet" not in viewer.get("/topics/").content
    MemorySnapshots.broken = ""
    assert snapshot.current().problem == "", "the first look after it is back"


@pytest.mark.parametrize("raw", [b"not json", b"[]", b'{"version": 2}', b'{"version": 1, "seq": "x", "as_of": "now"}'])
def test_an_unusable_snapshot_is_said_to_be_so(viewer: Client, raw: bytes) -> None:
    MemorySnapshots.raw = raw
    snapshot.current(fresh=True)
    document = viewer.get("/api/v1/cluster").json()
    assert document["freshness"] == "unavailable"
    assert "cannot be used" in document["verdict"]["reasons"][0]["text"]


def test_topics_are_paged_by_cursor_and_filtered(viewer: Client) -> None:
    topics = [
        {"name": f"t{index:03}", "type": "NORMAL", "system": False, "queues": [], "message_count": 0, "in_per_s": None}
        for index in range(7)
    ]
    MemorySnapshots.put(snapshot_document(topics=topics))
    snapshot.current(fresh=True)
    seen, cursor = [], ""
    while cursor is not None:
        page = viewer.get("/api/v1/topics", {"limit": 3, "cursor": cursor}).json()
        seen += [topic["name"] for topic in page["items"]]
        cursor = page["next"]
    assert seen == [f"t{index:03}" for index in range(7)]
    assert [topic["name"] for topic in viewer.get("/api/v1/topics", {"q": "T005"}).json()["items"]] == ["t005"]


def cursor_of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize("address", ["history", "operations", "report-runs", "report-schedules", "tokens"])
@pytest.mark.parametrize(
    "text",
    [
        '["0001-01-01T00:00:00+23:00", "1"]',
        '["9999-12-31T23:59:59-23:00", "1"]',
        '["2026-01-01T00:00:00+00:00", "no key"]',
        '["2026-01-01T00:00:00+00:00", 1e999]',
        "[" * 20_000,
    ],
)
def test_a_cursor_that_somebody_made_up_is_refused_in_every_list(admin: Client, address: str, text: str) -> None:
    response = admin.get(f"/api/v1/{address}", {"cursor": cursor_of(text)})
    assert response.status_code == 400
    assert response.json()["errors"]["cursor"]


@pytest.mark.parametrize("cursor", ["%%%", "e30=", "WzFd", "bm90IGpzb24="])
@pytest.mark.parametrize("address", ["operations", "report-runs", "report-schedules", "tokens", "audit"])
def test_a_foreign_cursor_is_refused(admin: Client, address: str, cursor: str) -> None:
    response = admin.get(f"/api/v1/{address}", {"cursor": cursor})
    assert response.status_code == 400
    assert response.json()["errors"]["cursor"]


def test_names_with_percent_are_encoded_in_addresses(viewer: Client) -> None:
    response = viewer.get("/api/v1/topics/%25RETRY%25billing")
    assert response.json()["name"] == "%RETRY%billing"
    assert viewer.get("/api/v1/topics/%25RETRY%25billing/queues").json()["items"][0]["max_offset"] == "3"


def test_wrong_method_type_and_json_are_problems(viewer: Client) -> None:
    assert viewer.put("/api/v1/topics", "{}", content_type="application/json").json()["code"] == "method-not-allowed"
    assert viewer.post("/api/v1/topics", "a=b", content_type="text/plain").json()["code"] == "unsupported-media-type"
    response = viewer.post("/api/v1/topics", "{", content_type="application/json")
    assert (response.status_code, response["Content-Type"]) == (400, "application/problem+json")


def test_every_problem_names_its_request(viewer: Client) -> None:
    response = viewer.get("/api/v1/topics/nothing")
    assert response.json()["request_id"] == response["X-Request-Id"]
    assert viewer.get("/api/v1/topics").headers["X-Request-Id"] != response["X-Request-Id"]


def test_our_own_error_is_a_problem_without_details(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("secret internals")

    monkeypatch.setattr(snapshot, "current", broken)
    viewer.raise_request_exception = False
    for address in ("/api/v1/topics", "/topics/"):
        response = viewer.get(address)
        assert response.status_code == 500
        assert b"secret" not in response.content
    assert viewer.get("/api/v1/topics").json()["code"] == "internal-error"


def test_schema_is_the_committed_one_and_complete() -> None:
    """After a change of the API: `manage.py spectacular --file webapp/api/openapi.yaml`, and look at the difference."""
    out = io.StringIO()
    call_command("spectacular", "--fail-on-warn", "--validate", stdout=out)
    committed = Path(__file__).parents[2] / "webapp" / "api" / "openapi.yaml"
    assert out.getvalue() == committed.read_text()
