"""Which pages may open a websocket: those that might send a form, and no others.

A browser sends the session's cookie to every port of a host, so the host's name alone does not tell whose page it is: the origin
has to be the address that was asked, or one that forms are taken from behind a proxy. Put around the websockets by `webapp.asgi`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from channels.security.websocket import WebsocketDenier
from django.conf import settings
from django.http.request import split_domain_port, validate_host

Application = Callable[[dict[str, Any], Any, Any], Awaitable[Any]]

_PORTS = {"http": 80, "https": 443}


class OwnPages:
    """Denies the handshake of every other page."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> Any:
        headers = {name: value.decode("latin1") for name, value in scope["headers"]}
        own = is_own(headers.get(b"origin", ""), headers.get(b"host", ""))
        return await (self._application if own else WebsocketDenier())(scope, receive, send)


def is_own(origin: str, host: str) -> bool:
    """Whether a page of this origin (empty: not told) is the console's, that was asked as `host`."""
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    try:
        page = urlsplit(origin)
        asked = urlsplit(f"{page.scheme}://{host}")
        schemes = {"https"} if settings.HTTPS else _PORTS  # a page that came in plain text may be anybody's
        same = page.scheme in schemes and (page.hostname, _port(page)) == (asked.hostname, _port(asked))
    except ValueError:
        return False
    return same and validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)


def _port(address: SplitResult) -> int:
    return address.port or _PORTS[address.scheme]
