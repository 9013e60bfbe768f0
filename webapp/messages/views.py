"""The pages of messages: browsing a queue, one message, the form that sends a test message."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from webapp import gateway, snapshot
from webapp.accounts.permissions import actor_of
from webapp.errors import Problem
from webapp.messages import browse
from webapp.messages.changes import delay_levels
from webapp.messages.life import life_of
from webapp.messages.reading import shown_to
from webapp.messages.types import DECISIONS, FIELDS, fields_of
from webapp.operations.services import submit
from webapp.pages import needs, page, part_or_page, posted, receipt


@require_GET
@needs("messages.read")
def messages(request: HttpRequest, name: str) -> HttpResponse:
    """The messages of one queue from an offset or a time on, the newest ones when neither is given; and those with a key."""
    if "queue" in request.GET:
        return HttpResponseRedirect(f"{reverse('messages', args=[name])}?{browse.chosen_address(request.GET)}")
    context: dict[str, Any] = {"name": name, "values": request.GET, "errors": {}, "max_count": gateway.MAX_BROWSE}
    try:
        if request.GET.get("key"):
            context["found"] = shown_to(actor_of(request), browse.by_key(name, request.GET))
        ranges = gateway.queue_ranges(name)
        context["ranges"] = ranges
        context["chosen"] = chosen = browse.choose(name, ranges, request.GET)
        if chosen is not None:
            given = {**request.GET.dict(), "group": chosen.group, "queue_id": str(chosen.queue_id)}
            count = given.get("count", "")
            span = int(count) if count.isdecimal() else browse.DEFAULT_COUNT
            newest = max(chosen.min_offset, chosen.max_offset - span)
            question = browse.read_question(name, given, default_offset=newest)
            browsed, found = browse.ask(question)
            context.update(
                question=question,
                browsed=browsed,
                messages=shown_to(actor_of(request), found),
                older=max(browsed.min_offset, browsed.offset - question.count)
                if browsed.offset > browsed.min_offset
                else None,
                newer=browsed.next_offset if browsed.next_offset < browsed.max_offset else None,
            )
    except Problem as problem:
        context.update(problem=problem, errors=problem.fields)
        return page(request, "messages/list.html", context, status=problem.status)
    return page(request, "messages/list.html", context)


@require_GET
@needs("messages.read")
def message(request: HttpRequest, name: str, group: str, queue_id: int, offset: int) -> HttpResponse:
    found = browse.one(name, group, queue_id, offset)
    (shown,) = shown_to(actor_of(request), [found])
    context = {"name": name, "message": shown, "life": life_of(found, name)}
    return page(request, part_or_page(request, "messages/message.html"), context)


@require_http_methods(["GET", "POST"])
@needs("messages.write")
def send(request: HttpRequest, name: str) -> HttpResponse:
    """The form that sends a test message. For htmx it stays as it was, with the receipt or the problem above it."""
    context: dict[str, Any] = {"name": name, "values": request.POST, "errors": {}, "open": True, **send_choices(name)}
    status = 200
    if request.method == "POST":
        given = posted(request, "body", "keys", "tag", "properties", "group", *FIELDS)
        try:
            submitted = submit(actor_of(request), "message.send", {**given, "topic": name})
        except Problem as problem:
            context.update(problem=problem, errors=problem.fields)
            status = 200 if request.htmx else problem.status
        else:
            if not request.htmx:
                return receipt(submitted)
            context["operation"] = submitted.operation
    return page(request, part_or_page(request, "messages/send.html"), context, status=status)


def send_choices(name: str) -> dict[str, Any]:
    """What the form that sends to a topic asks for, by the topic's type, and what there is to choose from."""
    known = snapshot.current().topics.get(name)
    topic_type = known.type if known is not None else ""
    return {
        "topic_type": topic_type,
        "type_fields": fields_of(topic_type),
        "delay_levels": delay_levels(),
        "decisions": DECISIONS,
    }
