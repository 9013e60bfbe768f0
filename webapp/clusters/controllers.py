"""Changing who belongs to the group of controllers, and which of them leads.

Whether a change is possible is the leading controller's to decide, at the moment of the change. What is refused here is only what
the present members show to be a mistake, so that it is said before anything is queued.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from webapp import gateway
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, NotFound
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import Rules

PERMISSION = "controllers.write"
MAX_ADDRESS = 255
_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^\s:/]+):(\d{1,5})")


def _id_of(rules: Rules) -> str:
    value = rules.text("id", least=1, most=32)
    if value and not _ID.fullmatch(value):
        rules.refuse("id", "a controller's id has 1 to 32 letters, digits, dots, dashes or underscores")
    return value


def _members() -> tuple[dict[str, dict[str, Any]], list[str]]:
    listing = gateway.controller_members()
    return {each["id"]: each for each in listing["members"]}, list(listing["retired"])


def _validate_add(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned = {"id": _id_of(rules), "address": rules.text("address", least=3, most=MAX_ADDRESS)}
    found = _ADDRESS.fullmatch(cleaned["address"])
    if found is None or not 0 < int(found[2]) < 65536:
        rules.refuse("address", "write host:port, where the new controller listens, for example 127.0.0.1:9879")
    rules.finish()
    members, retired = _members()
    if cleaned["id"] in members:
        raise Conflict(f"{cleaned['id']} is a member already.", code="controller-exists")
    if cleaned["id"] in retired:
        raise Conflict(
            f"{cleaned['id']} was removed before; a new controller needs a new id.", code="controller-retired"
        )
    return cleaned


def _validate_member(check: Callable[[dict[str, Any]], None]) -> Callable[[Actor, Parameters], Parameters]:
    def validate(actor: Actor, parameters: Parameters) -> Parameters:
        rules = Rules(parameters)
        cleaned = {"id": _id_of(rules)}
        rules.finish()
        member = _members()[0].get(cleaned["id"])
        if member is None:
            raise NotFound(f"There is no controller {cleaned['id']}.", code="controller-not-found")
        check(member)
        return cleaned

    return validate


def _is_learner(member: dict[str, Any]) -> None:
    if member["role"] != "learner":
        raise Conflict(f"{member['id']} has its vote already.", code="not-a-learner")


def _may_lead(member: dict[str, Any]) -> None:
    if member["leader"]:
        raise Conflict(f"{member['id']} leads already.", code="already-leader")
    if member["role"] != "voter":
        raise Conflict(f"{member['id']} has no vote, so it cannot lead; promote it first.", code="not-a-voter")


def _may_leave(member: dict[str, Any]) -> None:
    if member["role"] == "leaving":
        raise Conflict(f"{member['id']} is being removed already.", code="controller-leaving")


def _kind(verb: str, title: str, validate: Callable[[Actor, Parameters], Parameters], what: str) -> Kind:
    def plan(parameters: Parameters) -> list[dict[str, str]]:
        return [{"node": parameters["id"], "change": what.format(**parameters)}]

    return Kind(f"controller.{verb}", title, PERMISSION, validate, plan, target=("id",), is_dangerous=True)


ADD = _kind(
    "add",
    "Add controller",
    _validate_add,
    "joins at {address} as a learner: it receives everything and has no vote yet",
)
PROMOTE = _kind("promote", "Promote controller", _validate_member(_is_learner), "gets its vote, if it has caught up")
REMOVE = _kind(
    "remove",
    "Remove controller",
    _validate_member(_may_leave),
    "leaves for good: its process ends, and its id is never used again",
)
TRANSFER = _kind(
    "transfer",
    "Hand over the controllers' leadership",
    _validate_member(_may_lead),
    "leads the controllers; decisions wait for a moment",
)
