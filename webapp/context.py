"""What every template may use."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest

THEMES = ("auto", "light", "dark")


def console(request: HttpRequest) -> dict[str, Any]:
    theme = request.COOKIES.get("logboom_theme", "auto")
    return {
        "environment_name": settings.ENVIRONMENT_NAME,
        "read_only": settings.READ_ONLY,
        "theme": theme if theme in THEMES else "auto",
    }
