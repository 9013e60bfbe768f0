"""Users and permissions of a cluster, blocking: what the console and its tasks ask of the controllers' leader.

Names and words are the protocol's: UserInfo and AclInfo as dictionaries. Changes may be repeated: what is there already, and what
is gone already, is answered as `unchanged`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from remoting import codes
from remoting.access.model import CUSTOM, subject
from remoting.client.blocking import AdminClient, NodeOutcome, outcome_of

_TIMEOUT_MS = 8000


class AccessAdmin:
    """Raises RequestError with the leader's reason, ConnectionLost or RequestTimeout when the outcome is unknown."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def users(self) -> list[dict[str, Any]]:
        """All users by name, without passwords."""
        return self._ask(codes.AUTH_LIST_USERS, {}) or []

    def acls(self) -> list[dict[str, Any]]:
        """The permissions of all users that have some."""
        return self._ask(codes.AUTH_LIST_ACLS, {}) or []

    def create_user(self, name: str, password: str, user_type: str, status: str) -> NodeOutcome:
        fields = {"password": password, "userType": user_type, "userStatus": status}
        return self._change(codes.AUTH_CREATE_USER, {"username": name}, fields)

    def update_user(
        self, name: str, password: str | None = None, user_type: str | None = None, status: str | None = None
    ) -> NodeOutcome:
        """What is None stays."""
        fields = {"password": password, "userType": user_type, "userStatus": status}
        return self._change(codes.AUTH_UPDATE_USER, {"username": name}, fields)

    def delete_user(self, name: str) -> NodeOutcome:
        """With the user's permissions."""
        return self._change(codes.AUTH_DELETE_USER, {"username": name})

    def put_permission(self, name: str, entry: Mapping[str, Any], policy: str = CUSTOM) -> NodeOutcome:
        """Add a permission, or change the one that the user has for the same resource."""
        body = {"subject": subject(name), "policies": [{"policyType": policy, "entries": [dict(entry)]}]}
        return self._change(codes.AUTH_CREATE_ACL, {"subject": subject(name)}, body)

    def delete_permission(self, name: str, resource: str, policy: str = CUSTOM) -> NodeOutcome:
        ext = {"subject": subject(name), "policyType": policy, "resource": resource}
        return self._change(codes.AUTH_DELETE_ACL, ext)

    def _ask(self, code: int, ext: Mapping[str, str]) -> Any:
        body = self._admin.ask_leader(code, ext, timeout_ms=_TIMEOUT_MS).body
        return orjson.loads(body) if body else None

    def _change(self, code: int, ext: Mapping[str, str], fields: Mapping[str, Any] | None = None) -> NodeOutcome:
        body = b"" if fields is None else orjson.dumps(fields)
        return outcome_of("controllers", self._admin.ask_leader(code, ext, body, timeout_ms=_TIMEOUT_MS))
