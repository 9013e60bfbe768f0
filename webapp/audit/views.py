"""The page of the audit trail."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from webapp.audit import services
from webapp.errors import InvalidInput
from webapp.operations.registry import KINDS
from webapp.pages import needs, page, part_or_page
from webapp.paging import paged


@require_GET
@needs("audit.read")
def audit(request: HttpRequest) -> HttpResponse:
    try:
        rows = services.search(request.GET)
    except InvalidInput as problem:
        return page(
            request, "audit/list.html", {"problem": problem, "page": paged([], request.GET), "kinds": KINDS}, 400
        )
    context = {"page": paged(rows, request.GET), "kinds": KINDS}
    template = "audit/_list.html" if request.htmx and request.htmx.target == "list" else "audit/list.html"
    return page(request, template, context)


@require_GET
@needs("audit.read")
def verify(request: HttpRequest) -> HttpResponse:
    return page(request, part_or_page(request, "audit/verification.html"), {"verification": services.verify()})
