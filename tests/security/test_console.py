"""The console's own users: what a stolen or a weak key of one of them does not open."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.core.exceptions import ValidationError
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.utils import timezone

from tests.web.conftest import PASSWORD, actor, admin, bearer, console, operator, users, viewer  # noqa: F401
from tests.web.fakes import FakeCluster
from webapp import origin
from webapp.accounts import devices, login_limit, services, sessions, tokens
from webapp.accounts.models import ApiToken, LoginAttempt, ReadRight, User
from webapp.accounts.permissions import client_ip, role_of, set_role
from webapp.audit.models import AuditEntry
from webapp.operations import services as operations
from webapp.operations.registry import KINDS

Bearer = Callable[..., dict[str, str]]
NEW = "another long secret"


def send(client: Client, method: str, path: str, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, str]:
    response = client.generic(method, path, json.dumps(body), "application/json", headers=headers)
    return response.status_code, json.loads(response.content).get("code", "")


# ---- who manages users


def test_a_token_for_users_alone_makes_no_admin(client: Client, bearer: Bearer, users: dict[str, User]) -> None:  # noqa: F811
    headers = bearer("admin", "users.write")
    body = {"username": "eve", "role": "admin", "password": PASSWORD}
    assert send(client, "POST", "/api/v1/users", body, headers) == (403, "beyond-own-permissions")
    for who, change in (("viewer", {"role": "admin"}), ("viewer", {"role": "operator"}), ("admin", {"active": False})):
        path = f"/api/v1/users/{users[who].pk}"
        assert send(client, "PATCH", path, change, headers) == (403, "beyond-own-permissions"), (who, change)
    assert {name: role_of(User.objects.get(username=name)).label for name in users} == {name: name for name in users}
    assert not User.objects.filter(username="eve").exists()


def test_who_is_locked_out_stays_what_he_was(
    client: Client,
    bearer: Bearer,  # noqa: F811
    users: dict[str, User],  # noqa: F811
) -> None:
    """Else who manages users alone could make another one of an admin who is not there, or let him in again."""
    User.objects.filter(username="admin").update(is_active=False)
    second = User.objects.create_user("second", password=PASSWORD)
    set_role(second, "admin")
    _, text = tokens.create(second, "test", ["users.write"])
    headers, path = {"Authorization": f"Bearer {text}"}, f"/api/v1/users/{users['admin'].pk}"
    for change in ({"active": True, "role": "viewer"}, {"role": "viewer"}, {"active": True}):
        assert send(client, "PATCH", path, change, headers) == (403, "beyond-own-permissions"), change
    client.force_login(second)
    assert send(client, "PATCH", path, {"active": True}, {})[0] == 200
    assert role_of(User.objects.get(username="admin")).label == "admin"


# ---- tokens


def test_tokens_end_with_the_password(client: Client, viewer: Client, users: dict[str, User]) -> None:  # noqa: F811
    _, text = tokens.create(users["viewer"], "stolen", ["cluster.read"])
    _, machine = tokens.create(users["viewer"], "command line", ["cluster.read"], of_machine=True)
    _, other = tokens.create(users["admin"], "not theirs", ["cluster.read"])
    assert viewer.post("/account", {"present": PASSWORD, "password": NEW}).status_code == 302
    assert tokens.find(text) is None
    assert tokens.find(machine) is not None
    assert tokens.find(other) is not None


def test_every_token_has_an_end(client: Client, bearer: Bearer, users: dict[str, User]) -> None:  # noqa: F811
    headers = bearer("viewer", "tokens.write", "cluster.read")
    body = {"name": "t", "scopes": ["cluster.read"]}
    assert send(client, "POST", "/api/v1/tokens", {**body, "expires_in_days": 3650}, headers)[0] == 400
    assert send(client, "POST", "/api/v1/tokens", {**body, "expires_in_days": None}, headers)[0] < 300
    assert ApiToken.objects.get(name="t").expires_at < timezone.now() + timedelta(days=tokens.DEFAULT_DAYS + 1)


def test_a_token_makes_none_that_outlives_it(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    parent, text = tokens.create(users["viewer"], "short", ["tokens.write", "cluster.read"], 2)
    headers = {"Authorization": f"Bearer {text}"}
    body = {"name": "child", "scopes": ["cluster.read"]}
    assert send(client, "POST", "/api/v1/tokens", {**body, "expires_in_days": 30}, headers)[0] == 400
    assert send(client, "POST", "/api/v1/tokens", body, headers)[0] < 300
    assert ApiToken.objects.get(name="child").expires_at <= parent.expires_at + timedelta(minutes=1)


# ---- passwords


@pytest.mark.parametrize("password", ["admin", "short", "password1234", "administrator"])
def test_the_first_password_has_the_rules_of_all_others(db: None, password: str) -> None:
    with pytest.raises(ValidationError):
        services.ensure_admin(password)
    assert not User.objects.exists()
    assert services.ensure_admin(PASSWORD) == ("admin", PASSWORD)


# ---- browsers


@pytest.mark.parametrize(
    ("page", "https", "own"),
    [
        ("http://127.0.0.1:8000", False, True),
        ("http://127.0.0.1:8001", False, False),
        ("http://127.0.0.1", False, False),
        ("https://127.0.0.1:8000", True, True),
        ("http://127.0.0.1:8000", True, False),
        ("https://127.0.0.1", True, False),
        ("https://evil.example:8000", True, False),
        ("null", False, False),
        ("", False, False),
    ],
)
def test_a_websocket_is_for_the_very_page(settings: Any, page: str, https: bool, own: bool) -> None:
    settings.HTTPS, settings.CSRF_TRUSTED_ORIGINS = https, []
    assert origin.is_own(page, "127.0.0.1:8000") is own


@pytest.mark.parametrize(("https", "prefix"), [("1", "__Host-"), ("", "")])
def test_cookies_belong_to_this_host_alone_under_https(tmp_path: Any, https: str, prefix: str) -> None:
    script = (
        "from webapp import settings as s; import json; "
        "print(json.dumps([s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE]))"
    )
    environ = {**os.environ, "LOGBOOM_HTTPS": https, "LOGBOOM_DATA_DIR": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    session, csrf, session_secure, csrf_secure = json.loads(found.stdout)
    assert (session, csrf) == (f"{prefix}logboom_session", f"{prefix}logboom_csrf")
    assert session_secure is csrf_secure is bool(https)


@pytest.mark.parametrize(
    ("variables", "trusts"),
    [({}, False), ({"LOGBOOM_SECURE_HOST": "logs.example.com"}, False), ({"LOGBOOM_HTTPS": "1"}, True)],
)
def test_another_port_of_this_host_is_somebody_else(tmp_path: Any, variables: dict[str, str], trusts: bool) -> None:
    """A proxy answers at the port without a number; the appliance's own HTTPS does not."""
    script = (
        "import django; django.setup(); from webapp import origin, settings; "
        "print(origin.is_own('https://logs.example.com', 'logs.example.com:8443'), settings.HTTPS)"
    )
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "webapp.settings", "LOGBOOM_DATA_DIR": str(tmp_path)}
    environ |= {"LOGBOOM_ALLOWED_HOSTS": "logs.example.com", **variables}
    found = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [str(trusts), str(bool(variables))]


