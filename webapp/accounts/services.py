"""Logging in and out, the first admin, and users. Changes that an administrator makes are kinds of operations (`changes.py`)."""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from django.contrib.auth import authenticate, login, logout
from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from webapp.accounts import login_limit, tokens
from webapp.accounts.devices import device_of
from webapp.accounts.models import User
from webapp.accounts.permissions import Actor, actor_for, actor_of, client_ip, permissions_of, role_of, set_role
from webapp.announce import announce_after_commit
from webapp.audit import services as audit
from webapp.audit.models import AuditEntry
from webapp.errors import InvalidInput, TooMany

_RENEWED_BEFORE = timedelta(days=90)
THROTTLED = "too many failed attempts"
MOST_THROTTLED_A_MINUTE = 30
WRONG = "The name or the password is wrong."


def log_in(request: HttpRequest, username: str, password: str) -> None:
    """Log a person in, or raise InvalidInput or TooMany. Both outcomes are audited."""
    ip = client_ip(request)
    username = "".join(
        character for character in username[:150] if character.isprintable()
    )  # a database may refuse others
    try:
        attempt = login_limit.begin(username, ip, device_of(request, username))
    except TooMany:
        _audit_throttled(actor_of(request), "login", username)
        raise
    user = authenticate(request, username=username, password=password)
    if user is None or not role_of(user):
        audit.record(
            actor_of(request),
            "login",
            target=username,
            outcome=audit.Outcome.REFUSED,
            detail="wrong name or password",
        )
        raise InvalidInput(WRONG, code="login-failed")
    login_limit.succeeded(attempt)
    admit(request, user)


def prove_password(actor: Actor, password: str, action: str) -> bool:
    """Whether this is the password of somebody who is logged in and does this. Guesses are limited as those of a login are, and
    counted by the session: others' keep nobody from it who is logged in.

    Raises TooMany."""
    assert isinstance(actor.user, User)
    try:
        attempt = login_limit.begin(actor.name, actor.ip, actor.session)
    except TooMany:
        _audit_throttled(actor, action, actor.name)
        raise
    if not actor.user.check_password(password):
        audit.record(actor, action, target=actor.name, outcome=audit.Outcome.REFUSED, detail="wrong password")
        return False
    login_limit.succeeded(attempt)
    return True


def _audit_throttled(actor: Actor, action: str, target: str) -> None:
    """A row a minute of one address, and so many of all: who guesses on, with however many, shall not fill the trail."""
    minute = AuditEntry.objects.filter(at__gt=timezone.now() - timedelta(minutes=1), action=action, detail=THROTTLED)
    addresses = set(minute.values_list("ip", flat=True)[:MOST_THROTTLED_A_MINUTE])
    if actor.ip not in addresses and len(addresses) < MOST_THROTTLED_A_MINUTE:
        audit.record(actor, action, target=target, outcome=audit.Outcome.REFUSED, detail=THROTTLED)


def admit(request: HttpRequest, user: User) -> None:
    """Begin the session of somebody who proved who he is, by whatever: a second factor comes before this, another way of proving
    it (an identity provider's word) ends here."""
    login(request, user)  # also gives the session a new key
    audit.record(actor_for(user, ip=client_ip(request)), "login", target=user.get_username())


def log_out(request: HttpRequest) -> None:
    """End the session and every websocket that was opened with it."""
    actor, session_key = actor_of(request), request.session.session_key
    logout(request)
    audit.record(actor, "logout", target=actor.name)
    if session_key:
        announce_after_commit(session_group(session_key), {"type": "access.revoked"})


def revoke_access(user: User) -> None:
    """Close the websockets of a person whose rights changed; they may open them again if they still may."""
    announce_after_commit(user_group(user.pk), {"type": "access.revoked"})


def session_group(session_key: str) -> str:
    """The channels group of a session's websockets (a hash: the key itself stays out of Redis)."""
    return f"session.{hashlib.sha256(session_key.encode()).hexdigest()[:40]}"


def user_group(user_id: int) -> str:
    """The channels group of a person's websockets."""
    return f"user.{user_id}"


def ensure_admin(password: str | None = None) -> tuple[str, str] | None:
    """The first administrator: made when there is no user at all. Returns name and password then, else None. Raises
    ValidationError for a password that breaks the rules of all others.

    Called by the appliance's first start, which prints both once.
    """
    with transaction.atomic():
        if User.objects.exists():
            return None
        password = password or secrets.token_urlsafe(12)
        validate_password(password, User(username="admin"))
        admin = User.objects.create_user(username="admin", password=password)
        set_role(admin, "admin")
    return "admin", password


def new_cli_token(present: str) -> str | None:
    """A token for the command line; None when the present one is valid, and allows all that it should by now.

    It belongs to the first active administrator and may do what that person may, except managing users.
    """
    found = tokens.find(present)
    admins = (user for user in User.objects.filter(is_active=True).order_by("pk") if role_of(user).label == "admin")
    owner = next(admins, None)
    if owner is None:
        if found is not None:
            return None
        raise RuntimeError("no active administrator: create one first")
    scopes = sorted(permissions_of(role_of(owner)) - {"users.write", "tokens.write"})
    lasts = found is not None and found.of_machine and found.expires_at - timezone.now() > _RENEWED_BEFORE
    if lasts and found is not None and set(scopes) <= set(found.scopes):
        return None
    return tokens.create(owner, "command line of this machine", scopes, tokens.MOST_DAYS, of_machine=True)[1]
