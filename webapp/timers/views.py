"""The page of timers, the search among them, and the dialog that recalls some."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from webapp import snapshot
from webapp.accounts.permissions import actor_of
from webapp.errors import Problem
from webapp.operations.services import submit
from webapp.pages import dialog_page, live_page, needs, page
from webapp.timers import find as timers_find
from webapp.timers.changes import DEFAULT_RATE

FIELDS = ("group", "topic", "key", "due_from", "due_before", "place", "rate")


@require_GET
@needs("cluster.read")
def timers(request: HttpRequest) -> HttpResponse:
    """What waits, and until when."""
    names = [each.name for each in snapshot.current().facts.groups]
    context = {"groups": names, "group": request.GET.get("group", ""), "topic": request.GET.get("topic", "")}
    return live_page(request, "timers", "timers/timers.html", context)


@require_GET
@needs("messages.read")
def find(request: HttpRequest) -> HttpResponse:
    """Single timers: by key or id, or by when they are due; of one broker group at a time."""
    given = {name: value for name, value in request.GET.items() if value}
    names = [each.name for each in snapshot.current().facts.groups]
    context: dict[str, Any] = {"groups": names, "values": request.GET, "errors": {}, "asked": bool(given)}
    status = 200
    if given:
        try:
            context["found"] = timers_find.find(given)
        except Problem as problem:
            context.update(problem=problem, errors=problem.fields)
            status = problem.status
    return page(request, "timers/find.html", context, status=status)


@require_http_methods(["GET", "POST"])
@needs("timers.write")
def recall(request: HttpRequest) -> HttpResponse:
    """What a recall would take back; confirmed, its operation shows what became of it."""
    given = request.POST if request.method == "POST" else request.GET
    parameters = {name: value for name in FIELDS if (value := given.get(name, ""))}
    context: dict[str, Any] = {"title": "Recall messages that wait", "rate": DEFAULT_RATE}
    if request.method == "GET":
        try:
            context["plan"] = submit(actor_of(request), "timer.recall", parameters, dry_run=True).plan
        except Problem as problem:
            context["problem"] = problem
    return dialog_page(request, "timers/recall.html", context, "timer.recall", parameters)
