"""Logging in and out; the pages of one's account, of tokens, of users and of what they read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from remoting.names import MAX_RETRY_TOPIC_LENGTH
from webapp.accounts import devices, handover, read_rights, services, sessions
from webapp.accounts.models import ApiToken, User
from webapp.accounts.permissions import PERMISSIONS, ROLE_NAMES, Role, actor_of, given_role, permissions_of, role_of
from webapp.context import THEMES
from webapp.errors import Problem, TooMany
from webapp.operations.services import Submitted
from webapp.pages import change, form_page, go_to, needs, page, posted
from webapp.rules import Rules, known_time_zones


@login_not_required
@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
def log_in(request: HttpRequest) -> HttpResponse:
    target = _safe_target(request, request.POST.get("next") or request.GET.get("next") or "")
    if request.user.is_authenticated and request.method == "GET":
        return HttpResponseRedirect(target)
    context: dict[str, Any] = {"next": target, "username": request.POST.get("username", "")}
    if request.method == "GET":
        return page(request, "accounts/login.html", context)
    try:
        services.log_in(request, request.POST.get("username", ""), request.POST.get("password", ""))
    except Problem as problem:
        response = page(request, "accounts/login.html", {**context, "problem": problem}, status=problem.status)
        if isinstance(problem, TooMany):
            response["Retry-After"] = str(problem.retry_after_s)
        return response
    response = HttpResponseRedirect(target)
    devices.remember(response, request.user.get_username())
    return response


@require_POST
def log_out(request: HttpRequest) -> HttpResponse:
    services.log_out(request)
    response = HttpResponseRedirect(reverse("login"))
    handover.forget(response)
    return response


@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    """Keep the choice of colours in a cookie: the server writes it into the page, so nothing flashes."""
    theme = request.POST.get("theme", "auto")
    response = HttpResponseRedirect(_safe_target(request, request.POST.get("next", "")))
    response.set_cookie(
        "logboom_theme", theme if theme in THEMES else "auto", max_age=31_536_000, httponly=True, samesite="Lax"
    )
    return response


def _safe_target(request: HttpRequest, target: str) -> str:
    """A page of this console, whatever somebody put into the address."""
    safe = url_has_allowed_host_and_scheme(
        target, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return target if target and safe and not target.startswith("/login") else reverse("landing")


# ---- one's account


@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
@needs("tokens.write")
def account(request: HttpRequest) -> HttpResponse:
    """Password and time zone."""
    context = {"zones": sorted(known_time_zones()), "role": role_of(request.user).label}
    if "time_zone" in request.POST:
        return _set_time_zone(request, context)
    given = posted(request, "present", "password")
    # the old sessions end with the old password, this one too
    return form_page(request, "accounts/account.html", context, "password.change", given, go_to("login"))


@sensitive_post_parameters()
@require_http_methods(["GET", "POST"])
def confirm(request: HttpRequest) -> HttpResponse:
    """The password again, before what is dangerous."""
    target = _safe_target(request, request.POST.get("next") or request.GET.get("next") or "")
    context: dict[str, Any] = {"next": target}
    if request.method == "GET":
        return page(request, "accounts/confirm.html", context)
    try:
        if services.prove_password(actor_of(request), request.POST.get("password", ""), "password.confirm"):
            sessions.confirmed(request.session)
            return HttpResponseRedirect(target)
    except TooMany as problem:
        return page(request, "accounts/confirm.html", {**context, "problem": problem}, status=problem.status)
    context["errors"] = {"password": ["is not your password"]}
    return page(request, "accounts/confirm.html", context, status=400)


def _set_time_zone(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    rules = Rules(request.POST)
    zone = rules.time_zone("time_zone")
    try:
        rules.finish()
    except Problem as problem:
        return page(
            request, "accounts/account.html", {**context, "errors": problem.fields, "problem": problem}, status=400
        )
    User.objects.filter(pk=request.user.pk).update(time_zone="" if zone == "UTC" else zone)
    return HttpResponseRedirect(reverse("account"))


# ---- tokens


@require_http_methods(["GET", "POST"])
@needs("tokens.write")
def tokens(request: HttpRequest) -> HttpResponse:
    """One's tokens (everybody's for who manages users), and the form for a new one.

    What a new one reads comes along with the redirect to this page (`webapp.accounts.handover`), which shows it and forgets it.
    """
    actor = actor_of(request)
    rows = ApiToken.objects.select_related("owner")
    if not actor.may("users.write"):
        rows = rows.filter(owner=request.user)
    context: dict[str, Any] = {
        "tokens": rows,
        "scopes": [(name, meaning) for name, (_, meaning) in PERMISSIONS.items() if name in actor.permissions],
        "chosen": ["cluster.read"],
        "values": {"expires_in_days": "90"},
    }
    if request.method == "POST":
        context["chosen"] = request.POST.getlist("scopes")
    else:
        context["new_tokens"] = handover.waiting(request)
    parameters = {**posted(request, "name", "expires_in_days"), "scopes": context["chosen"]}

    def show_after_redirect(submitted: Submitted) -> HttpResponse:
        response = go_to("tokens")(submitted)
        handover.give(request, response, submitted.once["token"])
        return response

    response = form_page(request, "accounts/tokens.html", context, "token.create", parameters, show_after_redirect)
    if context.get("new_tokens"):
        handover.forget(response)
    return response


@require_POST
@needs("tokens.write")
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    change(request, "token.revoke", {"token_id": token_id})
    return HttpResponseRedirect(reverse("tokens"))


# ---- users


@sensitive_post_parameters("password")
@require_http_methods(["GET", "POST"])
@needs("users.write")
def users(request: HttpRequest) -> HttpResponse:
    context, given = {**_users(), "values": {"role": "viewer"}}, posted(request, "username", "role", "password")
    return form_page(request, "accounts/users.html", context, "user.create", given, go_to("users"))


@require_POST
@needs("users.write")
def change_user(request: HttpRequest, user_id: int) -> HttpResponse:
    parameters = {"user_id": user_id, "role": request.POST.get("role"), "active": request.POST.get("active", "off")}
    asked = {user_id: {"role": parameters["role"], "active": parameters["active"] == "on"}}
    return form_page(request, "accounts/users.html", _users(asked), "user.change", parameters, go_to("users"))


@require_http_methods(["GET", "POST"])
@needs("users.write")
def reading(request: HttpRequest) -> HttpResponse:
    """Who reads what messages say, the form for another right, and what the rights decide."""
    context: dict[str, Any] = {
        "rights": read_rights.all_rights(),
        "roles": read_rights.ROLES,
        "people": User.objects.order_by("username").values_list("username", flat=True),
        "decisions": (read_rights.ALLOW, read_rights.DENY),
        **_explained(request),
    }
    given = posted(request, "topics", "decision")
    kind, _, name = request.POST.get("who", "").partition(" ")  # the form has roles and people in one choice
    if kind in ("role", "user"):
        given[kind] = name
    return form_page(request, "accounts/reading.html", context, "read-right.put", given, go_to("reading"))


@require_POST
@needs("users.write")
def remove_read_right(request: HttpRequest, right_id: int) -> HttpResponse:
    change(request, "read-right.remove", {"right_id": right_id})
    return HttpResponseRedirect(reverse("reading"))


def _explained(request: HttpRequest) -> dict[str, Any]:
    """What is decided, when the address asks."""
    question = {name: request.GET.get(name, "")[:MAX_RETRY_TOPIC_LENGTH] for name in ("user", "topic")}
    user = User.objects.filter(username=question["user"]).first()
    if user is None or not question["topic"]:
        return {"question": question}
    return {"question": question, "answer": read_rights.explain(user, question["topic"])}


def _users(asked: Mapping[int, dict[str, Any]] | None = None) -> dict[str, Any]:
    """All users; with what somebody `asked` for by their ids in place of what is stored."""
    rows = User.objects.order_by("username").prefetch_related("groups")
    return {
        "users": [
            {"user": user, "role": given_role(user).label, "active": user.is_active, **(asked or {}).get(user.pk, {})}
            for user in rows
        ],
        "roles": ROLE_NAMES,
        "role_permissions": {
            role: [PERMISSIONS[name][1] for name in PERMISSIONS if name in permissions_of(Role[role.upper()])]
            for role in ROLE_NAMES
        },
    }
