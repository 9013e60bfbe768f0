"""Logging in with its limit, sessions, users and their roles, tokens and their life."""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection
from django.test import Client
from django.utils import timezone

from tests.web.conftest import PASSWORD
from webapp.accounts import handover, login_limit, services, tokens
from webapp.accounts.models import ApiToken, LoginAttempt, User
from webapp.accounts.permissions import PERMISSIONS, Role, permissions_of, role_of, set_role
from webapp.appliance.prepare import ensure_cli_token
from webapp.audit.models import AuditEntry
from webapp.operations.models import Operation


def log_in(client: Client, username: str, password: str, ip: str = "127.0.0.1") -> int:
    return client.post("/login", {"username": username, "password": password}, REMOTE_ADDR=ip).status_code


# ---- logging in


def test_logging_in_opens_the_console_and_is_audited(client: Client, users: dict[str, User]) -> None:
    response = client.post("/login", {"username": "viewer", "password": PASSWORD, "next": "/topics/"})
    assert (response.status_code, response["Location"]) == (302, "/topics/")
    assert client.get("/").status_code == 200
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.actor_name, entry.outcome) == ("login", "viewer", "accepted")


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "/login"])
def test_logging_in_never_leads_elsewhere(client: Client, users: dict[str, User], target: str) -> None:
    response = client.post("/login", {"username": "viewer", "password": PASSWORD, "next": target})
    assert response["Location"] == "/"


def test_the_session_gets_a_new_key_at_login(client: Client, users: dict[str, User]) -> None:
    session = client.session
    session["planted"] = True
    session.save()
    planted = client.cookies["logboom_session"].value
    log_in(client, "viewer", PASSWORD)
    assert client.cookies["logboom_session"].value != planted


def test_a_wrong_password_and_a_wrong_name_sound_alike(client: Client, users: dict[str, User]) -> None:
    answers = [
        client.post("/login", {"username": name, "password": "wrong"}).content.decode().replace(name, "NAME")
        for name in ("viewer", "nobody")
    ]
    cut = [answer[answer.index("<main") :] for answer in answers]
    assert "The name or the password is wrong." in cut[0]
    assert cut[0].split("csrfmiddlewaretoken")[0] == cut[1].split("csrfmiddlewaretoken")[0]
    assert AuditEntry.objects.filter(outcome="refused").count() == 2


def test_strange_names_are_just_wrong(client: Client, users: dict[str, User]) -> None:
    for name in ("view\x00er", "x" * 5000, "", "\U0001f600"):
        assert log_in(client, name, "wrong") == 400


def test_the_limit_is_per_person_and_address_and_says_when_to_try_again(client: Client, users: dict[str, User]) -> None:
    for _ in range(login_limit.FREE):
        assert log_in(client, "viewer", "wrong") == 400
    response = client.post("/login", {"username": "viewer", "password": PASSWORD})
    assert response.status_code == 429
    assert 0 < int(response["Retry-After"]) <= 15 * 60
    assert b"Try again at" in response.content
    assert log_in(client, "VIEWER ", PASSWORD) == 429, "the same person, written differently"
    assert log_in(client, "operator", PASSWORD) == 302
    assert log_in(Client(), "viewer", PASSWORD, ip="10.0.0.9") == 302


def test_the_limit_ends_after_its_window(client: Client, users: dict[str, User]) -> None:
    for _ in range(login_limit.FREE):
        log_in(client, "viewer", "wrong")
    LoginAttempt.objects.update(at=timezone.now() - login_limit.WINDOW - timedelta(seconds=1))
    assert log_in(client, "viewer", PASSWORD) == 302


def test_the_limit_is_per_address_too(client: Client, users: dict[str, User]) -> None:
    now = timezone.now()
    LoginAttempt.objects.bulk_create(
        LoginAttempt(username=f"guess{number}", ip="127.0.0.1", at=now) for number in range(login_limit.PER_SOURCE)
    )
    assert log_in(client, "viewer", PASSWORD) == 429