# ---- guessing


def log_in(client: Client, name: str, password: str, ip: str = "10.0.0.1", **headers: str) -> int:
    return client.post("/login", {"username": name, "password": password}, REMOTE_ADDR=ip, **headers).status_code


def test_guesses_keep_nobody_out_who_was_here_before(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    assert log_in(client, "admin", PASSWORD) == 302
    client.post("/logout")
    for number in range(login_limit.PER_SOURCE + 10):  # from the same address, as behind one proxy, and from others
        log_in(Client(), "admin", "wrong", ip=("10.0.0.1", f"10.0.0.{number + 2}")[number % 2])
    assert log_in(Client(), "admin", PASSWORD) == 429
    assert log_in(client, "admin", PASSWORD) == 302


def test_a_device_is_one_persons_and_its_guesses_are_limited(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    assert log_in(client, "viewer", PASSWORD) == 302
    client.post("/logout")
    assert [log_in(client, "admin", "wrong", ip="10.0.0.7") for _ in range(6)] == [400] * 5 + [429]
    assert [log_in(client, "viewer", "wrong", ip="10.0.0.8") for _ in range(6)] == [400] * 5 + [429]
    client.cookies[devices.COOKIE] = client.cookies[devices.COOKIE].value.replace("a", "b")
    assert log_in(client, "viewer", PASSWORD, ip="10.0.0.9") == 302, "a forged one is none"


def test_the_wait_grows_and_ends(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    waits = [login_limit.wait_after(failures) for failures in range(40)]
    assert waits[: login_limit.FREE] == [timedelta()] * login_limit.FREE
    assert waits == sorted(waits)
    assert waits[-1] == login_limit.WINDOW
    for _ in range(login_limit.FREE):
        log_in(client, "viewer", "wrong")
    assert log_in(client, "viewer", PASSWORD) == 429
    LoginAttempt.objects.update(at=timezone.now() - login_limit.FIRST_WAIT)
    assert log_in(client, "viewer", PASSWORD) == 302


def test_a_network_of_ipv6_is_one_source(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    for number in range(login_limit.FREE):
        assert log_in(client, "viewer", "wrong", ip=f"2001:db8::{number}") == 400
    assert log_in(client, "viewer", PASSWORD, ip="2001:db8::77:1") == 429
    assert log_in(client, "viewer", PASSWORD, ip="2001:db8:0:1::1") == 302


def test_behind_a_trusted_proxy_the_source_is_who_asked_it(
    settings: Any,
    client: Client,
    users: dict[str, User],  # noqa: F811
) -> None:
    def forwarded(told: str, ip: str = "10.9.9.9") -> str:
        request = RequestFactory().get("/", REMOTE_ADDR=ip, HTTP_X_FORWARDED_FOR=told)
        return client_ip(request)

    assert forwarded("1.2.3.4") == "10.9.9.9", "nobody is trusted"
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("10.9.9.0/24")]
    assert forwarded("1.2.3.4") == "1.2.3.4"
    assert forwarded("6.6.6.6, 1.2.3.4, 10.9.9.1") == "1.2.3.4", "what a client says of itself comes first"
    assert forwarded("6.6.6.6", ip="5.5.5.5") == "5.5.5.5"
    assert forwarded("nonsense") == "10.9.9.9"


def test_what_is_refused_for_too_many_is_in_the_trail(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    answers = [log_in(client, "admin", "wrong") for _ in range(20)]
    assert answers.count(429) == 15
    refused = AuditEntry.objects.filter(action="login", outcome="refused")
    assert refused.filter(detail=services.THROTTLED).count() == 1, "once a minute"
    assert refused.count() == 6


def test_who_has_many_addresses_fills_no_trail(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    for _ in range(login_limit.FREE):
        log_in(client, "admin", "wrong", ip="2001:db8::1")
    answers = {log_in(client, "admin", "wrong", ip=f"2001:db8::{number:x}") for number in range(2, 80)}
    assert answers == {429}, "a network of IPv6 is one source"
    throttled = AuditEntry.objects.filter(action="login", detail=services.THROTTLED)
    assert throttled.count() == services.MOST_THROTTLED_A_MINUTE


def test_who_asks_for_what_he_may_not_fills_no_trail(viewer: Client, operator: Client) -> None:  # noqa: F811
    for _ in range(operations.MOST_REFUSED_A_MINUTE + 20):
        assert send(viewer, "DELETE", "/api/v1/topics/orders", {}, {})[0] == 403
    assert AuditEntry.objects.filter(outcome="refused").count() == operations.MOST_REFUSED_A_MINUTE
    assert send(operator, "POST", "/api/v1/users", {"username": "x", "role": "viewer", "password": NEW}, {})[0] == 403
    assert AuditEntry.objects.filter(actor_name="operator", outcome="refused").count() == 1, "others' are told"


def test_others_guesses_keep_nobody_who_is_here_from_proving_who_he_is(
    client: Client,
    users: dict[str, User],  # noqa: F811
) -> None:
    """As behind one proxy, from the same address: of the person's name, and of so many that the address is refused."""
    assert log_in(client, "admin", PASSWORD) == 302
    for number in range(login_limit.PER_SOURCE + 5):
        log_in(Client(), ("admin", f"guess-{number}")[number % 2], "wrong")
    assert log_in(Client(), "admin", PASSWORD) == 429
    aged(client, confirmed=sessions.CONFIRMED_S + 1)
    assert client.post("/account/confirm", {"password": PASSWORD}, REMOTE_ADDR="10.0.0.1").status_code == 302
    changed = client.post("/account", {"present": PASSWORD, "password": NEW}, REMOTE_ADDR="10.0.0.1")
    assert changed.status_code == 302


def test_the_present_password_cannot_be_guessed_either(viewer: Client, users: dict[str, User]) -> None:  # noqa: F811
    def change(present: str) -> int:
        return viewer.post("/account", {"present": present, "password": NEW}).status_code

    assert [change("wrong") for _ in range(login_limit.FREE)] == [400] * login_limit.FREE
    assert change(PASSWORD) == 429
    assert users["viewer"].check_password(PASSWORD)
    assert AuditEntry.objects.filter(action="password.change", outcome="refused").count() == login_limit.FREE + 1


# ---- sessions


def aged(client: Client, **ages_s: int) -> None:
    """Let so many seconds pass for what a session keeps."""
    session = client.session
    for name, age_s in ages_s.items():
        session[name] -= age_s
    session.save()


def test_a_session_in_which_nobody_does_anything_ends(viewer: Client) -> None:  # noqa: F811
    aged(viewer, seen=sessions.IDLE_S - 60)
    assert viewer.get("/").status_code == 200
    aged(viewer, seen=sessions.IDLE_S - 60)
    assert viewer.get("/").status_code == 200, "what was done a moment ago counts"
    key = viewer.session.session_key
    aged(viewer, seen=sessions.IDLE_S + 1)
    assert viewer.get("/").status_code == 302
    assert not SessionStore().exists(key), "the cookie opens nothing any more"


def test_an_idle_session_asks_nothing_over_rest(viewer: Client) -> None:  # noqa: F811
    assert viewer.get("/api/v1/topics").status_code == 200
    aged(viewer, seen=sessions.IDLE_S + 1)
    assert viewer.get("/api/v1/topics").status_code == 401


def test_a_session_is_served_while_nothing_can_be_written(
    viewer: Client,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aged(viewer, seen=sessions.IDLE_S - 60)

    def refuse(*_: Any, **__: Any) -> None:
        raise OperationalError("disk full")

    monkeypatch.setattr(SessionStore, "save", refuse)
    assert viewer.get("/").status_code == 200


def test_what_is_dangerous_asks_for_the_password_again(admin: Client, users: dict[str, User]) -> None:  # noqa: F811
    aged(admin, confirmed=sessions.CONFIRMED_S + 1)
    token = {"name": "t", "scopes": ["cluster.read"], "expires_in_days": "30"}
    refused = admin.post("/tokens/", token)
    assert refused.status_code == 403
    assert b"/account/confirm?next=/tokens/" in refused.content
    for method, path, body in (
        ("POST", "/api/v1/tokens", {**token, "expires_in_days": 30}),
        ("POST", "/api/v1/users", {"username": "eve", "role": "viewer", "password": NEW}),
        ("PATCH", f"/api/v1/users/{users['viewer'].pk}", {"role": "admin"}),
        ("DELETE", "/api/v1/topics/orders", {}),
    ):
        assert send(admin, method, path, body, {}) == (403, "password-wanted"), path
    assert not ApiToken.objects.exists()
    assert admin.post("/account/confirm", {"password": "wrong", "next": "/tokens/"}).status_code == 400
    assert admin.post("/tokens/", token).status_code == 403
    confirmed = admin.post("/account/confirm", {"password": PASSWORD, "next": "/tokens/"})
    assert (confirmed.status_code, confirmed["Location"]) == (302, "/tokens/")
    assert admin.post("/tokens/", token).status_code == 302
    assert ApiToken.objects.count() == 1


def test_a_confirmation_is_no_way_to_guess_and_leads_nowhere_else(viewer: Client) -> None:  # noqa: F811
    wrong = [viewer.post("/account/confirm", {"password": "wrong"}).status_code for _ in range(6)]
    assert wrong == [400] * 5 + [429]
    LoginAttempt.objects.all().delete()
    response = viewer.post("/account/confirm", {"password": PASSWORD, "next": "https://evil.example/"})
    assert response["Location"] == "/"


DANGEROUS = {
    *("topic.delete", "group.delete", "user.create", "user.change", "token.create", "broker-group.retire"),
    *("broker-group.down", "broker-group.mount", "broker-group.unmount"),
    *("controller.add", "controller.promote", "controller.remove", "controller.transfer"),
    *("client-user.create", "client-user.update", "client-user.delete"),
    *("permission.put", "permission.remove", "read-right.put", "read-right.remove"),
}


def test_what_is_dangerous_is_written_down() -> None:
    """A new kind of change has to be looked at: whether it can be undone, or makes a key that lasts."""
    assert {kind.name for kind in KINDS.values() if kind.is_dangerous} == DANGEROUS
    assert all(kind.is_dangerous for kind in KINDS.values() if kind.permission in ("access.write", "users.write"))


# ---- reading messages


def read(client: Client, topic: str, headers: dict[str, str]) -> dict[str, Any]:
    listed = client.get(f"/api/v1/topics/{topic}/messages?group=broker-a", headers=headers).json()["items"][0]
    one = client.get(f"/api/v1/topics/{topic}/messages/broker-a/0/{listed['offset']}", headers=headers).json()
    assert listed == one
    return one


def test_a_viewer_is_not_shown_what_messages_say(client: Client, bearer: Bearer) -> None:  # noqa: F811
    FakeCluster.store("orders", 0, b"card 4711", {"KEYS": "o-1", "customer": "ann"})
    low, high = (bearer(role, "messages.read", "messages.bodies") for role in ("viewer", "operator"))
    seen = read(client, "orders", low)
    assert (seen["body_hidden"], seen["body_text"], seen["body_base64"]) == (True, "", "")
    assert (seen["properties"], seen["keys"], seen["body_bytes"]) == ({"KEYS": "o-1"}, "o-1", 9)
    assert read(client, "orders", high)["body_text"] == "card 4711"


def test_pages_hide_it_as_well(client: Client, users: dict[str, User]) -> None:  # noqa: F811
    FakeCluster.store("orders", 0, b"card 4711", {"KEYS": "o-1", "customer": "ann"})
    for role, is_shown in (("viewer", False), ("operator", True)):
        client.force_login(users[role])
        for path in (
            "/topics/orders/messages",
            "/topics/orders/messages/broker-a/0/0",
            "/topics/orders/messages?key=o-1",
        ):
            content = client.get(path).content
            assert b"o-1" in content
            assert (b"card 4711" in content or b"ann" in content) is is_shown, (role, path)


def test_operations_and_the_trail_keep_nothing_of_what_a_test_message_says(
    operator: Client,  # noqa: F811
    viewer: Client,  # noqa: F811
) -> None:
    body = {"body": "card 4711", "keys": "o-1", "tag": "paid", "properties": {"customer": "ann", "city": "Rome"}}
    sent = send(operator, "POST", "/api/v1/topics/orders/messages", body, {})
    assert sent[0] == 200
    (operation,) = viewer.get("/api/v1/operations").json()["items"]
    assert operation["parameters"]["body_bytes"] == 9
    assert operation["parameters"]["property_names"] == ["city", "customer"]
    pages = [viewer.get(path).content for path in ("/operations/", f"/operations/{operation['id']}/")]
    for text in (json.dumps(operation).encode(), *pages, str(AuditEntry.objects.get().parameters).encode()):
        assert b"card 4711" not in text
        assert b"ann" not in text
        assert b"Rome" not in text
    assert FakeCluster.sent[-1]["properties"] == {"customer": "ann", "city": "Rome"}


def test_what_brokers_keep_for_themselves_is_read_by_admins_alone(
    client: Client,
    bearer: Bearer,  # noqa: F811
) -> None:
    ReadRight.objects.create(topics="*", role="viewer", allows=True)
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    FakeCluster.add_topic(half)
    FakeCluster.store(half, 0, b"card 4711", {"TRAN_SECRET": "s"})
    for role, is_hidden, *scopes in (
        ("viewer", True, "messages.read", "messages.bodies"),
        ("operator", True, "messages.read", "messages.bodies"),
        ("admin", False, "messages.read", "messages.bodies", "access.write"),
    ):
        assert read(client, half, bearer(str(role), *map(str, scopes)))["body_hidden"] is is_hidden
