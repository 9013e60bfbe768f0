"""The Ctrl-K palette: every page and object that the person may see, by a part of its name."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from webapp import snapshot
from webapp.accounts.permissions import actor_of
from webapp.pages import needs, page

PAGES = (
    ("Overview", "landing", "home", "cluster.read"),
    ("Topics", "topics", "topic", "cluster.read"),
    ("Create topic", "topic-create", "plus", "topics.write"),
    ("Consumer groups", "groups", "group", "cluster.read"),
    ("Create consumer group", "group-create", "plus", "groups.write"),
    ("Reports", "reports", "report", "reports.read"),
    ("Operations", "operations", "operation", "operations.read"),
    ("Audit trail", "audit", "audit", "audit.read"),
    ("API tokens", "tokens", "token", "tokens.write"),
    ("Client users", "client-users", "lock", "access.read"),
    ("Users", "users", "user", "users.write"),
    ("Account", "account", "user", "tokens.write"),
)
SHOWN = 12


@require_GET
@needs("cluster.read")
def palette(request: HttpRequest) -> HttpResponse:
    wanted = request.GET.get("q", "").strip().lower()[:127]
    actor, present = actor_of(request), snapshot.current()
    found = [
        {"text": text, "kind": "page", "icon": icon, "address": reverse(name)}
        for text, name, icon, permission in PAGES
        if actor.may(permission) and wanted in text.lower()
    ]
    found += [
        {"text": topic.name, "kind": "topic", "icon": "topic", "address": reverse("topic", args=[topic.name])}
        for topic in (present.find_topics(wanted, with_system=True) if wanted else ())
    ]
    found += [
        {
            "text": group.name,
            "kind": "consumer group",
            "icon": "group",
            "address": reverse("group", args=[group.name]),
        }
        for group in (present.find_consumer_groups(wanted, with_system=True) if wanted else ())
    ]
    return page(request, "_palette.html", {"found": found[:SHOWN], "more": max(0, len(found) - SHOWN)})