def test_a_success_forgives_the_failures_before_it(client: Client, users: dict[str, User]) -> None:
    for _ in range(3):
        for _ in range(login_limit.FREE - 1):
            assert log_in(client, "viewer", "wrong") == 400
        assert log_in(Client(), "viewer", PASSWORD) == 302


def test_headers_cannot_pretend_another_address(client: Client, users: dict[str, User]) -> None:
    for number in range(login_limit.FREE):
        client.post("/login", {"username": "viewer", "password": "x"}, headers={"X-Forwarded-For": f"10.0.0.{number}"})
    assert log_in(client, "viewer", PASSWORD) == 429


def test_who_has_no_role_or_is_locked_out_cannot_log_in(client: Client, users: dict[str, User]) -> None:
    User.objects.create_user("stranger", password=PASSWORD)
    User.objects.filter(username="viewer").update(is_active=False)
    assert log_in(client, "stranger", PASSWORD) == 400
    assert log_in(client, "viewer", PASSWORD) == 400


def test_logging_out_ends_the_session(client: Client, users: dict[str, User]) -> None:
    log_in(client, "viewer", PASSWORD)
    assert client.get("/logout").status_code == 405, "a link must not log anybody out"
    client.post("/logout")
    assert client.get("/").status_code == 302


def test_a_new_password_ends_all_sessions(client: Client, users: dict[str, User]) -> None:
    other = Client()
    log_in(client, "viewer", PASSWORD)
    log_in(other, "viewer", PASSWORD)
    response = client.post("/account", {"present": PASSWORD, "password": "another long secret"})
    assert response.status_code == 302
    assert other.get("/").status_code == 302
    assert log_in(client, "viewer", "another long secret") == 302
    assert "another" not in str(Operation.objects.get().parameters) + str(
        AuditEntry.objects.get(action="password.change").parameters
    )


@pytest.mark.parametrize(
    ("present", "password"), [("wrong", "another long secret"), (PASSWORD, "short"), (PASSWORD, "password1234")]
)
def test_a_password_change_has_rules(viewer: Client, present: str, password: str) -> None:
    assert viewer.post("/account", {"present": present, "password": password}).status_code == 400


# ---- roles and users


def test_roles_are_ordered() -> None:
    assert permissions_of(Role.NONE) == frozenset()
    assert (
        permissions_of(Role.VIEWER)
        < permissions_of(Role.OPERATOR)
        < permissions_of(Role.ADMIN)
        == frozenset(PERMISSIONS)
    )


def test_an_admin_manages_users(admin: Client, client: Client) -> None:
    body = {"username": "eve", "role": "operator", "password": "a very long secret"}
    assert admin.post("/api/v1/users", body, content_type="application/json").status_code == 200
    assert log_in(client, "eve", "a very long secret") == 302
    assert client.get("/topics/new").status_code == 200
    eve = User.objects.get(username="eve")
    admin.patch(f"/api/v1/users/{eve.pk}", {"role": "viewer"}, content_type="application/json")
    assert client.get("/topics/new").status_code == 403
    admin.patch(f"/api/v1/users/{eve.pk}", {"active": False}, content_type="application/json")
    assert client.get("/").status_code == 302
    assert "very long" not in str(list(Operation.objects.values())) + str(list(AuditEntry.objects.values()))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"username": "", "role": "viewer", "password": "a very long secret"}, "username"),
        ({"username": "a b", "role": "viewer", "password": "a very long secret"}, "username"),
        ({"username": "Viewer", "role": "viewer", "password": "a very long secret"}, "username"),
        ({"username": "x", "role": "king", "password": "a very long secret"}, "role"),
        ({"username": "x", "role": "viewer", "password": "short"}, "password"),
    ],
)
def test_bad_users_are_refused_with_the_rule(admin: Client, body: dict[str, str], field: str) -> None:
    response = admin.post("/api/v1/users", body, content_type="application/json")
    assert response.status_code == 400
    assert field in response.json()["errors"]


