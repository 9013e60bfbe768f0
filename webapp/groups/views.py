"""The pages of consumer groups."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from remoting.group_settings import MOST_INVISIBLE_MS, ORDER_SCOPES, named_settings
from remoting.names import MAX_GROUP_LENGTH
from webapp import snapshot
from webapp.errors import Problem
from webapp.groups.changes import DEFAULT_ATTEMPTS, existing
from webapp.groups.settings import configured
from webapp.pages import form_page, live_page, needs, page, posted
from webapp.rules import NAME_RULE


@require_GET
@needs("cluster.read")
def groups(request: HttpRequest) -> HttpResponse:
    return live_page(request, "groups", "groups/list.html")


@require_GET
@needs("cluster.read")
def group(request: HttpRequest, name: str) -> HttpResponse:
    present = snapshot.current()
    if present.data is not None:
        present.consumer_group(name)  # an unknown one is not found; while nothing is known, the page says that
    return live_page(request, "group", "groups/group.html", {"name": name})


@require_http_methods(["GET", "POST"])
@needs("groups.write")
def create(request: HttpRequest) -> HttpResponse:
    values = {"retry_max_times": DEFAULT_ATTEMPTS, "order_scope": ORDER_SCOPES[0]}
    context = {"values": values, "most_ms": MOST_INVISIBLE_MS, "name_rule": NAME_RULE, "max_name": MAX_GROUP_LENGTH}
    parameters = {
        "name": request.POST.get("name"),
        "fifo": request.POST.get("fifo", "off"),
        "retry_max_times": request.POST.get("retry_max_times"),
        **named_settings(request.POST.dict()),
    }
    return form_page(request, "groups/create.html", context, "group.create", parameters)


@require_http_methods(["GET", "POST"])
@needs("groups.write")
def edit(request: HttpRequest, name: str) -> HttpResponse:
    existing(name)
    context: dict[str, Any] = {"name": name, "most_ms": MOST_INVISIBLE_MS}
    if request.method == "GET":
        try:
            context["values"] = configured(name)
        except Problem as problem:
            return page(request, "groups/edit.html", {**context, "problem": problem}, status=problem.status)
    parameters = {**named_settings(request.POST.dict()), "name": name}
    return form_page(request, "groups/edit.html", context, "group.update", parameters)


@require_http_methods(["GET", "POST"])
@needs("groups.write")
def delete(request: HttpRequest, name: str) -> HttpResponse:
    found = existing(name)
    parameters = {"name": name, **posted(request, "confirmation")}
    return form_page(request, "groups/delete.html", {"name": name, "group": found}, "group.delete", parameters)
