"""What a new token reads, on its way from the answer that made it to the page that shows it once.

Nobody here keeps it: it travels in a cookie of the browser that asked for it, sealed under our secret key and that session's, so
that only the same session can have it opened, for some minutes. A logout ends the session, and with it what was not shown.
"""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.crypto import salted_hmac

COOKIE = "__Secure-logboom_new_tokens" if settings.HTTPS else "logboom_new_tokens"
LIFE_S = 300
MOST = 10  # of one person who never arrives at the page: a cookie holds no more than 4 KB


def give(request: HttpRequest, response: HttpResponse, text: str) -> None:
    """Let the response carry a new token's text, beside those that are still to be shown."""
    texts = [*waiting(request), text][-MOST:]
    sealed = _seal(request).encrypt("\n".join(texts).encode()).decode()
    response.set_cookie(
        COOKIE,
        sealed,
        max_age=LIFE_S,
        path=reverse("tokens"),
        secure=settings.HTTPS,
        httponly=True,
        samesite="Strict",
    )


def waiting(request: HttpRequest) -> list[str]:
    """The texts that were not shown yet, the oldest first; whoever shows them calls `forget`."""
    try:
        return _seal(request).decrypt(request.COOKIES.get(COOKIE, "").encode(), ttl=LIFE_S).decode().split("\n")
    except InvalidToken:
        return []  # none, too old, or of another session


def forget(response: HttpResponse) -> None:
    """Let the browser throw away what was shown, or shall not be."""
    response.delete_cookie(COOKIE, path=reverse("tokens"), samesite="Strict")


def _seal(request: HttpRequest) -> Fernet:
    session_key = request.session.session_key or ""
    key = salted_hmac("webapp.accounts.handover", session_key, algorithm="sha256").digest()
    return Fernet(base64.urlsafe_b64encode(key))
