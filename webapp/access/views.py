"""The pages of client users: all of them, and one with its permissions and what they decide."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods, require_POST

from remoting.access.model import ACTIONS, TYPES
from webapp.access.changes import DECISIONS, LEAST_SECRET, POLICIES, STATUSES, USER_TYPES
from webapp.access.overview import client_users, explain, one_of
from webapp.errors import InvalidInput, Problem
from webapp.pages import form_page, go_to, needs, page, posted

_QUESTION = ("type", "resource", "action", "source")


@require_http_methods(["GET", "POST"])
@needs("access.read")
def users(request: HttpRequest) -> HttpResponse:
    context: dict[str, Any] = {**_choices(), "users": []}
    try:
        context["users"] = client_users()
    except Problem as problem:
        return page(request, "access/list.html", {**context, "problem": problem}, status=problem.status)
    given = posted(request, "name", "type", "password")
    return form_page(
        request, "access/list.html", context, "client-user.create", given, go_to("client-user", given["name"])
    )


@require_http_methods(["GET", "POST"])
@needs("access.read")
def user(request: HttpRequest, name: str) -> HttpResponse:
    context = _context(name)
    context.update(_answer(request, context))
    given = {"name": name, **{field: request.POST.get(field) or None for field in ("type", "status", "password")}}
    return form_page(request, "access/user.html", context, "client-user.update", given, go_to("client-user", name))


@require_POST
@needs("access.write")
def delete(request: HttpRequest, name: str) -> HttpResponse:
    given = {"name": name, **posted(request, "confirmation")}
    return form_page(request, "access/user.html", _context(name), "client-user.delete", given, go_to("client-users"))


@require_POST
@needs("access.write")
def put_permission(request: HttpRequest, name: str) -> HttpResponse:
    given = {
        "name": name,
        "resource": request.POST.get("resource", "").strip(),
        "actions": request.POST.getlist("actions"),
        "sources": [each.strip() for each in request.POST.get("sources", "").split(",") if each.strip()],
        "decision": request.POST.get("decision") or None,
        "policy": request.POST.get("policy") or None,
    }
    return form_page(request, "access/user.html", _context(name), "permission.put", given, go_to("client-user", name))


@require_POST
@needs("access.write")
def remove_permission(request: HttpRequest, name: str) -> HttpResponse:
    given = {"name": name, "resource": request.POST.get("resource", ""), "policy": request.POST.get("policy") or None}
    return form_page(
        request, "access/user.html", _context(name), "permission.remove", given, go_to("client-user", name)
    )


def _context(name: str) -> dict[str, Any]:
    found = client_users()
    return {**_choices(), "name": name, "client": one_of(found, name), "users": found}


def _answer(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """What the permissions decide, when the address asks."""
    if "resource" not in request.GET:
        return {"question": {"type": "Topic", "action": "Pub", "source": "127.0.0.1"}}
    question = {name: request.GET.get(name, "") for name in _QUESTION}
    try:
        return {"question": question, "answer": explain(context["users"], {**question, "user": context["name"]})}
    except InvalidInput as problem:
        return {"question": question, "question_errors": problem.fields}


def _choices() -> dict[str, Any]:
    return {
        "user_types": USER_TYPES,
        "statuses": STATUSES,
        "decisions": DECISIONS,
        "policies": POLICIES,
        "all_actions": ACTIONS,
        "asked_actions": ACTIONS[1:],
        "types": TYPES,
        "least_secret": LEAST_SECRET,
    }
