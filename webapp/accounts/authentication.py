"""How REST requests say who they are: a bearer token, or the browser's session (then with CSRF protection)."""

from __future__ import annotations

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from webapp.accounts import tokens
from webapp.accounts.models import ApiToken, User


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


class ConsoleSessionAuthentication(SessionAuthentication):
    """The browser's session; every request that changes something needs the CSRF token."""
