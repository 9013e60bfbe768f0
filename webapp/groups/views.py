"""The pages of consumer groups."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET, require_http_methods

from remoting.names import MAX_GROUP_LENGTH
from webapp import snapshot
from webapp.groups.changes import DEFAULT_ATTEMPTS, existing
from webapp.pages import form_page, live_page, needs, posted
from webapp.rules import NAME_RULE


@require_GET
@needs("cluster.read")
def groups(request: HttpRequest) -> HttpResponse:
    return live_page(request, "groups", "groups/list.html")


@require_GET
@needs("cluster.read")
def group(request: HttpRequest, name: str) -> HttpResponse:
    present = snapshot.current()
    if present.data is not None:
        present.consumer_group(name)  # an unknown one is not found; while nothing is known, the page says that
    return live_page(request, "group", "groups/group.html", {"name": name})


@require_http_methods(["GET", "POST"])
@needs("groups.write")
def create(request: HttpRequest) -> HttpResponse:
    values = {"retry_max_times": DEFAULT_ATTEMPTS}
    context = {"values": values, "name_rule": NAME_RULE, "max_name": MAX_GROUP_LENGTH}
    parameters = {
        "name": request.POST.get("name"),
        "fifo": request.POST.get("fifo", "off"),
        "retry_max_times": request.POST.get("retry_max_times"),
    }
    return form_page(request, "groups/create.html", context, "group.create", parameters)


@require_http_methods(["GET", "POST"])
@needs("groups.write")
def delete(request: HttpRequest, name: str) -> HttpResponse:
    found = existing(name)
    parameters = {"name": name, **posted(request, "confirmation")}
    return form_page(request, "groups/delete.html", {"name": name, "group": found}, "group.delete", parameters)
