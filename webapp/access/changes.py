"""Users of the cluster's clients and their permissions, as kinds of operations.

The web process carries them out itself: they are over in a moment, and a secret must not lie in the table of operations, from
which the worker would read it.
"""

from __future__ import annotations

from typing import Any

from remoting.access import model
from remoting.client.blocking import NodeOutcome
from remoting.errors import InvalidParameter
from webapp import gateway
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, InvalidInput, NotFound
from webapp.operations.kinds import Done, Kind, Parameters
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
    if cleaned["name"] in users():
        raise Conflict(
            f"The client user {cleaned['name']} exists already; change it instead.", code="client-user-exists"
        )
    return cleaned


def _validate_update(actor: Actor, parameters: Parameters) -> Parameters:
    present = user(parameters.get("name"))
    rules = Rules({field: value for field, value in parameters.items() if value is not None})
    cleaned: Parameters = {
        "name": present["username"],
        "type": rules.choice("type", USER_TYPES, default=present["userType"]),
        "status": rules.choice("status", STATUSES, default=present["userStatus"]),
        "password": _secret(rules, parameters, required=False),
    }
    rules.finish()
    return cleaned


def _validate_delete(actor: Actor, parameters: Parameters) -> Parameters:
    name: str = user(parameters.get("name"))["username"]
    if "confirmation" in parameters and parameters["confirmation"] != name:
        raise InvalidInput("Type the user's name to confirm.", fields={"confirmation": [f"must be the name, {name}"]})
    return {"name": name}


def _create(actor: Actor, parameters: Parameters) -> Done:
    with gateway.asking():
        outcome = gateway.access().create_user(
            parameters["name"], parameters["password"], parameters["type"], parameters["status"]
        )
    return _done(outcome)


def _update(actor: Actor, parameters: Parameters) -> Done:
    with gateway.asking():
        outcome = gateway.access().update_user(
            parameters["name"], parameters["password"], parameters["type"], parameters["status"]
        )
    return _done(outcome)


def _delete(actor: Actor, parameters: Parameters) -> Done:
    with gateway.asking():
        outcome = gateway.access().delete_user(parameters["name"])
    return _done(outcome)


# ---- permissions


def _validate_put(actor: Actor, parameters: Parameters) -> Parameters:
    name = user(parameters.get("name"))["username"]
    rules = Rules(parameters)
    cleaned: Parameters = {
        "name": name,
        "policy": rules.choice("policy", POLICIES, default=model.CUSTOM),
        "decision": rules.choice("decision", DECISIONS, default=model.ALLOW),
    }
    for field, read in (("resource", model.resource), ("actions", _actions), ("sources", _sources)):
        try:
            cleaned[field] = str(read(parameters.get(field))) if field == "resource" else read(parameters.get(field))
        except InvalidParameter as error:
            rules.refuse(field, error.message)
    rules.finish()
    return cleaned


def _validate_remove(actor: Actor, parameters: Parameters) -> Parameters:
    name = user(parameters.get("name"))["username"]
    rules = Rules(parameters)
    policy = rules.choice("policy", POLICIES, default=model.CUSTOM)
    try:
        wanted = str(model.resource(parameters.get("resource")))
    except InvalidParameter as error:
        raise InvalidInput(error.message, fields={"resource": [error.message]}) from error
    rules.finish()
    return {"name": name, "policy": policy, "resource": wanted}


def _put(actor: Actor, parameters: Parameters) -> Done:
    entry = {
        "resource": parameters["resource"],
        "actions": parameters["actions"],
        "sourceIps": parameters["sources"],
        "decision": parameters["decision"],
    }
    with gateway.asking():
        outcome = gateway.access().put_permission(parameters["name"], entry, parameters["policy"])
    return _done(outcome)


def _remove(actor: Actor, parameters: Parameters) -> Done:
    with gateway.asking():
        outcome = gateway.access().delete_permission(parameters["name"], parameters["resource"], parameters["policy"])
    return _done(outcome)


# ---- what they share


def users() -> dict[str, dict[str, Any]]:
    """All client users by name, as the controllers have them."""
    with gateway.asking():
        return {each["username"]: each for each in gateway.access().users()}


def user(name: object) -> dict[str, Any]:
    """One of them. Raises NotFound."""
    found = users().get(name) if isinstance(name, str) else None
    if found is None:
        raise NotFound(f"There is no client user {name}.", code="client-user-not-found")
    return found


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


def _actions(given: Any) -> list[str]:
    return list(model.read_entry({"resource": "*", "actions": given or [], "decision": model.ALLOW}).actions)


def _sources(given: Any) -> list[str]:
    fields = {"resource": "*", "actions": [model.ALL], "decision": model.ALLOW, "sourceIps": given or []}
    return list(model.read_entry(fields).sources)


def _done(outcome: NodeOutcome) -> Done:
    return Done({"outcome": outcome.outcome})


def _plan(verb: str):  # type: ignore[no-untyped-def]
    def plan(parameters: Parameters) -> list[dict[str, str]]:
        what = f"{verb} {parameters['name']}"
        if "resource" in parameters:
            words = [parameters.get("decision", ""), "/".join(parameters.get("actions", ())), parameters["resource"]]
            what += ": " + " ".join(filter(None, words))
        return [{"node": "controllers", "change": what}]

    return plan


def _audited(parameters: Parameters) -> Parameters:
    """No secret is kept; whether one was set is."""
    rest = {name: value for name, value in parameters.items() if name != "password"}
    return {**rest, "password_set": parameters["password"] is not None}


CREATE = Kind(
    "client-user.create",
    "Create client user",
    "access.write",
    _validate_create,
    _plan("create"),
    inline=_create,
    audited=_audited,
)
UPDATE = Kind(
    "client-user.update",
    "Change client user",
    "access.write",
    _validate_update,
    _plan("change"),
    inline=_update,
    audited=_audited,
)
DELETE = Kind(
    "client-user.delete", "Delete client user", "access.write", _validate_delete, _plan("delete"), inline=_delete
)
PUT = Kind("permission.put", "Set permission", "access.write", _validate_put, _plan("set a permission of"), inline=_put)
REMOVE = Kind(
    "permission.remove",
    "Remove permission",
    "access.write",
    _validate_remove,
    _plan("remove a permission of"),
    inline=_remove,
)
