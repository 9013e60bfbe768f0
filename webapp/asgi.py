"""The console as an ASGI application: HTTP to Django, websockets to the consumers of `webapp.sockets`.

How many requests there are at once, and what a request's body may be, is bounded in front of all that (`webapp.crowd`,
`webapp.intake`). A websocket is let in only from a page of the
console itself (`webapp.origin`); who it belongs to is checked by the consumers.
"""

from __future__ import annotations

import os

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application

from webapp.crowd import BoundedRequests
from webapp.intake import BoundedBodies
from webapp.origin import OwnPages

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
http_application = get_asgi_application()

from webapp.sockets import websocket_urlpatterns  # noqa: E402  (models may be imported only once Django is set up)

application = ProtocolTypeRouter(
    {
        "http": BoundedRequests(BoundedBodies(http_application), settings.MAX_REQUESTS),
        "websocket": OwnPages(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
