"""What the console answers when it cannot do what was asked, once for pages and REST.

Services raise a `Problem`; `webapp.api.problems` turns it into application/problem+json, `webapp.middleware.ProblemPages`
into a page.
`code` is stable: scripts compare it. `detail` is a sentence for a person that names the rule or what to do.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import is_valid_path

CONTENT_TYPE = "application/problem+json"


class Problem(Exception):
    """Base: something that was asked for is not done."""

    status = 500
    code = "internal-error"
    title = "Something went wrong"

    def __init__(self, detail: str, *, code: str = "", fields: dict[str, list[str]] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.fields = fields or {}


class InvalidInput(Problem):
    """Some of the input breaks a rule; `fields` says which and which rule."""

    status = 400
    code = "invalid-input"
    title = "The input breaks a rule"


class PermissionRefused(Problem):
    status = 403
    code = "permission-denied"
    title = "Not permitted"


class ReadOnly(PermissionRefused):
    code = "read-only"
    title = "The console is read-only"


class PasswordWanted(PermissionRefused):
    """A person has to give the password again first."""

    code = "password-wanted"
    title = "Confirm your password first"


class NotFound(Problem):
    status = 404
    code = "not-found"
    title = "Not found"


class Conflict(Problem):
    """The change does not fit what is there."""

    status = 409
    code = "conflict"
    title = "The change does not fit the present state"


class PreconditionFailed(Problem):
    status = 412
    code = "state-moved"
    title = "The object changed in the meantime"


class TooMany(Problem):
    status = 429
    code = "too-many-attempts"
    title = "Too many attempts"

    def __init__(self, detail: str, *, retry_after_s: int) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class Unavailable(Problem):
    """A part that is needed (cluster, task queue) does not answer."""

    status = 503
    code = "unavailable"
    title = "A needed part does not answer"


def document(status: int, code: str, title: str, detail: str) -> dict[str, Any]:
    """A problem as JSON; whoever answers it adds the request's id."""
    return {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail}


def page(request: HttpRequest, status: int, title: str, detail: str, code: str = "", back: str = "/") -> HttpResponse:
    """An error as a page that leads `back`, as a banner when htmx asked, or as problem+json below /api/."""
    if request.path.startswith("/api/"):
        body = {**document(status, code, title, detail), "request_id": getattr(request, "id", "")}
        return JsonResponse(body, status=status, content_type=CONTENT_TYPE)
    template = "problem_banner.html" if getattr(request, "htmx", False) else "problem.html"
    context = {"status": status, "title": title, "detail": detail, "code": code, "back": back}
    return render(request, template, context, status=status)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Django's CSRF check failed: the form is stale, or another site sent it."""
    detail = (
        "This form was not opened by you on this console, or it is too old. Go back, reload the page and send it again."
    )
    return page(request, 403, "The request was not sent from this page", detail, "csrf-failed")


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    detail = "The address or the data of the request is malformed."
    return page(request, 400, "The request cannot be read", detail, "bad-request")


def method_not_allowed(request: HttpRequest, allow: str) -> HttpResponse:
    """Mostly an address that only takes forms, opened by hand, or again after a login that came between."""
    title, detail = "There is no page at this address", "It only takes what a form sends. Nothing was changed."
    if "GET" in allow:
        title, detail = "The address does not take this", f"It takes no {request.method}. Nothing was changed."
    response = page(request, 405, title, detail, "method-not-allowed", _page_above(request.path))
    response.headers["Allow"] = allow
    return response


def _page_above(path: str) -> str:
    """The nearest page that has the address in it: the form is there."""
    while path != "/":
        path = path.rstrip("/").rpartition("/")[0] + "/"
        if is_valid_path(path):
            break
    return quote(path)


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return page(request, 403, "Not permitted", str(exception) or "Your role does not allow this.", "permission-denied")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return page(request, 404, "Not found", "There is nothing at this address. It may have been deleted.", "not-found")


def server_error(request: HttpRequest) -> HttpResponse:
    """Our own fault. The page is rendered without a request, so that it needs neither session nor database."""
    title, detail = "Something went wrong", "The console met an error of its own; its log has the details."
    if request.path.startswith("/api/"):
        return page(request, 500, title, detail, "internal-error")
    context = {"status": 500, "title": title, "detail": detail, "theme": "auto"}
    return HttpResponse(render_to_string("problem.html", context), status=500)
