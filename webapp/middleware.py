"""What happens around every request: headers, static files, the login wall, refusals as pages, the viewer's time zone."""

from __future__ import annotations

import logging
import secrets
import zoneinfo
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.request import split_domain_port, validate_host
from django.utils import timezone
from whitenoise.middleware import WhiteNoiseMiddleware

from webapp import errors

log = logging.getLogger(__name__)

GetResponse = Callable[[HttpRequest], HttpResponse]

# No inline script or style, no eval, nothing from elsewhere, and nobody may frame us.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self' {sockets}; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PERMISSIONS_POLICY = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"


class _Middleware:
    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)


class RequestId(_Middleware):
    """A name for each request, in the answer's header, in problem documents, and in the log when we fail."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.id = secrets.token_hex(8)
        response = self.get_response(request)
        response.headers["X-Request-Id"] = request.id
        if response.status_code >= 500:
            log.error("request %s: %s %s answered %d", request.id, request.method, request.path, response.status_code)
        return response


class PagesOverTls(_Middleware):
    """Where cookies go over TLS alone, pages do, too: in plaintext nobody is logged in, or no websocket is let in. The port is
    the same, as it speaks both. Scripts, whose tokens are no cookies, may use REST in plaintext on this machine."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.PAGES_OVER_TLS and not request.is_secure() and not request.path.startswith("/api/"):
            return HttpResponseRedirect(f"https://{request.get_host()}{request.get_full_path()}")
        return self.get_response(request)


class SecurityHeaders(_Middleware):
    """Content-Security-Policy and its relatives on every answer; nothing of a person's pages is kept by caches."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        host = request.META.get("HTTP_HOST", "")
        # Some browsers do not count a websocket to the same host as 'self'.
        known = validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)
        sockets = f"ws://{host} wss://{host}" if known else ""
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY.format(sockets=sockets))
        response.headers.setdefault("Permissions-Policy", PERMISSIONS_POLICY)
        response.headers.setdefault("Cross-Origin-Resource-Policy", "same-origin")
        response.headers.setdefault("X-Frame-Options", "DENY")
        if not request.path.startswith(settings.STATIC_URL):
            response.headers.setdefault("Cache-Control", "no-store")
        return response


class StaticFiles(WhiteNoiseMiddleware):
    """The vendored and hand-written files; small, so each is answered from memory instead of streamed through a thread."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        answer = static_file.get_response(request.method, request.META)
        content = b""
        if answer.file is not None:
            with answer.file as file:
                content = file.read()
        response = HttpResponse(content, status=int(answer.status))
        del response.headers["Content-Type"]
        for name, value in answer.headers:
            response.headers[name] = value
        return response


class LoginRequired(LoginRequiredMiddleware):
    """No page without login; an htmx request is told to load the login page whole instead of swapping it into a corner."""

    def handle_no_permission(self, request: HttpRequest, view_func: Callable[..., Any]) -> HttpResponse:
        redirect = super().handle_no_permission(request, view_func)
        if request.headers.get("HX-Request") != "true":
            return redirect
        return HttpResponse(status=401, headers={"HX-Redirect": settings.LOGIN_URL})


class ProblemPages(_Middleware):
    """A refusal that a page's view did not handle itself becomes a page; so does Django's of a method, which is empty."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if isinstance(response, HttpResponseNotAllowed):
            return errors.method_not_allowed(request, response.headers["Allow"])
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        if not isinstance(exception, errors.Problem):
            return None
        return errors.page(request, exception.status, exception.title, exception.detail, exception.code)


class UserTimeZone(_Middleware):
    """Times on pages are in the zone that the person chose, UTC otherwise; REST is in UTC, whoever asks."""

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = getattr(request.user, "time_zone", "")
        if not name or request.path.startswith("/api/"):
            return self.get_response(request)
        with timezone.override(zoneinfo.ZoneInfo(name)):
            return self.get_response(request)
