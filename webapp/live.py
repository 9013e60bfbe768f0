"""The parts of pages that follow the snapshot: rendered here for the first answer and for every websocket message alike.

A live part is a function `(actor, snapshot, query) -> context` and a template; its name is in the page as `data-view`, its
query is the page's own, so that filters, order and page number survive every update.

A rendering is shared among all who would be shown the same. So a live part is told nothing of a person but what `Viewpoint` has,
and nothing of the request: no name, and no token of a form.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
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


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """All of a person that a rendering may depend on."""

    permissions: frozenset[str]
    time_zone: str

    @classmethod
    def of(cls, actor: Actor) -> Viewpoint:
        return cls(actor.permissions, getattr(actor.user, "time_zone", ""))

    @property
    def actor(self) -> Actor:
        """Somebody with these permissions, and nobody in particular."""
        return Actor(user=AnonymousUser(), permissions=self.permissions)

    def in_time_zone(self) -> AbstractContextManager[None]:
        """Times inside the block are shown in the person's zone."""
        return timezone.override(zoneinfo.ZoneInfo(self.time_zone)) if self.time_zone else nullcontext()


def render(part: LivePart, actor: Actor, snapshot: Snapshot, query: QueryDict) -> str:
    """The part as HTML, in the actor's time zone."""
    viewpoint = Viewpoint.of(actor)
    with viewpoint.in_time_zone():
        context = {
            "actor": viewpoint.actor,
            "snapshot": snapshot,
            "query": query,
            "read_only": settings.READ_ONLY,
            **part.context(viewpoint.actor, snapshot, query),
        }
        return render_to_string(part.template, context)
