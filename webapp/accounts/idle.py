"""Around every request: a session in which nobody does anything ends, its websockets with it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.conf import settings
from django.contrib.auth.models import AnonymousUser
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse

from webapp.accounts import services, sessions

log = logging.getLogger(__name__)


class IdleSessions:
    """Of the middleware; behind the one that knows whose session it is."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            if sessions.is_idle(request.session):
                self._end(request)
            else:
                sessions.note_use(request.session)
        return self._get_response(request)

    def _end(self, request: HttpRequest) -> None:
        try:
            services.log_out(request)
        except DatabaseError as error:  # as on a full disk: it is over all the same
            log.warning("a session that nobody uses cannot be removed: %s", error)
            request.user = AnonymousUser()
