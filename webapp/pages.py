"""What the views of all pages share: permission, rendering, changes asked for by forms."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from webapp import live, snapshot
from webapp.accounts.permissions import actor_of
from webapp.clusters.live import landing
from webapp.errors import Problem
from webapp.groups.live import group, group_list
from webapp.operations.services import Submitted, submit
from webapp.operations.waiting import wait
from webapp.timers.live import timers
from webapp.topics.live import topic, topic_list

Arguments = ParamSpec("Arguments")
View = Callable[Concatenate[HttpRequest, Arguments], HttpResponse]

LIVE_PARTS = {part.name: part for part in (landing, group, group_list, timers, topic, topic_list)}

RECEIPT_WAIT_S = 1.5  # most changes are over by then, and the first look at the receipt shows the outcome


def needs(permission: str) -> Callable[[View[Arguments]], View[Arguments]]:
    """The view is for whoever has the permission; others get the refusal as a page."""

    def decorate(view: View[Arguments]) -> View[Arguments]:
        @functools.wraps(view)
        def checked(request: HttpRequest, *args: Arguments.args, **kwargs: Arguments.kwargs) -> HttpResponse:
            actor_of(request).require(permission)
            return view(request, *args, **kwargs)

        return checked

    return decorate


def page(request: HttpRequest, template: str, context: dict[str, Any] | None = None, status: int = 200) -> HttpResponse:
    """A page; what all of them need comes from `webapp.context`."""
    return render(request, template, context or {}, status=status)


def live_page(
    request: HttpRequest, part_name: str, template: str, context: dict[str, Any] | None = None
) -> HttpResponse:
    """A page whose main part follows the snapshot. htmx gets the part alone (a filter was typed)."""
    query = request.GET.copy()
    fixed = request.resolver_match.kwargs if request.resolver_match is not None else {}
    for name, value in fixed.items():
        query[name] = str(value)  # what the address says about the page belongs to the live part's query as well
    html = live.render(LIVE_PARTS[part_name], actor_of(request), snapshot.current(), query)
    if request.htmx and not request.htmx.boosted and request.htmx.target == "live":
        response = HttpResponse(html)
        response["HX-Push-Url"] = request.get_full_path()
        return response
    live_context = {
        "live_view": part_name,
        "live_query": query.urlencode(),
        "live_fixed": " ".join(fixed),
        "live_html": html,
    }
    return page(request, template, {**live_context, **(context or {})})


def change(request: HttpRequest, kind: str, parameters: dict[str, Any]) -> Submitted:
    """Ask for a change on behalf of the person at this page, and wait a moment for its outcome."""
    submitted = submit(actor_of(request), kind, parameters)
    wait(submitted.operation, RECEIPT_WAIT_S)
    return submitted


def receipt(submitted: Submitted) -> HttpResponse:
    """Go to the page of the operation."""
    return HttpResponseRedirect(reverse("operation", args=[submitted.operation.pk]))


def form_page(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    kind: str,
    parameters: dict[str, Any],
    done: Callable[[Submitted], HttpResponse] = receipt,
) -> HttpResponse:
    """A form, and once it is sent what `done` answers, or the form again with each broken rule at its field."""
    context = {"values": {}, "errors": {}, **context}
    if request.method == "GET":
        return page(request, template, context)
    try:
        submitted = change(request, kind, parameters)
    except Problem as problem:
        again = {**context, "values": request.POST, "errors": problem.fields, "problem": problem}
        return page(request, template, again, status=problem.status)
    return done(submitted)


def dialog_page(
    request: HttpRequest, template: str, context: dict[str, Any], kind: str, parameters: dict[str, Any]
) -> HttpResponse:
    """As `form_page`, for a form that htmx opens in a dialog (`_<template>`), where the operation is shown, too."""
    status, context = 200, {"values": parameters, "errors": {}, "dialog": bool(request.htmx), **context}
    if request.method == "POST":
        try:
            submitted = change(request, kind, parameters)
        except Problem as problem:
            context.update(errors=problem.fields, problem=problem)
            status = 200 if request.htmx else problem.status  # htmx swaps only answers without an error status
        else:
            shown = {"operation": submitted.operation, "title": context["title"]}
            return page(request, "operations/_dialog.html", shown) if request.htmx else receipt(submitted)
    return page(request, part_or_page(request, template), context, status=status)


def part_or_page(request: HttpRequest, template: str) -> str:
    """For htmx only the part that it swaps: the template of that name with `_` in front."""
    directory, _, name = template.rpartition("/")
    return f"{directory}/_{name}" if request.htmx else template


def posted(request: HttpRequest, *fields: str) -> dict[str, str]:
    """These fields of a form; empty when they are not sent."""
    return {field: request.POST.get(field, "") for field in fields}


def go_to(name: str, *args: Any) -> Callable[[Submitted], HttpResponse]:
    """For `form_page`: go to a page once the change is made."""
    return lambda submitted: HttpResponseRedirect(reverse(name, args=args))
