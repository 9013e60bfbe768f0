"""The pages of operations: what was asked for and what became of it."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.permissions import actor_of
from webapp.operations import services
from webapp.operations.models import Operation
from webapp.operations.registry import KINDS
from webapp.pages import needs, page
from webapp.paging import paged


@require_GET
@needs("operations.read")
def operations(request: HttpRequest) -> HttpResponse:
    rows = Operation.objects.order_by("-created_at")
    kind, state = request.GET.get("kind", ""), request.GET.get("state", "")
    if kind in KINDS:
        rows = rows.filter(kind=kind)
    if state in Operation.STATES:
        rows = rows.filter(state=state)
    shown = paged(rows[:2000], request.GET)
    for each in shown.items:
        each.title = KINDS[each.kind].title if each.kind in KINDS else each.kind
    context = {"page": shown, "kinds": KINDS, "states": Operation.STATES}
    template = "operations/_list.html" if request.htmx and request.htmx.target == "list" else "operations/list.html"
    return page(request, template, context)


@require_GET
@needs("operations.read")
def operation(request: HttpRequest, operation_id: UUID) -> HttpResponse:
    found = services.find(operation_id)
    return page(request, "operations/operation.html", {"operation": found, "kind": KINDS.get(found.kind)})


@require_POST
@needs("operations.read")
def cancel(request: HttpRequest, operation_id: UUID) -> HttpResponse:
    services.cancel(actor_of(request), services.find(operation_id))
    return HttpResponseRedirect(reverse("operation", args=[operation_id]))
