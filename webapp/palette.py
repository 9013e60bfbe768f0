"""The Ctrl-K palette: every page and object that the person may see, by a part of its name."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from remoting.facts.words import TopicKind
from webapp import snapshot
from webapp.accounts.permissions import actor_of
from webapp.pages import needs, page
from webapp.topics.purpose import in_order

PAGES = (
    ("Overview", "landing", "home", "cluster.read"),
    ("Topics", "topics", "topic", "cluster.read"),
    ("Create topic", "topic-create", "plus", "topics.write"),
    ("Timers", "timers", "hourglass", "cluster.read"),
    ("Consumer groups", "groups", "group", "cluster.read"),
    ("Create consumer group", "group-create", "plus", "groups.write"),
    ("Reports", "reports", "report", "reports.read"),
    ("History", "history", "clock", "cluster.read"),
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
    if wanted:
        topics = in_order(present.find_topics(wanted, with_system=True))
        own = [topic for topic in topics if topic.kind is TopicKind.ORDINARY]
        groups = present.find_consumer_groups(wanted, with_system=True)
        found += [_entry(topic.name, "topic", "topic") for topic in own]
        found += [_entry(group.name, "consumer group", "group") for group in groups]
        found += [_entry(topic.name, "topic", "topic") for topic in topics[len(own) :]]
    return page(request, "_palette.html", {"found": found[:SHOWN], "more": max(0, len(found) - SHOWN)})


def _entry(name: str, kind: str, page_name: str) -> dict[str, str]:
    return {"text": name, "kind": kind, "icon": page_name, "address": reverse(page_name, args=[name])}
