"""A viewer at every address that changes something, over REST with a token and on pages with a browser: it is refused, for who he
is and not for what he wrote, and nothing is changed. What he may is written down, so a new address needs a line here."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from django.test import Client
from django.urls import URLPattern

from tests.web.fakes import FakeAccess, FakeCluster, RecordingQueue
from tests.web.test_api import EXAMPLES, endpoints
from webapp.accounts import tokens
from webapp.accounts.models import ApiToken, ReadRight, User
from webapp.accounts.permissions import PERMISSIONS
from webapp.audit.models import AuditEntry
from webapp.operations.models import Operation
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.urls import urlpatterns

CHANGES: Final = [each for each in endpoints() if each[0] != "GET"]
OWN_TOKENS: Final = {("POST", "/api/v1/tokens"), ("DELETE", "/api/v1/tokens/1")}  # and nobody else's
OWN_PAGES: Final = {"/tokens/", "/tokens/1/revoke", "/account", "/account/confirm", "/theme", "/login", "/logout"}


@pytest.fixture
def others(users: dict[str, User]) -> dict[str, Any]:
    """What others made, by the names in addresses."""
    token, _ = tokens.create(users["admin"], "of the admin", ["cluster.read"])
    operation = Operation.objects.create(kind="topic.create", target="orders", requested_by=users["operator"])
    return {**EXAMPLES, "token_id": token.pk, "operation_id": operation.pk, "user_id": users["admin"].pk}


def state() -> list[Any]:
    """All that a change would change."""
    tables = (ApiToken, ReadRight, User, Operation, ReportRun, ReportSchedule)
    ours = [sorted(map(str, table.objects.values_list("pk"))) for table in tables]
    ours += [sorted(map(str, User.objects.values_list("pk", "password", "is_active", "groups__name")))]
    ours += [sorted(map(str, ApiToken.objects.values_list("pk", "revoked_at", "scopes")))]
    ours += [sorted(map(str, Operation.objects.values_list("pk", "state", "cancel_requested")))]
    return [*ours, list(RecordingQueue.sent), dict(FakeAccess.passwords), str(sorted(FakeCluster.__dict__.items()))]


@pytest.mark.parametrize(("method", "address"), [each for each in CHANGES if each not in OWN_TOKENS])
def test_a_viewers_token_changes_nothing_whatever_its_scopes_say(
    client: Client,
    users: dict[str, User],
    others: dict[str, Any],
    method: str,
    address: str,
) -> None:
    _, text = tokens.create(users["viewer"], "all that there is", sorted(PERMISSIONS))
    names = {EXAMPLES[name]: str(others[name]) for name in ("operation_id", "user_id")}
    address = "/".join(names.get(part, part) for part in address.split("/"))
    before = state()
    headers = {"Authorization": f"Bearer {text}"}
    response = client.generic(method, address, "{}", content_type="application/json", headers=headers)
    assert (response.status_code, response.json()["code"]) == (403, "permission-denied")
    assert state() == before
    assert AuditEntry.objects.filter(actor_name="viewer", outcome=AuditEntry.Outcome.REFUSED).count() == 1


def test_a_viewers_token_ends_no_other_persons(
    client: Client,
    users: dict[str, User],
    others: dict[str, Any],
) -> None:
    _, text = tokens.create(users["viewer"], "all that there is", sorted(PERMISSIONS))
    before = state()
    address = f"/api/v1/tokens/{others['token_id']}"
    assert client.delete(address, headers={"Authorization": f"Bearer {text}"}).status_code == 404
    assert state() == before


def pages() -> list[str]:
    """The addresses of all pages, with names for their parts."""
    found = [str(each.pattern) for each in urlpatterns if isinstance(each, URLPattern)]
    assert len(found) > 50
    return [f"/{each}" for each in found]


@pytest.mark.parametrize("pattern", pages())
def test_a_viewers_browser_changes_nothing(viewer: Client, others: dict[str, Any], pattern: str) -> None:
    parts = {**others, "action": "add", "change": "retire", "report": "volume"}
    address = re.sub(r"<(?:\w+:)?(\w+)>", lambda match: str(parts[match[1]]), pattern)
    before = state()
    status = viewer.post(address, {}).status_code
    if address in OWN_PAGES - {"/tokens/1/revoke"}:
        assert status in (200, 302, 400)
    elif pattern.startswith("/tokens/"):
        assert status == 404
    else:
        assert status in (403, 405)
    assert state() == before
