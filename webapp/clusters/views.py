"""The landing page, the election dialog, and the dialogs that change the group of controllers."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from webapp import snapshot
from webapp.accounts.permissions import actor_of
from webapp.clusters import controllers, retiring, switching
from webapp.clusters.changes import eligibility
from webapp.errors import InvalidInput, NotFound, Problem
from webapp.operations.services import submit
from webapp.pages import dialog_page, live_page, needs


@require_GET
@needs("cluster.read")
def landing(request: HttpRequest) -> HttpResponse:
    return live_page(request, "landing", "clusters/landing.html")


@require_http_methods(["GET", "POST"])
@needs("elections.write")
def elect(request: HttpRequest) -> HttpResponse:
    """Who may become master and why; confirmed, the election runs and its operation shows the outcome."""
    given = request.POST if request.method == "POST" else request.GET
    cluster, name, broker_id = given.get("cluster", ""), given.get("group", ""), given.get("broker_id", "")
    group = snapshot.current().group(cluster, name)
    if not broker_id.isdecimal():
        raise InvalidInput("broker_id: must be a replica's number")
    chosen = group.replica(int(broker_id))
    context = {
        "title": f"Elect {group.label(int(broker_id))} of {name}",
        "group": group,
        "chosen": chosen,
        "eligible": chosen is not None and eligibility(chosen)[0],
        "reason": eligibility(chosen)[1] if chosen is not None else "",
        "candidates": [(replica, *eligibility(replica)) for replica in group.replicas],
        "master": group.replica(group.master_id),
    }
    parameters = {"cluster": cluster, "group": name, "broker_id": broker_id}
    return dialog_page(request, "clusters/elect.html", context, "election.elect", parameters)


CONTROLLER_CHANGES = {
    "add": ("Add a controller", "Add controller", False),
    "promote": ("Give controller {} its vote", "Promote", False),
    "transfer": ("Let controller {} lead", "Let lead", False),
    "remove": ("Remove controller {}", "Remove for good", True),
}


@require_http_methods(["GET", "POST"])
@needs(controllers.PERMISSION)
def controller(request: HttpRequest, action: str) -> HttpResponse:
    """One change of the group of controllers: what it means, and its outcome once it is confirmed."""
    if action not in CONTROLLER_CHANGES:
        raise NotFound(f"There is no change {action} of controllers.")
    title, verb, dangerous = CONTROLLER_CHANGES[action]
    given = request.POST if request.method == "POST" else request.GET
    values = {name: given.get(name, "") for name in (("id", "address") if action == "add" else ("id",))}
    context = {"action": action, "title": title.format(values["id"]), "verb": verb, "dangerous": dangerous}
    return dialog_page(request, "clusters/controller.html", context, f"controller.{action}", values)


@require_http_methods(["GET", "POST"])
@needs(retiring.PERMISSION)
def broker_group(request: HttpRequest, change: str) -> HttpResponse:
    """One change of a whole broker group: what would be done; confirmed, its operation shows how far it is."""
    dialog = switching.DIALOGS.get(change)
    if dialog is None:
        raise NotFound(f"There is no change {change} of broker groups.")
    given = request.POST if request.method == "POST" else request.GET
    parameters = {name: given.get(name, "") for name in retiring.TARGET}
    context: dict[str, Any] = {
        "title": f"{dialog.kind.title} {parameters['group']}",
        "meaning": dialog.meaning,
        "verb": dialog.verb,
        "is_dangerous": dialog.kind.is_dangerous,
    }
    if request.method == "GET":
        try:
            context["plan"] = submit(actor_of(request), dialog.kind.name, parameters, dry_run=True).plan
        except Problem as problem:
            context["problem"] = problem
    return dialog_page(request, "clusters/switch.html", context, dialog.kind.name, parameters)