def test_the_last_admin_stays(admin: Client, users: dict[str, User]) -> None:
    path = f"/api/v1/users/{users['admin'].pk}"
    for body in ({"role": "viewer"}, {"active": False}):
        response = admin.patch(path, body, content_type="application/json")
        assert (response.status_code, response.json()["code"]) == (409, "last-admin")


def test_the_first_admin_is_made_once(db: None, tmp_path: Path) -> None:
    made = services.ensure_admin()
    assert made is not None
    name, password = made
    user = User.objects.get()
    assert (user.username, role_of(user)) == (name, Role.ADMIN)
    assert user.check_password(password)
    assert services.ensure_admin() is None
    path = tmp_path / "secrets" / "cli-token"
    ensure_cli_token(path)
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text().strip()
    assert tokens.find(text) is not None
    ensure_cli_token(path)
    assert path.read_text().strip() == text, "a valid one is kept"
    ApiToken.objects.update(revoked_at=timezone.now())
    ensure_cli_token(path)
    assert path.read_text().strip() != text
    text = path.read_text().strip()
    ApiToken.objects.filter(revoked_at=None).update(scopes=["cluster.read"])
    ensure_cli_token(path)
    assert path.read_text().strip() != text, "one that allows too little is replaced"
    found = tokens.find(path.read_text().strip())
    assert found is not None
    assert "controllers.write" in found.scopes


def test_the_time_zone_is_the_persons(viewer: Client) -> None:
    assert viewer.post("/account", {"time_zone": "Mars/Olympus"}).status_code == 400
    viewer.post("/account", {"time_zone": "Asia/Tokyo"})
    assert "2026-11-20 19:00:00" in viewer.get("/").content.decode()


# ---- tokens


def test_a_token_works_once_made_and_is_shown_once(operator: Client, client: Client) -> None:
    body = {"name": "deploy", "scopes": ["cluster.read", "topics.write"], "expires_in_days": 30}
    document = operator.post("/api/v1/tokens", body, content_type="application/json").json()
    text = document["once"]["token"]
    headers = {"Authorization": f"Bearer {text}"}
    assert client.get("/api/v1/topics", headers=headers).status_code == 200
    assert client.get("/api/v1/audit", headers=headers).status_code == 403
    everything = (
        str(list(ApiToken.objects.values()))
        + str(list(Operation.objects.values()))
        + str(list(AuditEntry.objects.values()))
    )
    assert text.split("_", 2)[2] not in everything
    listed = operator.get("/api/v1/tokens").json()["items"][0]
    assert listed["last_used_at"] is not None
    assert "secret" not in str(listed)


def test_a_token_reads_while_nothing_can_be_written(client: Client, bearer: Callable[..., dict[str, str]]) -> None:
    def refuse_writes(execute: Callable[..., Any], sql: str, *others: Any) -> Any:
        if sql.startswith("UPDATE"):
            raise OperationalError("database or disk is full")
        return execute(sql, *others)

    headers = bearer("viewer", "cluster.read")
    with connection.execute_wrapper(refuse_writes):
        assert client.get("/api/v1/cluster", headers=headers).status_code == 200
    assert ApiToken.objects.get().last_used_at is None


def test_a_token_acts_without_csrf_and_is_audited_as_a_token(
    client: Client, bearer: Callable[..., dict[str, str]]
) -> None:
    strict = Client(enforce_csrf_checks=True)
    headers = bearer("operator", "topics.write")
    response = strict.post("/api/v1/topics", {"name": "payments"}, content_type="application/json", headers=headers)
    assert response.status_code == 202
    assert AuditEntry.objects.get().token_prefix == headers["Authorization"].split("_")[1]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_a_broken_token_is_401(client: Client, bearer: Callable[..., dict[str, str]], scheme: str) -> None:
    good = bearer("viewer", "cluster.read")["Authorization"].split(" ")[1]
    for text in ("", "x", "lb_", good[:-1], good + "x", good.replace("lb_", "lc_"), "lb_0000000000_" + "x" * 43):
        response = client.get("/api/v1/topics", headers={"Authorization": f"{scheme} {text}"})
        assert response.status_code == 401, text
        assert response["Content-Type"] == "application/problem+json"
    assert client.get("/api/v1/topics", headers={"Authorization": "Basic dTpw"}).status_code == 401


