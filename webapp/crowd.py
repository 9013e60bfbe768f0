"""How many requests are answered at once: an ASGI application in front of Django.

Django gives each request a thread of its own, which has a connection to the database. So there is a most, of which one address
has half, that nobody keeps all others out; whoever comes beyond is told to come again. Whether the cluster works is still
answered then, to those who watch: that has a place of its own. Behind a proxy all come from one address.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from remoting.errors import SettingsError
from remoting.transport.unfinished import peer_of
from webapp.intake import Application, Receive, Send

log = logging.getLogger(__name__)

HEALTH: Final = "/api/v1/health"
MOST_OF_HEALTH: Final = 8
RETRY_AFTER_S: Final = 1
_MOST: Final = 256
_LEAST: Final = 8
_TEXT: Final = f"Too many requests are answered at the moment. Try again in {RETRY_AFTER_S} s.\n"


class BoundedRequests:
    """Passes a request on when there is a place for it."""

    def __init__(self, application: Application, most: int) -> None:
        self._application = application
        self._most = most
        self._most_of_one = most // 2
        self._of: Counter[str] = Counter()  # by address
        self._of_health = 0
        self._refused = 0  # since there was a place for the last that came

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["path"] == HEALTH and self._of_health < MOST_OF_HEALTH:
            self._of_health += 1
            try:
                await self._application(scope, receive, send)
            finally:
                self._of_health -= 1
            return
        peer = peer_of((scope.get("client") or ("",))[0])
        if self._of.total() >= self._most or self._of[peer] >= self._most_of_one:
            await self._refuse(peer, send)
            return
        self._refused = 0
        self._of[peer] += 1
        try:
            await self._application(scope, receive, send)
        finally:
            self._of[peer] -= 1
            if not self._of[peer]:
                del self._of[peer]

    async def _refuse(self, peer: str, send: Send) -> None:
        if not self._refused:
            log.warning(
                "refusing requests of %s: %d are answered, %d of them its own", peer, self._of.total(), self._of[peer]
            )
        self._refused += 1
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(_TEXT)).encode()),
            (b"retry-after", str(RETRY_AFTER_S).encode()),
        ]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": _TEXT.encode()})


def most_requests(environ: Mapping[str, str]) -> int:
    """What `LOGBOOM_MAX_REQUESTS` says. Raises SettingsError."""
    text = environ.get("LOGBOOM_MAX_REQUESTS", "").strip()
    if not text:
        return _MOST
    if not (text.isascii() and text.isdigit()) or not _LEAST <= int(text[:9]) <= 10_000 or len(text) > 9:
        raise SettingsError(f"LOGBOOM_MAX_REQUESTS={text[:40]}: must be a number from {_LEAST} to 10000")
    return int(text)
