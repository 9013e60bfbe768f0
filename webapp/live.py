"""The parts of pages that follow the snapshot: rendered here for the first answer and for every websocket message alike.

A live part is a function `(actor, snapshot, query) -> context` and a template; its name is in the page as `data-view`, its
query is the page's own, so that filters, order and page number survive every update.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import QueryDict
from django.template.loader import render_to_string
from django.utils import timezone

from webapp.accounts.permissions import Actor
from webapp.snapshot import Snapshot

Context = Callable[[Actor, Snapshot, QueryDict], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class LivePart:
    """One live part of a page."""

    name: str
    template: str
    context: Context


def live(name: str, template: str) -> Callable[[Context], LivePart]:
    """Make the decorated function a live part."""
    return lambda context: LivePart(name, template, context)


def render(part: LivePart, actor: Actor, snapshot: Snapshot, query: QueryDict) -> str:
    """The part as HTML, in the actor's time zone."""
    zone = getattr(actor.user, "time_zone", "")
    with timezone.override(zoneinfo.ZoneInfo(zone)) if zone else nullcontext():
        context = {
            "actor": actor,
            "snapshot": snapshot,
            "query": query,
            "read_only": settings.READ_ONLY,
            **part.context(actor, snapshot, query),
        }
        return render_to_string(part.template, context)
