"""API tokens: making, finding and revoking them.

A token reads `lb_<prefix>_<secret>`. The prefix finds the row; the secret's hash is compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction
from django.db.models import Q
from django.utils import timezone

from webapp.accounts.models import ApiToken, User

log = logging.getLogger(__name__)

MARK = "lb"
LAST_USED_RESOLUTION = timedelta(minutes=1)  # so that a busy script does not write to the database on every call


DEFAULT_DAYS = 90
MOST_DAYS = 366


def create(
    owner: User, name: str, scopes: list[str], expires_in_days: int = DEFAULT_DAYS, *, of_machine: bool = False
) -> tuple[ApiToken, str]:
    """Make a token; the second value is the whole of it, which nobody can read again later."""
    secret = secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        name=name,
        owner=owner,
        prefix=secrets.token_hex(5),
        secret_sha256=_digest(secret),
        scopes=sorted(scopes),
        expires_at=timezone.now() + timedelta(days=expires_in_days),
        of_machine=of_machine,
    )
    return token, f"{MARK}_{token.prefix}_{secret}"


def find(text: str) -> ApiToken | None:
    """The valid token that `text` is, if any; its owner must still be active."""
    mark, _, rest = text.partition("_")
    prefix, _, secret = rest.partition("_")
    if mark != MARK or len(prefix) != 10 or not 20 <= len(secret) <= 100:
        return None
    token = ApiToken.objects.select_related("owner").filter(prefix=prefix).first()
    expected = token.secret_sha256 if token else _digest("nobody")
    if not hmac.compare_digest(expected, _digest(secret)) or token is None:
        return None
    now = timezone.now()
    if token.revoked_at is not None or not token.owner.is_active:
        return None
    if token.expires_at <= now:
        return None
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION:
        _note_use(token, now)
    return token


def _note_use(token: ApiToken, now: datetime) -> None:
    """Who only reads is served also while nothing can be written, as on a full disk."""
    stale = Q(last_used_at=None) | Q(last_used_at__lt=now - LAST_USED_RESOLUTION)
    try:
        with transaction.atomic():
            ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
    except DatabaseError as error:
        log.warning("the use of token %s cannot be noted: %s", token.prefix, error)


def revoke(token: ApiToken) -> bool:
    """End a token now; tells whether it was still valid."""
    return bool(ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()))


def days_left(token: ApiToken) -> int:
    """Until the token ends: whole days, rounded up."""
    return max(1, -((timezone.now() - token.expires_at) // timedelta(days=1)))


def revoke_all(owner: User) -> int:
    """End the person's tokens, of whom somebody else may know the password; says how many. The command line's is no person's."""
    return ApiToken.objects.filter(owner=owner, revoked_at=None, of_machine=False).update(revoked_at=timezone.now())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
