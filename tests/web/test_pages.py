"""What every page has in common: the login wall, CSRF, roles, headers, and that it renders with and without a snapshot."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import URLPattern, resolve

from tests.web.conftest import PASSWORD
from tests.web.fakes import FakeAccess, FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp import snapshot
from webapp.accounts import tokens
from webapp.accounts.models import ReadRight, User
from webapp.operations.models import Operation
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.urls import urlpatterns

EXAMPLES = {
    "name": "orders",
    "group": "broker-a",
    "queue_id": "0",
    "offset": "0",
    "action": "add",
    "change": "retire",
    "report": "throughput",
    "operation_id": "00000000-0000-0000-0000-000000000001",
    "run_id": "00000000-0000-0000-0000-000000000002",
    "schedule_id": "1",
    "token_id": "1",
    "user_id": "1",
    "right_id": "1",
}
OPEN = {"/login"}
POST_ONLY = {"theme", "logout", "schedule-delete", "schedule-run", "report-cancel", "operation-cancel"}
POST_ONLY |= {"token-revoke", "user-change", "client-user-delete", "permission-put", "permission-remove"}
POST_ONLY |= {"read-right-remove"}


def pages() -> list[tuple[str, str]]:
    """(name, address) of every page."""
    found = []
    for pattern in urlpatterns:
        if not isinstance(pattern, URLPattern):
            continue
        route = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: EXAMPLES[match[1]], str(pattern.pattern))
        found.append((str(pattern.name), f"/{route}"))
    return found


@pytest.fixture
def objects(users: dict[str, User]) -> None:
    """Something at every address."""
    FakeCluster.store("orders", 0, b'{"amount": 12}', {"KEYS": "k1", "TAGS": "paid"})
    FakeAccess().create_user("orders", "a long secret", "Normal", "enable")
    Operation.objects.create(
        pk=UUID(EXAMPLES["operation_id"]), kind="topic.create", target="orders", requested_by_name="operator"
    )
    ReportRun.objects.create(pk=UUID(EXAMPLES["run_id"]), report="throughput", parameters={})


def body_for(name: str) -> dict[str, str]:
    return {"cluster": "DefaultCluster", "group": "broker-a", "broker_id": "2"} if name == "elect" else {}


@pytest.mark.parametrize(("name", "address"), [each for each in pages() if each[1] not in OPEN])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_sends_anonymous_to_the_login(anonymous: Client, name: str, address: str, method: str) -> None:
    response = anonymous.generic(method, address)
    assert response.status_code == 302
    assert response["Location"].startswith("/login?next=")


@pytest.mark.parametrize(("name", "address"), [each for each in pages() if each[1] not in OPEN])
def test_tells_htmx_to_load_the_login_page(anonymous: Client, name: str, address: str) -> None:
    response = anonymous.get(address, headers={"HX-Request": "true"})
    assert (response.status_code, response["HX-Redirect"]) == (401, "/login")


@pytest.mark.parametrize(("name", "address"), pages())
def test_post_without_csrf_token_changes_nothing(users: dict[str, User], name: str, address: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(users["admin"])
    response = client.post(address, {"name": "x", "username": "admin", "password": PASSWORD})
    assert response.status_code == 403
    assert Operation.objects.count() == 0
    assert RecordingQueue.sent == []


READERS = {"landing", "palette", "topics", "topic", "messages", "message", "groups", "group", "reports", "cron-preview"}
READERS |= {
    "history",
    "report-run",
    "report-download",
    "operations",
    "operation",
    "tokens",
    "account",
    "confirm",
    "login",
}
READERS |= {"transactions", "timers", "timers-find"}
OPERATORS = {"elect", "topic-create", "topic-edit", "topic-delete", "group-create", "group-delete", "report-run-now"}
OPERATORS |= {"schedule-create", "schedule-edit", "schedule-delete", "schedule-run", "report-cancel", "message-send"}
OPERATORS |= {"client-users", "client-user", "transaction-decide", "topic-open-gate", "group-edit", "timers-recall"}
OPERATORS |= {"topic-export"}


@pytest.mark.parametrize(("name", "address"), pages())
@pytest.mark.usefixtures("objects")
def test_each_role_gets_its_pages(users: dict[str, User], name: str, address: str) -> None:
    if name in {"theme", "logout", "operation-cancel", "token-revoke"}:
        return  # each decides by the object, see their own tests
    for role in ("viewer", "operator", "admin"):
        client = Client()
        client.force_login(users[role])
        method = client.post if name in POST_ONLY else client.get
        target = address.replace("/groups/orders", "/groups/billing")
        response = method(target, body_for(name))
        least = "viewer" if name in READERS else "operator" if name in OPERATORS else "admin"
        allowed = ["viewer", "operator", "admin"].index(role) >= ["viewer", "operator", "admin"].index(least)
        assert (response.status_code != 403) is allowed, (role, name, response.status_code)


@pytest.mark.parametrize("name_and_address", [each for each in pages() if each[0] not in POST_ONLY])
@pytest.mark.parametrize("present", [True, False])
@pytest.mark.usefixtures("objects")
def test_renders(admin: Client, name_and_address: tuple[str, str], present: bool) -> None:
    name, address = name_and_address
    if not present:
        MemorySnapshots.put(None)
        snapshot.current(fresh=True)
    target = address.replace("/groups/orders", "/groups/billing")
    response = admin.get(target, body_for(name))
    expected = {200, 302} if present else {200, 302, 404}
    if name in {"schedule-edit"}:
        expected = {404}
    if name == "transaction-decide":
        expected = {400}  # which one is to be ended is asked for by its address
    if name == "report-download" or (name == "topic-delete" and not present):
        expected = {409}  # the run is not over; the operation that creates the topic is not
    assert response.status_code in expected, response.content.decode()[:3000]
    if response.status_code == 200 and response["Content-Type"].startswith("text/html"):
        text = response.content.decode()
        assert "style=" not in text, "the content security policy forbids inline styles"
        assert "<script>" not in text
        assert not re.search(r"\son\w+=", text), "no inline handlers"
        if "<html" in text:
            assert text.count("<h1") == 1


LONG = "long-" * 18  # 90 characters

TOPIC = {"name": LONG, "type": "NORMAL", "queues": "8", "perm": "6"}
SCHEDULE = {"name": "daily", "cron": "0 6 * * *", "time_zone": "UTC", "enabled": "on", "p_minutes": "60"}
POSTED = [
    ("/topics/new", TOPIC),
    ("/topics/orders/edit", TOPIC),
    ("/topics/orders/delete", {"confirmation": "orders"}),
    ("/topics/orders/export", {}),
    ("/topics/orders/open-gate", {"group": "broker-a", "source": "broker-z"}),
    ("/topics/orders/send", {"body": "hello", "keys": "k" * 90}),
    ("/groups/new", {"name": LONG, "retry_max_times": "16"}),
    ("/groups/billing/edit", {"order_scope": "QUEUE"}),
    ("/groups/billing/delete", {"confirmation": "billing"}),
    ("/elections/new", {"cluster": "DefaultCluster", "group": "broker-a", "broker_id": "2"}),
    ("/controllers/add", {"id": "n7", "address": "127.0.0.1:9883"}),
    ("/controllers/promote", {"id": "n3"}),
    ("/controllers/transfer", {"id": "n1"}),
    ("/controllers/remove", {"id": "n3"}),
    ("/reports/throughput/run", {"p_minutes": "60"}),
    ("/reports/throughput/schedule", SCHEDULE),
    ("/reports/schedules/{schedule}/edit", SCHEDULE),
    ("/reports/schedules/{schedule}/run", {}),
    ("/reports/schedules/{schedule}/delete", {}),
    ("/reports/runs/00000000-0000-0000-0000-000000000002/cancel", {}),
    ("/operations/00000000-0000-0000-0000-000000000001/cancel", {}),
    ("/tokens/", {"name": "mine", "scopes": ["cluster.read"]}),
    ("/tokens/{token}/revoke", {}),
    ("/clients/", {"name": "payments", "type": "Normal", "password": "a long secret"}),
    ("/clients/orders/", {"type": "Super"}),
    ("/clients/orders/permissions", {"resource": f"Topic:{LONG}", "actions": ["Pub"], "decision": "Allow"}),
    ("/clients/orders/permissions/remove", {"resource": f"Topic:{LONG}", "policy": "Custom"}),
    ("/clients/orders/delete", {"confirmation": "orders"}),
    ("/users/", {"username": "eve", "role": "viewer", "password": PASSWORD}),
    ("/users/{user}/", {"role": "viewer", "active": "on"}),
    ("/users/reading", {"topics": LONG, "who": "role viewer", "decision": "allow"}),
    ("/users/reading/{right}/remove", {}),
    ("/account", {"time_zone": "Asia/Tokyo"}),
    ("/account/confirm", {"password": PASSWORD}),
    ("/account", {"present": PASSWORD, "password": "another horse battery"}),
    ("/theme", {"theme": "dark", "next": "/topics/"}),
    ("/logout", {}),
]


@pytest.mark.parametrize(("address", "body"), POSTED)
@pytest.mark.usefixtures("objects")
def test_whatever_was_sent_a_reload_sends_nothing_again(
    admin: Client, users: dict[str, User], address: str, body: dict[str, object]
) -> None:
    schedule = ReportSchedule.objects.create(
        name="nightly", report="throughput", cron="0 6 * * *", time_zone="UTC", parameters={"minutes": 60}
    )
    token, _ = tokens.create(users["admin"], "theirs", ["cluster.read"])
    document = snapshot_document()
    document["consumer_groups"][0]["members"] = []
    MemorySnapshots.put(document)
    if address == "/clients/orders/permissions/remove":
        admin.post("/clients/orders/permissions", {**body, "actions": ["Pub"], "decision": "Allow"})
    right = ReadRight.objects.create(topics="orders", role="viewer", allows=True)
    target = address.format(schedule=schedule.pk, token=token.pk, user=users["operator"].pk, right=right.pk)
    response = admin.post(target, body)
    assert response.status_code == 302, response.content.decode()
    shown = admin.get(response["Location"])
    while shown.status_code == 302:
        shown = admin.get(shown["Location"])
    assert (shown.status_code, shown.content.count(b"<h1")) == (200, 1)


def test_the_list_above_has_every_address_that_takes_forms(admin: Client) -> None:
    names = {resolve(address.format(schedule=1, token=1, user=1, right=1)).url_name for address, _ in POSTED}
    takers = {name for name, address in pages() if "POST" in admin.options(address)["Allow"]}
    assert takers - names == {"login", "broker-group", "timers-recall", "transaction-decide"}, (
        "they have tests of their own"
    )
    assert names <= takers


@pytest.mark.parametrize(("name", "address"), [each for each in pages() if each[0] in POST_ONLY])
@pytest.mark.usefixtures("objects")
def test_an_address_that_only_takes_forms_says_so_and_leads_to_the_form(admin: Client, name: str, address: str) -> None:
    response = admin.get(address)
    text = response.content.decode()
    assert (response.status_code, response["Allow"]) == (405, "POST")
    assert "only takes what a form sends. Nothing was changed." in text
    assert text.count("<h1") == 1
    for link in re.findall(r'class="button[^"]*" href="([^"]+)"', text):
        assert address.startswith(link)
        assert admin.get(link).status_code == 200, link


def test_the_way_back_to_the_form_is_an_address(admin: Client) -> None:
    text = admin.get("/clients/a%25b%20%22c%C3%A9/permissions/remove").content.decode()
    assert 'href="/clients/a%25b%20%22c%C3%A9/"' in text
    assert admin.post("/topics/").status_code == 405
    assert b"It takes no POST." in admin.post("/topics/").content
    banner = admin.get("/theme", headers={"HX-Request": "true"})
    assert (banner.status_code, banner.content.count(b"<html")) == (405, 0)


def test_headers_keep_strangers_out(viewer: Client) -> None:
    response = viewer.get("/")
    policy = response["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["X-Frame-Options"] == "DENY"
    assert response["Referrer-Policy"] == "same-origin"
    assert response["Cache-Control"] == "no-store"


def test_a_foreign_host_name_is_refused(viewer: Client) -> None:
    response = viewer.get("/", headers={"Host": "evil.example"})
    assert response.status_code == 400
    assert "evil.example" not in response["Content-Security-Policy"]


def test_cookies_are_for_the_server_alone(users: dict[str, User]) -> None:
    client = Client()
    client.get("/login")
    client.post("/login", {"username": "viewer", "password": PASSWORD})
    for name in ("logboom_session", "logboom_csrf"):
        assert client.cookies[name]["httponly"]
        assert client.cookies[name]["samesite"] in {"Lax", "Strict"}


def test_static_files_are_served_and_may_be_kept(anonymous: Client) -> None:
    response = anonymous.get("/static/js/morph.js")
    assert response.status_code == 200
    assert b"Morph" in response.content
    assert "max-age=3600" in response["Cache-Control"]
    assert anonymous.get("/static/../settings.py").status_code in {302, 404}


def test_unknown_addresses_are_pages_too(viewer: Client, anonymous: Client) -> None:
    response = viewer.get("/nowhere")
    assert response.status_code == 404
    assert b"Not found" in response.content


def test_read_only_mode_refuses_changes(operator: Client, settings: object) -> None:
    settings.READ_ONLY = True
    response = operator.post("/topics/new", {"name": "payments"})
    assert response.status_code == 403
    assert b"read-only" in response.content
    assert Operation.objects.count() == 0


@pytest.mark.parametrize("method", ["get", "post"])
def test_pages_are_at_https_where_cookies_go_over_tls_alone(
    settings: Any, client: Client, users: dict[str, User], method: str
) -> None:
    """Browsers differ in what they do with such cookies in plaintext of this machine; none of them opens its websockets."""
    settings.PAGES_OVER_TLS = True
    there = {"HTTP_HOST": "127.0.0.1:8000"}
    answer = getattr(client, method)("/login?next=/topics/", **there)
    assert (answer.status_code, answer["Location"]) == (302, "https://127.0.0.1:8000/login?next=/topics/")
    assert client.get("/login", secure=True, **there).status_code == 200
    assert client.get("/api/v1/health", **there).status_code == 200
    assert client.get("/login", HTTP_HOST="elsewhere").status_code == 400
