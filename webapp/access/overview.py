"""Client users with their permissions as pages and REST show them, and what the permissions decide for a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.access import model
from remoting.access.decision import Demand, decide
from remoting.errors import InvalidParameter
from webapp import gateway
from webapp.errors import InvalidInput, NotFound
from webapp.rules import Rules

MAX_NAME = 255


def client_users() -> list[dict[str, Any]]:
    """By name, each with its permissions, the custom ones first."""
    with gateway.access() as client:
        users, acls = client.users(), client.acls()
    tables = {model.subject_name(each["subject"]): each.get("policies") or [] for each in acls}
    return [_document(user, tables.get(user["username"], ())) for user in users]


def one_of(users: list[dict[str, Any]], name: object) -> dict[str, Any]:
    """The client user of that name, or NotFound."""
    for user in users:
        if user["name"] == name:
            return user
    raise NotFound(f"There is no client user {name}.", code="client-user-not-found")


def explain(users: list[dict[str, Any]], question: Mapping[str, Any]) -> dict[str, Any]:
    """What the cluster decides for `user`, `type`, `resource`, `action` and `source`, and which entry is the reason.

    Raises InvalidInput.
    """
    rules = Rules(question)
    name = rules.text("user", least=1, most=64)
    kind = rules.choice("type", model.TYPES, default=model.TOPIC)
    wanted = rules.text("resource", least=1, most=MAX_NAME)
    action = rules.choice("action", model.ACTIONS[1:], default=model.PUB)
    source = rules.text("source", most=64, default="127.0.0.1") or "127.0.0.1"
    rules.finish()
    verdict = decide(_state(users), name, Demand(kind, wanted, (action,)), source)
    return {
        "user": name,
        "type": kind,
        "resource": wanted,
        "action": action,
        "source": source,
        "allowed": verdict.allowed,
        "reason": verdict.reason,
        "entry": verdict.entry and {**_entry(verdict.entry), "policy": verdict.policy},
    }


def _state(users: list[dict[str, Any]]) -> model.AccessState:
    found = model.AccessState()
    for user in users:
        found = found.with_user(model.User(user["name"], "", user["type"], user["status"]))
        for permission in user["permissions"]:
            try:
                entry = model.read_entry({**permission, "sourceIps": permission["sources"]})
            except InvalidParameter as error:
                raise InvalidInput(f"A permission of {user['name']} cannot be read: {error.message}") from error
            found = found.with_entries(user["name"], {permission["policy"]: (entry,)})
    return found


def _document(user: Mapping[str, Any], policies: Any) -> dict[str, Any]:
    permissions = [
        {
            "policy": policy.get("policyType") or model.CUSTOM,
            "resource": entry["resource"],
            "actions": list(entry.get("actions") or ()),
            "sources": list(entry.get("sourceIps") or ()),
            "decision": entry["decision"],
        }
        for policy in policies
        for entry in policy.get("entries") or ()
    ]
    permissions.sort(key=lambda each: (each["policy"] != model.CUSTOM, each["resource"]))
    return {
        "name": user["username"],
        "type": user["userType"],
        "status": user["userStatus"],
        "permissions": permissions,
    }


def _entry(entry: model.Entry) -> dict[str, Any]:
    return {
        "resource": str(entry.resource),
        "actions": list(entry.actions),
        "sources": list(entry.sources),
        "decision": entry.decision,
    }
