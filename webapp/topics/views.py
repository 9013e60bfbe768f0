"""The pages of topics: list, one topic, and the forms that create, change and delete one."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from remoting.names import MAX_TOPIC_LENGTH
from webapp import snapshot
from webapp.errors import NotFound, Problem
from webapp.messages.views import send_choices
from webapp.pages import form_page, live_page, needs, page, posted
from webapp.rules import MAX_QUEUES, NAME_RULE, PERMISSION_BITS, TOPIC_TYPES
from webapp.topics.changes import (
    DEFAULT_QUEUES,
    EXPORT_FORMATS,
    MAX_RESERVE_HOURS,
    configuration_and_oddities,
    existing,
)
from webapp.topics.live import file_retention

FIELDS = ("name", "type", "queues", "perm", "group", "tier_enable", "tier_archive", "tier_export")


@require_GET
@needs("cluster.read")
def topics(request: HttpRequest) -> HttpResponse:
    return live_page(request, "topics", "topics/list.html")


@require_GET
@needs("cluster.read")
def topic(request: HttpRequest, name: str) -> HttpResponse:
    present = snapshot.current()
    known = present.topics.get(name)
    if known is None and present.data is not None:
        raise NotFound(
            f"There is no topic {name}. A new one appears here within a second or two.", code="topic-not-found"
        )
    context = {"name": name, "system": bool(known and known.system), **send_choices(name)}
    return live_page(request, "topic", "topics/topic.html", context)


@require_http_methods(["GET", "POST"])
@needs("topics.write")
def create(request: HttpRequest) -> HttpResponse:
    context = {**_choices(), "values": {"type": "NORMAL", "queues": DEFAULT_QUEUES, "perm": 6}}
    return form_page(request, "topics/create.html", context, "topic.create", _given(request, says_local=False))


@require_http_methods(["GET", "POST"])
@needs("topics.write")
def edit(request: HttpRequest, name: str) -> HttpResponse:
    context: dict[str, Any] = {**_choices(), "name": name}
    if request.method == "GET":
        try:
            values, odd = configuration_and_oddities(name)
            if "tier.enable" in odd:  # brokers take that for no
                values = {**values, "tier_enable": False}
            context.update(values=values, odd=odd)
        except Problem as problem:
            return page(request, "topics/edit.html", {**context, "problem": problem}, status=problem.status)
    known = snapshot.current().topics.get(name)
    given = _given(request, says_local=known is None or known.local_reserved_hours is not None)
    return form_page(request, "topics/edit.html", context, "topic.update", {**given, "name": name})


@require_http_methods(["GET", "POST"])
@needs("topics.write")
def delete(request: HttpRequest, name: str) -> HttpResponse:
    present = snapshot.current()
    known = present.topics.get(name)
    if known is None:
        existing(name)
    consumers = [each.group.name for each in present.consumers_of(name)]
    context = {"name": name, "topic": known, "consumers": consumers}
    parameters = {"name": name, **posted(request, "confirmation")}
    return form_page(request, "topics/delete.html", context, "topic.delete", parameters)


@require_http_methods(["GET", "POST"])
@needs("topics.write")
def open_gate(request: HttpRequest, name: str) -> HttpResponse:
    """Giving up on a broker group for which ordered groups wait."""
    given = {field: request.GET.get(field, "") for field in ("group", "source")}
    parameters = {"name": name, **posted(request, "group", "source")}
    return form_page(request, "topics/open_gate.html", {"name": name, "values": given}, "topic.open-gate", parameters)


@require_http_methods(["GET", "POST"])
@needs("topics.write")
def export(request: HttpRequest, name: str) -> HttpResponse:
    """Writing what is due as Parquet now, without waiting for the workers' next look."""
    if snapshot.current().data is not None:
        existing(name)
    return form_page(request, "topics/export.html", {"name": name}, "tier.export", {"name": name})


def _choices() -> dict[str, Any]:
    tiers = [group.tier for group in snapshot.current().facts.groups if group.tier is not None]
    return {
        "tiers": tiers,
        "most_hours": MAX_RESERVE_HOURS,
        "file_times_ms": sorted({each.reserved_ms for each in file_retention(snapshot.current())}),
        "exports": EXPORT_FORMATS,
        "types": TOPIC_TYPES,
        "permissions": PERMISSION_BITS,
        "groups": [group.name for group in snapshot.current().facts.groups],
        "name_rule": NAME_RULE,
        "max_name": MAX_TOPIC_LENGTH,
        "max_queues": MAX_QUEUES,
    }


def _given(request: HttpRequest, *, says_local: bool) -> dict[str, Any]:
    """What the form says. Brokers of earlier releases refuse attributes that they do not know, so a topic that says nothing of
    local files goes on to say nothing."""
    given = {field: request.POST[field] for field in FIELDS if field in request.POST}
    for field in ("local_reserve_time", "tier_reserve_time"):
        hours = request.POST.get(field, "").strip()
        if field in request.POST and (hours or says_local or field != "local_reserve_time"):
            given[field] = hours or "-1"  # nothing = as long as the brokers say
    return given
