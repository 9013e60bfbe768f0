"""Browsers in which somebody logged in before: a signed cookie names the person and, at random, the device.

It opens nothing. It only has the guesses of a password from this device counted apart from those of everybody else, so that these
keep nobody out who was here before.
"""

from __future__ import annotations

import secrets

from django.conf import settings
from django.core import signing
from django.http import HttpRequest, HttpResponse

COOKIE = f"{settings.COOKIE_PREFIX}logboom_device"
_SALT = "webapp.accounts.devices"
_LIFE_S = 180 * 86_400


def device_of(request: HttpRequest, username: str) -> str:
    """The device from which this person logged in before; empty when it is none of that person's."""
    try:
        person, device = signing.loads(request.COOKIES.get(COOKIE, ""), salt=_SALT, max_age=_LIFE_S)
    except (signing.BadSignature, ValueError, TypeError):
        return ""
    return f"device:{device}" if person == username.strip().lower() else ""


def remember(response: HttpResponse, username: str) -> None:
    """Somebody logged in here."""
    response.set_cookie(
        COOKIE,
        signing.dumps([username.strip().lower(), secrets.token_hex(12)], salt=_SALT),
        max_age=_LIFE_S,
        secure=settings.HTTPS,
        httponly=True,
        samesite="Strict",
    )