def test_a_token_ends_by_expiry_revocation_and_its_owner(client: Client, users: dict[str, User]) -> None:
    def works(text: str) -> bool:
        return client.get("/api/v1/topics", headers={"Authorization": f"Bearer {text}"}).status_code == 200

    token, text = tokens.create(users["viewer"], "t", ["cluster.read"], 1)
    assert works(text)
    ApiToken.objects.update(expires_at=timezone.now())
    assert not works(text)
    ApiToken.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    assert works(text)
    assert tokens.revoke(token)
    assert not works(text)
    assert not tokens.revoke(token)
    _, text = tokens.create(users["viewer"], "t", ["cluster.read"])
    User.objects.filter(username="viewer").update(is_active=False)
    assert not works(text)


def test_a_token_loses_what_its_owner_loses(client: Client, users: dict[str, User]) -> None:
    _, text = tokens.create(users["admin"], "t", list(PERMISSIONS))
    headers = {"Authorization": f"Bearer {text}"}
    assert client.get("/api/v1/audit", headers=headers).status_code == 200
    set_role(users["admin"], "viewer")
    response = client.get("/api/v1/audit", headers=headers)
    assert (response.status_code, response.json()["code"]) == (403, "permission-denied")


def test_a_token_cannot_make_a_stronger_token(client: Client, bearer: Callable[..., dict[str, str]]) -> None:
    headers = bearer("admin", "tokens.write")
    body = {"name": "stronger", "scopes": ["users.write"]}
    response = client.post("/api/v1/tokens", body, content_type="application/json", headers=headers)
    assert response.status_code == 400
    assert "you may not do this yourself" in response.json()["errors"]["scopes"][0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "scopes": ["cluster.read"]}, "name"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "scopes": ["everything"]}, "scopes"),
        ({"name": "x", "scopes": ["audit.read"]}, "scopes"),
        ({"name": "x", "scopes": ["cluster.read"], "expires_in_days": 0}, "expires_in_days"),
    ],
)
def test_bad_tokens_are_refused_with_the_rule(viewer: Client, body: dict[str, object], field: str) -> None:
    response = viewer.post("/api/v1/tokens", body, content_type="application/json")
    assert response.status_code == 400
    assert any(name.startswith(field) for name in response.json()["errors"])


def test_tokens_of_others_are_hidden_except_from_admins(viewer: Client, admin: Client, users: dict[str, User]) -> None:
    token, _ = tokens.create(users["operator"], "theirs", ["cluster.read"])
    assert viewer.get("/api/v1/tokens").json()["items"] == []
    assert viewer.delete(f"/api/v1/tokens/{token.pk}").json()["code"] == "token-not-found"
    assert b"theirs" not in viewer.get("/tokens/").content
    assert b"theirs" in admin.get("/tokens/").content
    assert admin.post(f"/tokens/{token.pk}/revoke").status_code == 302
    token.refresh_from_db()
    assert token.revoked_at is not None


SECRET = re.compile(r"lb_[0-9a-f]{10}_[\w-]+")


def make_token(client: Client, name: str) -> None:
    response = client.post("/tokens/", {"name": name, "scopes": ["cluster.read"], "expires_in_days": ""})
    assert (response.status_code, response["Location"]) == (302, "/tokens/")
    assert not SECRET.search(response.content.decode())


def test_the_page_shows_a_new_token_once_and_a_reload_makes_no_second(viewer: Client, admin: Client) -> None:
    make_token(viewer, "m" * 80)
    assert not SECRET.search(admin.get("/tokens/").content.decode()), "only its owner is shown it"
    viewer.get("/")
    viewer.get("/palette?q=to", headers={"HX-Request": "true"})
    text = viewer.get("/tokens/").content.decode()
    assert "not shown again" in text
    [secret] = SECRET.findall(text)
    found = tokens.find(secret)
    assert found is not None
    assert found.name == "m" * 80
    again = viewer.get("/tokens/").content.decode()
    assert not SECRET.search(again)
    assert "not shown again" not in again
    assert ApiToken.objects.count() == 1


