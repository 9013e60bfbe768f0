"""The page of half messages that were given up, and the dialog that ends one of them."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from webapp import snapshot
from webapp.errors import InvalidInput, Problem
from webapp.pages import dialog_page, needs, page
from webapp.transactions import given_up
from webapp.transactions.changes import DECISIONS


@require_GET
@needs("messages.read")
def transactions(request: HttpRequest) -> HttpResponse:
    """Those of one broker group, the first one if none is chosen."""
    names = [group.name for group in snapshot.current().facts.groups]
    chosen = request.GET.get("group") or next(iter(names), "")
    context: dict[str, Any] = {"groups": names, "chosen": chosen}
    status = 200
    if chosen:
        try:
            context["found"] = given_up.ask(chosen, request.GET.dict())
        except Problem as problem:
            context["problem"], status = problem, problem.status
    return page(request, "transactions/list.html", context, status=status)


@require_http_methods(["GET", "POST"])
@needs("transactions.write")
def decide(request: HttpRequest) -> HttpResponse:
    """What ending one means; confirmed, its operation shows the outcome."""
    given = request.POST if request.method == "POST" else request.GET
    group, offset, decision = given.get("group", ""), given.get("offset", ""), given.get("decision", "")
    if not offset.isdecimal() or len(offset) > 18 or decision not in DECISIONS:
        raise InvalidInput(f"offset must be a number, and decision one of {', '.join(DECISIONS)}")
    context: dict[str, Any] = {
        "title": f"{'Commit' if decision == 'commit' else 'Roll back'} a message of {group}",
        "group": group,
        "decision": decision,
    }
    if request.method == "GET":
        context["each"] = given_up.one(group, int(offset))
    parameters = {"group": group, "offset": offset, "decision": decision}
    return dialog_page(request, "transactions/decide.html", context, "transaction.decide", parameters)
