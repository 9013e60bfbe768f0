"""The console's own users: what a stolen or a weak key of one of them does not open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone

from tests.web.conftest import PASSWORD, actor, admin, bearer, console, users, viewer  # noqa: F401
from webapp import origin
from webapp.accounts import services, tokens
from webapp.accounts.models import ApiToken, User
from webapp.accounts.permissions import role_of

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