def everything_stored() -> str:
    """All tables of the console with what sessions and operations hold, as text."""
    rows = [list(model.objects.values()) for model in apps.get_models(include_auto_created=True)]
    return str([*rows, *(session.get_decoded() for session in Session.objects.all())])


def test_what_a_new_token_reads_is_stored_nowhere_not_even_until_it_is_shown(viewer: Client) -> None:
    make_token(viewer, "mine")
    stored, cookie = everything_stored(), viewer.cookies[handover.COOKIE]
    assert "mine" in stored
    assert not SECRET.search(stored)
    assert not SECRET.search(cookie.value), "nor can it be read where the browser keeps it"
    assert (cookie["max-age"], cookie["path"], cookie["httponly"]) == (300, "/tokens/", True)
    [secret] = SECRET.findall(viewer.get("/tokens/").content.decode())
    assert secret.split("_", 2)[2] not in everything_stored()
    assert viewer.cookies[handover.COOKIE].value == "", "the browser forgets it with the page that shows it"


def test_a_token_that_nobody_looked_at_cannot_be_shown_after_five_minutes(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_token(viewer, "mine")
    sealed, present_s = viewer.cookies[handover.COOKIE].value, time.time()
    for later_s, shown in ((handover.LIFE_S + 5, False), (handover.LIFE_S - 5, True)):
        viewer.cookies[handover.COOKIE] = sealed
        monkeypatch.setattr(time, "time", partial(operator.add, present_s, later_s))
        assert bool(SECRET.search(viewer.get("/tokens/").content.decode())) is shown


def test_only_the_session_that_made_a_token_is_shown_it(viewer: Client, admin: Client, users: dict[str, User]) -> None:
    make_token(viewer, "mine")
    sealed = viewer.cookies[handover.COOKIE].value
    logged_out = viewer.post("/logout")
    assert logged_out.cookies[handover.COOKIE].value == ""
    viewer.force_login(users["viewer"])
    for other in (viewer, admin):
        for given in (sealed, sealed[:-9], "nonsense", ""):
            other.cookies[handover.COOKIE] = given
            assert not SECRET.search(other.get("/tokens/").content.decode())


def test_two_tokens_made_before_the_page_is_seen_are_both_shown(viewer: Client) -> None:
    make_token(viewer, "first")
    make_token(viewer, "second")
    refused = viewer.post("/tokens/", {"name": "", "scopes": ["cluster.read"], "expires_in_days": ""})
    assert refused.status_code == 400
    assert not SECRET.search(refused.content.decode())
    text = viewer.get("/tokens/").content.decode()
    assert [token.name for each in SECRET.findall(text) if (token := tokens.find(each))] == ["first", "second"]
    assert not SECRET.search(viewer.get("/tokens/").content.decode())


def test_a_token_that_was_not_shown_is_gone_after_the_logout(viewer: Client, users: dict[str, User]) -> None:
    make_token(viewer, "mine")
    viewer.post("/logout")
    viewer.force_login(users["viewer"])
    assert not SECRET.search(viewer.get("/tokens/").content.decode())


def test_a_refused_form_keeps_what_was_ticked(admin: Client, users: dict[str, User]) -> None:
    given = {"name": "", "expires_in_days": "0", "scopes": ["topics.write", "groups.write"]}
    text = admin.post("/tokens/", given).content.decode()
    assert set(re.findall(r'name="scopes" value="([\w.]+)" checked', text)) == set(given["scopes"])
    text = admin.post(f"/users/{users['viewer'].pk}/", {"role": "nobody"}).content.decode()
    row = text[text.index(f'name="active" form="user-{users["viewer"].pk}"') :][:80]
    assert "checked" not in row, "the tick was taken away"
    other = text[text.index(f'name="active" form="user-{users["operator"].pk}"') :][:80]
    assert "checked" in other
