"""The page of the history."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from webapp.accounts.permissions import actor_of
from webapp.errors import InvalidInput
from webapp.history.search import FAULTS, KINDS, groups, operations_of, search
from webapp.pages import needs, page
from webapp.paging import paged


@require_GET
@needs("cluster.read")
def history(request: HttpRequest) -> HttpResponse:
    context = {"kinds": (FAULTS, *KINDS), "groups": groups()}
    try:
        rows = search(request.GET)
    except InvalidInput as problem:
        return page(request, "history/list.html", {**context, "problem": problem, "page": paged([], request.GET)}, 400)
    shown = paged(rows, request.GET)
    context |= {"page": shown, "operations": operations_of(shown.items, actor_of(request))}
    template = "history/_list.html" if request.htmx and request.htmx.target == "list" else "history/list.html"
    return page(request, template, context)
