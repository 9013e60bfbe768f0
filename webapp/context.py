"""What every template may use."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from webapp import snapshot
from webapp.accounts.permissions import actor_of

THEMES = ("auto", "light", "dark")


def console(request: HttpRequest) -> dict[str, Any]:
    theme = request.COOKIES.get("logboom_theme", "auto")
    return {
        "actor": actor_of(request),
        "snapshot": snapshot.current(),
        "query": request.GET,
        "time_zone": timezone.get_current_timezone_name(),
        "environment_name": settings.ENVIRONMENT_NAME,
        "read_only": settings.READ_ONLY,
        "theme": theme if theme in THEMES else "auto",
    }
