"""How REST requests say who they are, and who gets through: a bearer token, or the browser's session with CSRF protection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from webapp.accounts import tokens
from webapp.accounts.models import ApiToken, User
from webapp.accounts.permissions import actor_of

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it loads this module


class BearerTokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer lb_...`."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if not scheme:
            return None
        if scheme.lower() != "bearer":
            raise AuthenticationFailed("Use the scheme Bearer with an API token.")
        token = tokens.find(text.strip())
        if token is None:
            raise AuthenticationFailed("This token is unknown, revoked or expired.")
        return token.owner, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="logboom"'


class HasPermission(BasePermission):
    """A login is needed always, for reading the view's `read_permission`; changes are checked where they are made."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        needed = getattr(view, "read_permission", None)
        if needed and request.method in SAFE_METHODS:
            actor_of(request).require(needed)
        return True
