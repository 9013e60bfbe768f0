"""Who gets through to a REST view. Reads name their permission; changes are checked where they are made (`operations.submit`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from webapp.accounts.permissions import actor_of

if TYPE_CHECKING:
    from rest_framework.views import APIView  # at run time it loads this module


class HasPermission(BasePermission):
    """A login is needed always; the view's `read_permission` for reading."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        if not request.user.is_authenticated:
            return False
        needed = getattr(view, "read_permission", None)
        if needed and request.method in {"GET", "HEAD", "OPTIONS"}:
            actor_of(request).require(needed)
        return True
