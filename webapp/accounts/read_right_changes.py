"""Giving and taking rights to read what messages say, as kinds of operations."""

from __future__ import annotations

from typing import Any

from remoting.names import LEGAL_NAME, MAX_RETRY_TOPIC_LENGTH, is_brokers_topic
from webapp.accounts import read_rights
from webapp.accounts.models import ReadRight, User
from webapp.accounts.permissions import Actor, role_of
from webapp.accounts.read_rights import ALLOW, DENY, ROLES
from webapp.errors import Conflict, NotFound, PermissionRefused
from webapp.operations.kinds import Done, Kind, Parameters
from webapp.rules import Rules

_NODE = "console"


def _check_reach(actor: Actor) -> None:
    """Else a token for users alone would give itself all that messages say."""
    if not actor.may("messages.bodies"):
        raise PermissionRefused(
            "You may not read what messages say yourself (messages.bodies), so you decide for nobody who may.",
            code="beyond-own-permissions",
        )


def _validate_put(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned: dict[str, Any] = {"topics": _topics(rules), "decision": rules.choice("decision", (ALLOW, DENY))}
    cleaned |= _readers(rules, parameters)
    rules.finish()
    _check_reach(actor)
    is_new = not ReadRight.objects.filter(**_key(cleaned)).exists()
    if is_new and ReadRight.objects.count() >= read_rights.MOST:
        raise Conflict(
            f"There are {read_rights.MOST} rights to read; remove some first, or let one name many topics with a *.",
            code="too-many-read-rights",
        )
    return cleaned


def _topics(rules: Rules) -> str:
    topics = rules.text("topics", least=1, most=MAX_RETRY_TOPIC_LENGTH + 1)
    name = topics.removesuffix("*")
    if topics != "*" and not LEGAL_NAME.fullmatch(name):
        rules.refuse("topics", "must be a topic's name, or the beginning of names and a *")
    elif topics == name and is_brokers_topic(name):
        rules.refuse("topics", f"{name} is the brokers' own, which administrators alone read")
    return topics


def _readers(rules: Rules, parameters: Parameters) -> dict[str, Any]:
    """Of a role or of a person; both are there, one of them empty."""
    if rules.has("role") == rules.has("user"):
        rules.refuse("role", f"say either a role ({', '.join(ROLES)}) or a user")
        return {}
    if rules.has("role"):
        role = rules.choice("role", ROLES)
        return {"role": role, "user_id": None, "readers": f"every {role}"}
    user = User.objects.filter(username=rules.text("user", most=150)).first()
    if user is None:
        rules.refuse("user", "there is no such user")
        return {}
    if role_of(user).label not in ("none", *ROLES):
        rules.refuse("user", "is an administrator, who reads all topics")
    return {"role": "", "user_id": user.pk, "readers": user.get_username()}


def _key(cleaned: Parameters) -> dict[str, Any]:
    return {name: cleaned[name] for name in ("topics", "role", "user_id")}


def _put(actor: Actor, parameters: Parameters) -> Done:
    found, _ = ReadRight.objects.update_or_create(
        **_key(parameters), defaults={"allows": parameters["decision"] == ALLOW}
    )
    return Done({"read_right_id": found.pk})


def _plan_put(parameters: Parameters) -> list[dict[str, str]]:
    verb = "may" if parameters["decision"] == ALLOW else "may not"
    return [
        {"node": _NODE, "change": f"{parameters['readers']} {verb} read what messages of {parameters['topics']} say"}
    ]


def _validate_remove(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    right_id = rules.integer("right_id", least=1, most=2**62)
    rules.finish()
    _check_reach(actor)
    found = ReadRight.objects.select_related("user").filter(pk=right_id).first()
    if found is None:
        raise NotFound("There is no such right to read.", code="read-right-not-found")
    return {"right_id": right_id, "topics": found.topics, "readers": found.readers, "decision": found.decision}


def _remove(actor: Actor, parameters: Parameters) -> Done:
    ReadRight.objects.filter(pk=parameters["right_id"]).delete()
    return Done()


PUT = Kind(
    "read-right.put",
    "Set a right to read",
    "users.write",
    _validate_put,
    _plan_put,
    target=("topics", "readers"),
    record=_put,
    is_dangerous=True,
)
REMOVE = Kind(
    "read-right.remove",
    "Remove a right to read",
    "users.write",
    _validate_remove,
    lambda parameters: [
        {"node": _NODE, "change": f"remove the right of {parameters['readers']} to {parameters['topics']}"}
    ],
    target=("topics", "readers"),
    record=_remove,
    is_dangerous=True,
)
