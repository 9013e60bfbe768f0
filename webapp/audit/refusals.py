"""What was refused and changes nothing leaves a row too: reads without the right, and tokens that are none.

Refused changes and logins leave their rows where they are made. Whoever goes on asking shall not fill the trail: a source has one
row a minute for each kind, and all of them together so many.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponse

from webapp.accounts.permissions import actor_of
from webapp.audit import services

MINUTE_S: Final = 60.0
MOST_A_MINUTE: Final = 30
_SAFE: Final = ("GET", "HEAD")


class Refusals:
    """Middleware, inside of what knows who asks."""

    def __init__(
        self, get_response: Callable[[HttpRequest], HttpResponse], now_s: Callable[[], float] = time.monotonic
    ):
        self._get_response = get_response
        self._now_s = now_s
        self._told: OrderedDict[tuple[str, str], float] = OrderedDict()  # when, the earliest first

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        action = _action(request, response.status_code)
        if action and self._may_tell(action, request):
            detail = f"answered with status {response.status_code}"
            services.record(
                actor_of(request), action, target=request.path, outcome=services.Outcome.REFUSED, detail=detail
            )
        return response

    def _may_tell(self, action: str, request: HttpRequest) -> bool:
        now_s, source = self._now_s(), (actor_of(request).ip, action)
        while self._told and next(iter(self._told.values())) <= now_s - MINUTE_S:
            self._told.popitem(last=False)
        if source in self._told or len(self._told) >= MOST_A_MINUTE:
            return False
        self._told[source] = now_s
        return True


def _action(request: HttpRequest, status: int) -> str:
    """What the row is about; "" when there is to be none."""
    if status == 401 and "Authorization" in request.headers:
        return "token.use"
    return "read" if status == 403 and request.method in _SAFE else ""
