"""Tokens and users, as kinds of operations."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError

from webapp.accounts import services, tokens
from webapp.accounts.models import ApiToken, User
from webapp.accounts.permissions import (
    PERMISSIONS,
    ROLE_NAMES,
    Actor,
    Role,
    given_role,
    permissions_of,
    role_of,
    set_role,
)
from webapp.errors import Conflict, NotFound, PermissionRefused
from webapp.operations.kinds import Done, Kind, Parameters, without_password
from webapp.rules import Rules

MAX_TOKENS_PER_USER = 50


# ---- tokens


def _validate_token(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    days = parameters.get("expires_in_days")
    most = (
        tokens.MOST_DAYS if actor.token is None else tokens.days_left(actor.token)
    )  # a token makes none that outlives it
    default = min(tokens.DEFAULT_DAYS, most)
    days = default if days in (None, "") else rules.integer("expires_in_days", least=1, most=most)
    cleaned = {
        "name": rules.text("name", least=1, most=80),
        "scopes": _scopes(rules, actor, parameters.get("scopes")),
        "expires_in_days": days,
    }
    rules.finish()
    assert not isinstance(actor.user, AnonymousUser)
    if actor.user.api_tokens.filter(revoked_at=None).count() >= MAX_TOKENS_PER_USER:
        raise Conflict(f"You have {MAX_TOKENS_PER_USER} tokens; revoke one first.", code="too-many-tokens")
    return cleaned


def _scopes(rules: Rules, actor: Actor, given: Any) -> list[str]:
    scopes = given if isinstance(given, list) else []
    if not scopes or not all(isinstance(scope, str) for scope in scopes):
        rules.refuse("scopes", f"choose at least one of {', '.join(PERMISSIONS)}")
        return []
    unknown = sorted(set(scopes) - PERMISSIONS.keys())
    if unknown:
        rules.refuse("scopes", f"{', '.join(unknown)}: no such scope; there are {', '.join(PERMISSIONS)}")
    beyond = sorted(set(scopes) & PERMISSIONS.keys() - actor.permissions)
    if beyond:
        rules.refuse("scopes", f"{', '.join(beyond)}: you may not do this yourself, so your token cannot")
    return sorted(set(scopes))


def _create_token(actor: Actor, parameters: Parameters) -> Done:
    assert not isinstance(actor.user, AnonymousUser)
    token, text = tokens.create(actor.user, parameters["name"], parameters["scopes"], parameters["expires_in_days"])
    return Done({"token_id": token.pk, "prefix": token.prefix}, once={"token": text})


def _validate_revocation(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    token_id = rules.integer("token_id", least=1, most=2**62)
    rules.finish()
    token = ApiToken.objects.filter(pk=token_id).first()
    if token is None or (token.owner_id != actor.user.pk and not actor.may("users.write")):
        raise NotFound("There is no such token of yours.", code="token-not-found")
    return {"token_id": token_id, "name": token.name, "prefix": token.prefix}


def _revoke_token(actor: Actor, parameters: Parameters) -> Done:
    revoked = tokens.revoke(ApiToken.objects.get(pk=parameters["token_id"]))
    return Done({"revoked": revoked})


# ---- users


def _validate_user(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    username = rules.text("username", least=1, most=60)
    if not username.isascii() or not all(character.isalnum() or character in "._-@" for character in username):
        rules.refuse("username", "letters, digits and the characters . _ - @ only")
    elif User.objects.filter(username__iexact=username).exists():
        rules.refuse("username", "is taken")
    role = rules.choice("role", ROLE_NAMES, default="viewer")
    password = parameters.get("password")
    _check_password(rules, password, User(username=username))
    rules.finish()
    _check_reach(actor, role)
    return {"username": username, "role": role, "password": password}


def _create_user(actor: Actor, parameters: Parameters) -> Done:
    user = User.objects.create_user(username=parameters["username"], password=parameters["password"])
    set_role(user, parameters["role"])
    return Done({"user_id": user.pk})


def _check_reach(actor: Actor, role: str) -> None:
    """Who manages users makes nobody more than he is himself, and changes nobody who is: else a token for users alone would be
    one for everything."""
    if role not in ROLE_NAMES:  # a user without a role
        return
    beyond = permissions_of(Role[role.upper()]) - actor.permissions
    if beyond:
        raise PermissionRefused(
            f"The role {role} may do what you may not ({', '.join(sorted(beyond))}): you can neither give it nor change "
            "who has it.",
            code="beyond-own-permissions",
        )


def _validate_user_change(actor: Actor, parameters: Parameters) -> Parameters:
    user = _user(parameters)
    rules = Rules(parameters)
    cleaned: dict[str, Any] = {"user_id": user.pk, "username": user.get_username()}
    cleaned["role"] = rules.choice("role", ROLE_NAMES, default=given_role(user).label)
    cleaned["active"] = rules.flag("active", default=user.is_active)
    rules.finish()
    _check_reach(actor, given_role(user).label)
    _check_reach(actor, cleaned["role"])
    admins = [each for each in User.objects.filter(is_active=True) if role_of(each).label == "admin"]
    if [each.pk for each in admins] == [user.pk] and (cleaned["role"] != "admin" or not cleaned["active"]):
        raise Conflict("This is the last active admin; make another one first.", code="last-admin")
    return cleaned


def _change_user(actor: Actor, parameters: Parameters) -> Done:
    user = User.objects.get(pk=parameters["user_id"])
    user.is_active = parameters["active"]
    user.save(update_fields=["is_active"])
    set_role(user, parameters["role"])
    services.revoke_access(user)
    return Done()


def _validate_password_change(actor: Actor, parameters: Parameters) -> Parameters:
    assert isinstance(actor.user, User)
    rules = Rules(parameters)
    if not services.prove_password(actor, str(parameters.get("present") or ""), "password.change"):
        rules.refuse("present", "is not your present password")
    _check_password(rules, parameters.get("password"), actor.user)
    rules.finish()
    return {"password": parameters["password"]}


def _change_password(actor: Actor, parameters: Parameters) -> Done:
    assert isinstance(actor.user, User)
    actor.user.set_password(parameters["password"])
    actor.user.save(update_fields=["password"])
    services.revoke_access(actor.user)
    return Done({"revoked_tokens": tokens.revoke_all(actor.user)})


def _check_password(rules: Rules, password: Any, user: User) -> None:
    if not isinstance(password, str) or len(password) > 1000:
        rules.refuse("password", "must be text of 12 to 1000 characters")
        return
    try:
        validate_password(password, user)
    except ValidationError as error:
        for sentence in error.messages:
            rules.refuse("password", sentence)


def _user(parameters: Parameters) -> User:
    user_id = parameters.get("user_id")
    user = User.objects.filter(pk=user_id).first() if isinstance(user_id, int) else None
    if user is None:
        raise NotFound("There is no such user.", code="user-not-found")
    return user


CREATE_TOKEN = Kind(
    "token.create", "Create token", "tokens.write", _validate_token, record=_create_token, is_dangerous=True
)
REVOKE_TOKEN = Kind(
    "token.revoke", "Revoke token", "tokens.write", _validate_revocation, target=("prefix",), record=_revoke_token
)
CREATE_USER = Kind(
    "user.create",
    "Create user",
    "users.write",
    _validate_user,
    target=("username",),
    record=_create_user,
    audited=without_password,
    is_dangerous=True,
)
CHANGE_USER = Kind(
    "user.change",
    "Change user",
    "users.write",
    _validate_user_change,
    target=("username",),
    record=_change_user,
    is_dangerous=True,
)
CHANGE_PASSWORD = Kind(
    "password.change",
    "Change password",
    "tokens.write",
    _validate_password_change,
    target=(),
    record=_change_password,
    audited=without_password,
)
