"""Users of the cluster's clients and their permissions, as kinds of operations.

The web process carries them out itself: they are over in a moment, and a secret must not lie in the table of operations, from
which the worker would read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remoting.access import model
from remoting.client.access_admin import AccessAdmin
from remoting.client.blocking import NodeOutcome
from remoting.errors import InvalidParameter
from webapp import gateway
from webapp.access.overview import client_users, one_of
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, InvalidInput
from webapp.operations.kinds import Done, Kind, Parameters, without_password
from webapp.rules import Rules

LEAST_SECRET = 8
MOST_SECRET = 256
USER_TYPES = (model.NORMAL, model.SUPER)
STATUSES = (model.ENABLE, model.DISABLE)
DECISIONS = (model.ALLOW, model.DENY)
POLICIES = (model.CUSTOM, model.DEFAULT)


# ---- users


def _validate_create(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned: Parameters = {
        "name": _name(rules, parameters),
        "type": rules.choice("type", USER_TYPES, default=model.NORMAL),
        "status": rules.choice("status", STATUSES, default=model.ENABLE),
        "password": _secret(rules, parameters, required=True),
    }
    rules.finish()
    if any(each["name"] == cleaned["name"] for each in client_users()):
        raise Conflict(
            f"The client user {cleaned['name']} exists already; change it instead.", code="client-user-exists"
        )
    return cleaned


def _validate_update(actor: Actor, parameters: Parameters) -> Parameters:
    present = one_of(client_users(), parameters.get("name"))
    rules = Rules({field: value for field, value in parameters.items() if value is not None})
    cleaned: Parameters = {
        "name": present["name"],
        "type": rules.choice("type", USER_TYPES, default=present["type"]),
        "status": rules.choice("status", STATUSES, default=present["status"]),
        "password": _secret(rules, parameters, required=False),
    }
    rules.finish()
    return cleaned


def _validate_delete(actor: Actor, parameters: Parameters) -> Parameters:
    name = _name_of_known(parameters)
    if "confirmation" in parameters and parameters["confirmation"] != name:
        raise InvalidInput("Type the user's name to confirm.", fields={"confirmation": [f"must be the name, {name}"]})
    return {"name": name}


# ---- permissions


def _validate_put(actor: Actor, parameters: Parameters) -> Parameters:
    name = _name_of_known(parameters)
    rules = Rules(parameters)
    cleaned: Parameters = {
        "name": name,
        "policy": rules.choice("policy", POLICIES, default=model.CUSTOM),
        "decision": rules.choice("decision", DECISIONS, default=model.ALLOW),
    }
    cleaned |= _read(rules, parameters, "resource", "actions", "sources")
    rules.finish()
    return cleaned


def _validate_remove(actor: Actor, parameters: Parameters) -> Parameters:
    name = _name_of_known(parameters)
    rules = Rules(parameters)
    cleaned = {"name": name, "policy": rules.choice("policy", POLICIES, default=model.CUSTOM)}
    cleaned |= _read(rules, parameters, "resource")
    rules.finish()
    return cleaned


# ---- what they share


def _name_of_known(parameters: Parameters) -> str:
    return one_of(client_users(), parameters.get("name"))["name"]


def _read(rules: Rules, parameters: Parameters, *fields: str) -> Parameters:
    """The fields of a permission, as the cluster keeps them."""
    cleaned = {}
    for field in fields:
        try:
            cleaned[field] = _READERS[field](parameters.get(field))
        except InvalidParameter as error:
            rules.refuse(field, error.message)
    return cleaned


def _name(rules: Rules, parameters: Parameters) -> str:
    try:
        return model.user_name(parameters.get("name"))
    except InvalidParameter as error:
        rules.refuse("name", error.message)
        return ""


def _secret(rules: Rules, parameters: Parameters, *, required: bool) -> str | None:
    secret = parameters.get("password")
    if not secret and not required:
        return None
    if not isinstance(secret, str) or not LEAST_SECRET <= len(secret.encode("utf-8", "replace")) <= MOST_SECRET:
        rules.refuse("password", f"a secret key has {LEAST_SECRET} to {MOST_SECRET} bytes")
        return None
    return secret


def _resource(given: Any) -> str:
    return str(model.resource(given))


def _actions(given: Any) -> list[str]:
    return list(model.read_entry({"resource": "*", "actions": given or [], "decision": model.ALLOW}).actions)


def _sources(given: Any) -> list[str]:
    fields = {"resource": "*", "actions": [model.ALL], "decision": model.ALLOW, "sourceIps": given or []}
    return list(model.read_entry(fields).sources)


_READERS = {"resource": _resource, "actions": _actions, "sources": _sources}


def _kind(
    name: str,
    title: str,
    validate: Callable[[Actor, Parameters], Parameters],
    verb: str,
    ask: Callable[[AccessAdmin, Parameters], NodeOutcome],
    audited: Callable[[Parameters], Parameters] = without_password,
) -> Kind:
    """A change of users or permissions, which `ask` asks the controllers for."""

    def carry_out(actor: Actor, parameters: Parameters) -> Done:
        with gateway.access() as client:
            return Done({"outcome": ask(client, parameters).outcome})

    def plan(parameters: Parameters) -> list[dict[str, str]]:
        what = f"{verb} {parameters['name']}"
        if "resource" in parameters:
            words = [parameters.get("decision", ""), "/".join(parameters.get("actions", ())), parameters["resource"]]
            what += ": " + " ".join(filter(None, words))
        return [{"node": "controllers", "change": what}]

    return Kind(name, title, "access.write", validate, plan, inline=carry_out, audited=audited, is_dangerous=True)


def _audited(parameters: Parameters) -> Parameters:
    """No secret is kept; whether one was set is."""
    return {**without_password(parameters), "password_set": parameters["password"] is not None}


def _fields(given: Parameters) -> tuple[str, str | None, str, str]:
    return given["name"], given["password"], given["type"], given["status"]


def _put(client: AccessAdmin, given: Parameters) -> NodeOutcome:
    entry = {name: given[name] for name in ("resource", "actions", "decision")}
    return client.put_permission(given["name"], {**entry, "sourceIps": given["sources"]}, given["policy"])


CREATE = _kind(
    "client-user.create",
    "Create client user",
    _validate_create,
    "create",
    lambda client, given: client.create_user(*_fields(given)),
    _audited,
)
UPDATE = _kind(
    "client-user.update",
    "Change client user",
    _validate_update,
    "change",
    lambda client, given: client.update_user(*_fields(given)),
    _audited,
)
DELETE = _kind(
    "client-user.delete",
    "Delete client user",
    _validate_delete,
    "delete",
    lambda client, given: client.delete_user(given["name"]),
)
PUT = _kind("permission.put", "Set permission", _validate_put, "set a permission of", _put)
REMOVE = _kind(
    "permission.remove",
    "Remove permission",
    _validate_remove,
    "remove a permission of",
    lambda client, given: client.delete_permission(given["name"], given["resource"], given["policy"]),
)
